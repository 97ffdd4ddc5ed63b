"""Consistent hashing: endpoints at many points of a ring of 64-bit numbers.

A key belongs to the endpoint of the first point at or after it, so that an endpoint that comes or
goes moves no key between others (Karger et al. 1997).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise

from xxhash import xxh64_intdigest

from epp.model.endpoint import EndpointId
from epp.model.prompts.chain import Chain
from epp.model.request import InferenceRequest
from epp.policy.plugins import Subscribe, when_removed

_TEXT_BYTES_PER_TOKEN = 4
_USER = b"\n<user>"
"""The head of a user's message in canonical text (`Prompt`)."""


class HashRing:
    """Endpoints, each at `points_each` points: the hashes of its id with a number from 0.

    Endpoints leave the ring with the events that `subscribe` delivers.
    """

    def __init__(self, subscribe: Subscribe, points_each: int) -> None:
        self._points_each = points_each
        self._points: list[int] = []
        self._owners: dict[int, EndpointId] = {}
        self._endpoints: set[EndpointId] = set()
        when_removed(subscribe, self._forget)

    def add(self, endpoints: Iterable[EndpointId]) -> None:
        """Add the endpoints that are not there."""
        fresh = set(endpoints) - self._endpoints
        if not fresh:
            return
        self._endpoints |= fresh
        for endpoint in fresh:
            self._owners |= dict.fromkeys(self._points_of(endpoint), endpoint)
        self._points = sorted(self._owners)

    def walk(self, key: int) -> Iterator[EndpointId]:
        """Yield each endpoint once, in the order of the ring from a key on."""
        points, owners, seen = self._points, self._owners, set[EndpointId]()
        start = bisect_left(points, key)
        for offset in range(start - len(points), start):
            owner = owners[points[offset]]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == len(self._endpoints):
                    return

    def owner(self, key: int, among: Container[EndpointId]) -> EndpointId:
        """Return the first of some endpoints, one of which is there, from a key on."""
        return next(each for each in self.walk(key) if each in among)

    def _forget(self, endpoint: EndpointId) -> None:
        if endpoint in self._endpoints:
            self._endpoints.discard(endpoint)
            for point in self._points_of(endpoint):
                self._owners.pop(point, None)
            self._points = sorted(self._owners)

    def _points_of(self, endpoint: EndpointId) -> list[int]:
        names = [f"{endpoint}{number}" for number in range(self._points_each)]
        return [xxh64_intdigest(name.encode()) for name in names]


def prefix_key(chains: Sequence[Chain], tokens: int | None = None) -> int:
    """Return a hash of the first tokens of the first prompt, or of all; 0 without a prompt.

    It covers the last block that ends within them, or the first one, and all before it; for a
    prompt that is not longer, also the rest after its blocks. A prompt of less than a block counts
    whole.
    """
    if not chains:
        return 0
    chain = chains[0]
    if not chain.hashes:
        return chain.rest_digest
    most = chain.size if tokens is None else tokens * (1 if chain.exact else _TEXT_BYTES_PER_TOKEN)
    if chain.size <= most:
        return chain.hashes[-1] ^ chain.rest_digest
    return chain.hashes[max(0, bisect_right(chain.ends, most) - 1)]


def opening_key(request: InferenceRequest, chains: Sequence[Chain], characters: int) -> int:
    """Return a hash of the beginning of the user's first message; 0 if no block ends within it.

    It is the hash of the block with these characters, and so covers all that precedes them. The
    block is within the message, so that a conversation keeps its key. A prompt of less than a block
    counts whole.
    """
    if not chains:
        return 0
    chain = chains[0]
    if not chain.hashes:
        return chain.rest_digest
    start, end = _asked_first(request, chain)
    wanted = min(start + (characters // _TEXT_BYTES_PER_TOKEN if chain.exact else characters), end)
    block = bisect_left(chain.ends, wanted)
    if block == len(chain.ends) or chain.ends[block] > end:
        block -= 1
    return chain.hashes[block] if block >= 0 else 0


def _asked_first(request: InferenceRequest, chain: Chain) -> tuple[int, int]:
    """Return where the user's first message starts and ends in a prompt."""
    messages = list(pairwise((0, *chain.marks))) or [(0, chain.size)]
    if not chain.exact and request.prompts:
        data = request.prompts[0].data
        asked = (each for each in messages if data.startswith(_USER, each[0]))
        return next(asked, messages[0])
    # Tokens have no roles: an even number of messages begins with the system prompt.
    return messages[1 - len(messages) % 2]
