"""Ray Serve's `PrefixCacheAffinityRouter` in process, with its tree in an actor of a local Ray.

Replicas are stand-ins that say how many requests are under way.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve._private.request_router.common import PendingRequest

REPLICAS = 4
_DEPLOYMENT = DeploymentID(name="peers")
_MOST = 1_000_000


class _Replica:
    """What the router asks of a replica."""

    node_id = "node"
    availability_zone = None
    multiplexed_model_ids: frozenset[str] = frozenset()
    is_cross_language = False
    max_ongoing_requests = _MOST
    actor_id = None

    def __init__(self, number: int) -> None:
        self.routing_stats: dict[str, float] = {}
        self.number = number
        self.replica_id = ReplicaID(unique_id=f"r{number}", deployment_id=_DEPLOYMENT)
        self.under_way: set[int] = set()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return len(self.under_way)


async def picks(steps: list[dict[str, Any]]) -> list[int]:
    router = PrefixCacheAffinityRouter(
        deployment_id=_DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=False,
    )
    router.initialize_state(tree_actor=PrefixTreeActor.remote())
    replicas = [_Replica(number) for number in range(REPLICAS)]
    router.update_replicas(replicas)
    picked = []
    for number, step in enumerate(steps):
        for replica in replicas:
            replica.under_way.difference_update(step["ended"])
        asked = PendingRequest(
            args=[SimpleNamespace(messages=step["chat"])],
            kwargs={},
            metadata=RequestMetadata(request_id=str(number), internal_request_id=str(number)),
        )
        replica = await router._choose_replica_for_request(asked)  # noqa: SLF001 (its entry)
        router.on_request_routed(asked, replica.replica_id, None)
        replica.under_way.add(number)
        picked.append(replica.number)
    return picked


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    Path(sys.argv[-1]).write_text(json.dumps(asyncio.run(picks(json.load(sys.stdin)))))


if __name__ == "__main__":
    main()
