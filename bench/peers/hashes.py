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
from epp.policy.peers import vllm_router
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
def ring_in(module: ModuleType) -> Iterator[Hint | None]:
    """Give the plug-ins of a module the router's ring."""
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
