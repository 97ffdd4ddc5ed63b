"""What only a hash decides, taken from the router: its rings and its ties are not the plug-in's.

A plug-in that asks a ring asks where the router sends this key while nothing is under way, so that
what is left to compare is what the plug-in takes for the key, and what it does with loads.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

from bench.peers.follow import Hint
from epp.model.endpoint import EndpointId
from epp.policy.peers import production_stack, smg, vllm_router
from epp.policy.peers.hash_ring import HashRing
from epp.policy.plugins import Subscribe


class _RouterRing(HashRing):
    """Yields the router's endpoint of each key: that of the first request that had it."""

    _alone: EndpointId | None = None

    def __init__(self, subscribe: Subscribe, replicas: int) -> None:
        super().__init__(subscribe, replicas)
        self._homes: dict[int, EndpointId] = {}

    def add(self, endpoints: Iterable[EndpointId]) -> None:
        """The router has them all."""

    def walk(self, key: int) -> Iterator[EndpointId]:
        """Return the router's endpoint of a key."""
        if _RouterRing._alone is not None:
            yield self._homes.setdefault(key, _RouterRing._alone)

    @classmethod
    def tell(cls, _: EndpointId, alone: EndpointId | None) -> None:
        """Note where the router sends the next request while nothing is under way."""
        cls._alone = alone


@contextmanager
def no_hash() -> Iterator[Hint | None]:
    """Leave the plug-in as it is."""
    yield None


@contextmanager
def smg_ring() -> Iterator[Hint | None]:
    """Give SMG's plug-ins the router's ring."""
    with _ring_in(smg) as hint:
        yield hint


@contextmanager
def production_stack_ring() -> Iterator[Hint | None]:
    """Give production-stack's plug-in the router's ring."""
    with _ring_in(production_stack) as hint:
        yield hint


@contextmanager
def vllm_ring() -> Iterator[Hint | None]:
    """Give vllm-router's plug-ins the router's ring."""
    with _ring_in(vllm_router) as hint:
        yield hint


@contextmanager
def _ring_in(module: ModuleType) -> Iterator[Hint]:
    with patch.object(module, "HashRing", _RouterRing):
        yield _RouterRing.tell


@contextmanager
def rendezvous() -> Iterator[Hint | None]:
    """Have the router's choice weigh the most among endpoints with equally many sessions."""
    picked: list[EndpointId] = []

    def tell(endpoint: EndpointId, _: EndpointId | None) -> None:
        picked[:] = [endpoint]

    with patch.object(vllm_router, "_weight", lambda _, endpoint: int(endpoint in picked)):
        yield tell
