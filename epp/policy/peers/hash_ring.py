"""Consistent hashing: endpoints at many points of a ring of 64-bit numbers.

A key belongs to the endpoint of the first point at or after it, so that an endpoint that comes or
goes moves no key between others (Karger et al. 1997).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from xxhash import xxh64_intdigest

from epp.model.endpoint import EndpointId


class HashRing:
    """Endpoints, each at the points of `replicas` names: its id with a number from 0."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._points: list[int] = []
        self._owners: dict[int, EndpointId] = {}
        self._endpoints: set[EndpointId] = set()

    def __len__(self) -> int:
        return len(self._endpoints)

    def add(self, endpoints: Iterable[EndpointId]) -> None:
        """Add the endpoints that are not there."""
        fresh = set(endpoints) - self._endpoints
        if not fresh:
            return
        self._endpoints |= fresh
        for endpoint in fresh:
            self._owners |= dict.fromkeys(self._points_of(endpoint), endpoint)
        self._points = sorted(self._owners)

    def remove(self, endpoint: EndpointId) -> None:
        """Remove an endpoint."""
        if endpoint in self._endpoints:
            self._endpoints.discard(endpoint)
            for point in self._points_of(endpoint):
                self._owners.pop(point, None)
            self._points = sorted(self._owners)

    def walk(self, key: int) -> Iterator[EndpointId]:
        """Return each endpoint once, in the order of the ring from a key on."""
        points, owners, seen = self._points, self._owners, set[EndpointId]()
        start = bisect_left(points, key)
        for offset in range(start - len(points), start):
            owner = owners[points[offset]]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == len(self._endpoints):
                    return

    def _points_of(self, endpoint: EndpointId) -> list[int]:
        return [xxh64_intdigest(f"{endpoint}{number}".encode()) for number in range(self._replicas)]
