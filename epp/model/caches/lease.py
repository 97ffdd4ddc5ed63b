"""The lease that a cache gives a request on its blocks, and what remains of it when released."""

from collections.abc import Sequence
from typing import TypeVar

Key = int
"""A block's key within one cache: its hash, or what `epp.model.caches.block_pool.blocks` says."""


class Lease:
    """What one request holds, and after its release its place in the free queue.

    `keys` are its hashed blocks in the order of the prompt, `unhashed_keys` the generated blocks
    after them, which have no hash yet. Together they hold `tokens` tokens. `reserved_tokens` are
    tokens of space allocated beside them, without content. The prefix cache hit `cached` blocks,
    which are the first `hit_keys` keys: fewer where blocks were merged.

    After its release, `release_seq` is the number of that release (0 before), `keys` holds all
    blocks that it freed, and the first `evictable` of these have not been evicted yet.
    `contiguous` says that blocks adjacent in `keys` are adjacent in the chain, so that they may
    be merged to save memory.
    """

    __slots__ = (
        "cached",
        "contiguous",
        "evictable",
        "hit_keys",
        "keys",
        "release_seq",
        "reserved_tokens",
        "tokens",
        "unhashed_keys",
    )

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, reserved: int) -> None:
        self.keys = keys
        self.cached = cached
        self.hit_keys = cached
        self.tokens = tokens
        self.reserved_tokens = reserved
        self.unhashed_keys: list[Key] = []
        self.release_seq = 0
        self.evictable = 0
        self.contiguous = True


class PoolLease(Lease):
    """What a request holds in the block pool that has the number `pool`."""

    __slots__ = ("pool",)

    pool: int


Kind = TypeVar("Kind", bound=Lease)


def own(kind: type[Kind], lease: Lease) -> Kind:
    """Return `lease` as a `kind`. Raises `TypeError` where another kind of cache gave it."""
    if not isinstance(lease, kind):
        raise TypeError("a lease of another kind of cache")
    return lease
