"""A cache of what pieces of text are in tokens, bounded in bytes; the least used goes first.

The text itself is the key: two texts are never taken for one another.
"""

import sys
from collections import OrderedDict

_OVERHEAD = 200
"""Bytes of an entry beside its two values."""


class TokenCache:
    """Token ids by text, at most `capacity` bytes of both together. One thread only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0
        """Bytes in use."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, text: str) -> bytes | None:
        """Return the ids of a text, or None; it is then the last to go."""
        found = self._held.get(text)
        if found is not None:
            self._held.move_to_end(text)
        return found

    def put(self, text: str, ids: bytes) -> None:
        """Keep the ids of a text, at the cost of others."""
        if text in self._held:
            return
        self._held[text] = ids
        self.size += _cost(text, ids)
        while self.size > self._capacity:
            self.size -= _cost(*self._held.popitem(last=False))


def _cost(text: str, ids: bytes) -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + _OVERHEAD
