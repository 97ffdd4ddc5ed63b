"""Clients beside others: one beside a flood, and interactive ones beside batches.

The batches are those that llm-d's batch gateway was measured with (its #491, 2026-09): two replicas
of gpt-oss-120b, 512 tokens in and 128 out, 15 interactive requests a second, 1,000 of a batch at
once, three times. They have priority -1.
"""

from collections.abc import Iterator

from bench.hold.loads import CAPACITY_PER_S, HOLDING, PODS
from bench.hold.runs import POD, Case
from bench.hold.traffic import Client
from epp.replay.engines.presets import preset
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.traffic.workloads.catalog import CatalogEntry
from epp.replay.traffic.workloads.distributions import fixed

ALONE, FLOODED, WITHOUT_BATCH, WITH_BATCH = "alone", "flooded", "without batch", "with batch"
GOOD, FLOOD = "well-behaved", "flood"
INTERACTIVE, BATCH = "interactive", "batch"
TIMES = 10
"""How many times as much the flood is."""
_SHARE = 0.12
"""The part of what the pods can serve that the well-behaved client asks for."""
_TENANT_PODS = 4
_TENANT_SECONDS = 360.0
_SHORT = CatalogEntry(
    system=0, context=fixed(0), new=fixed(512), output=fixed(128), longest=100_000
)
_INTERACTIVE_PER_S = 15.0
_BATCH_REQUESTS, _BATCH_SECONDS = 1000, 1.0
_BATCHES = (20.0, 50.0, 80.0)
_BATCH_RUN_SECONDS = 120.0
_ENGINE = preset("gpt-oss-120b-h100")
_DRAIN_SECONDS = 300.0


def cases(seed: int) -> Iterator[tuple[str, Case]]:
    """Yield the runs of a seed, the longest first."""
    rate = _SHARE * CAPACITY_PER_S * _TENANT_PODS / PODS
    good = Client(name=GOOD, rate=rate, until=_TENANT_SECONDS)
    flood = Client(name=FLOOD, rate=rate * TIMES, until=_TENANT_SECONDS)
    asked = Client(name=INTERACTIVE, rate=_INTERACTIVE_PER_S, until=_BATCH_RUN_SECONDS, like=_SHORT)
    batches = tuple(
        Client(
            name=BATCH,
            rate=_BATCH_REQUESTS / _BATCH_SECONDS,
            since=at,
            until=at + _BATCH_SECONDS,
            priority=-1,
            like=_SHORT,
        )
        for at in _BATCHES
    )
    pods = (POD,) * _TENANT_PODS
    replicas = (PodPlan(limits=_ENGINE.limits, cost=_ENGINE.cost),) * 2
    yield FLOODED, _case((good, flood), pods, 60.0, seed)
    yield WITH_BATCH, _case((asked, *batches), replicas, 10.0, seed)
    yield ALONE, _case((good,), pods, 60.0, seed)
    yield WITHOUT_BATCH, _case((asked,), replicas, 10.0, seed)


def _case(
    clients: tuple[Client, ...], pods: tuple[PodPlan, ...], warm_up: float, seed: int
) -> Case:
    plan = RunPlan(policy=NAMED[HOLDING], pods=pods, seed=seed, drain_seconds=_DRAIN_SECONDS)
    return Case(offered=clients, plan=plan, warm_up=warm_up)
