"""Identity of an endpoint and the load it last reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

import msgspec

EndpointId = NewType("EndpointId", str)
"""`namespace/name`; one per (pod, target port)."""

Target = NewType("Target", str)
"""`ip:port`, IPv6 in brackets: the form that Envoy takes."""


def target_of(address: str, port: int) -> Target:
    """Join an IP address and a port the way a proxy expects them."""
    return Target(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model server that can be picked. `uid` tells two pods of one name apart."""

    namespace: str
    name: str
    address: str
    port: int
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    uid: str = ""
    id: EndpointId = field(init=False)
    target: Target = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", EndpointId(f"{self.namespace}/{self.name}"))
        object.__setattr__(self, "target", target_of(self.address, self.port))


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint's metrics said at `at` (seconds of the picker's monotonic clock).

    `kv_usage` is in 0..1. `block_size` is in tokens and `num_blocks` counts all blocks of the
    engine's pool, the null block included; both are None while unknown. `started_at` is the
    engine's process start in Unix seconds, None while unknown.
    """

    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()
    max_adapters: int = 0
    block_size: int | None = None
    num_blocks: int | None = None
    started_at: float | None = None
    at: float = float("-inf")


UNREPORTED = Load()
"""The load of an endpoint that has not answered a scrape yet."""
