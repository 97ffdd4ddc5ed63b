"""A cache of the token ids of pieces of text, bounded in bytes.

The key is a short text itself, and a hash of a long one for which no other text can be found.
"""

import sys
from hashlib import blake2b
from operator import itemgetter
from typing import Final

from cachetools import LRUCache

_OVERHEAD: Final = 200
"""Bytes of an entry beside its key and ids."""
_SHORT: Final = 256
"""Characters of a text that is kept: a hash of one takes longer than the text takes memory."""
_HASH_BYTES: Final = 32


class TokenCache:
    """Token ids by text, the least recently used evicted first. For one thread only.

    Keys and ids together have at most `capacity` bytes.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: LRUCache[str | bytes, tuple[bytes, int]] = LRUCache(
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
        found = self._entries.get(_key(text))
        return None if found is None else found[0]

    def put(self, text: str, ids: bytes) -> None:
        """Add the ids of a text, unless it is cached or larger than the whole cache."""
        key = _key(text)
        size = sys.getsizeof(key) + sys.getsizeof(ids) + _OVERHEAD
        if size <= self._entries.maxsize and key not in self._entries:
            self._entries[key] = ids, size


def _key(text: str) -> str | bytes:
    if len(text) <= _SHORT:
        return text
    # JSON may hold half of a surrogate pair, which UTF-8 does not
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()
