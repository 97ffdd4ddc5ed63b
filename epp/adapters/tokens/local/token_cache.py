"""A cache of the token ids of pieces of text, bounded in bytes.

The text itself is the key: no hash can take two texts for one another.
"""

import sys
from operator import itemgetter

from cachetools import LRUCache

_OVERHEAD = 200
"""Bytes of an entry beside its text and ids."""


class TokenCache:
    """Token ids by text, the least recently used evicted first. For one thread only.

    Texts and ids together have at most `capacity` bytes.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: LRUCache[str, tuple[bytes, int]] = LRUCache(
            capacity, getsizeof=itemgetter(1)
        )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes in use."""
        return int(self._entries.currsize)

    def get(self, text: str) -> bytes | None:
        """Return the ids of a text, which becomes the most recently used; None if not cached."""
        found = self._entries.get(text)
        return None if found is None else found[0]

    def put(self, text: str, ids: bytes) -> None:
        """Add the ids of a text, unless it is cached or larger than the whole cache."""
        size = sys.getsizeof(text) + sys.getsizeof(ids) + _OVERHEAD
        if size <= self._entries.maxsize and text not in self._entries:
            self._entries[text] = ids, size
