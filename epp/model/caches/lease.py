"""What a request holds in a cache, and what is left of it once it was given back."""

from collections.abc import Sequence

Key = int
"""A block's name within one cache (`epp.model.caches.block_pool.blocks`)."""


class Lease:
    """What one request holds, and after its release its place in the free queue.

    Its blocks in order are `keys`, then `tail`, generated blocks without a name; they are `tokens`
    in all, beside `blank` tokens of space without content. It found `cached` blocks, as the
    first `found` keys.

    Released, `stamp` numbers the release (0 before), `keys` holds all blocks that became free by
    it, and the first `left` of these have not had their turn to be evicted. `whole` says that
    what is adjacent in `keys` is adjacent in the chain, and may be merged for want of memory.
    """

    __slots__ = (
        "blank",
        "cached",
        "found",
        "keys",
        "left",
        "stamp",
        "tail",
        "tokens",
        "whole",
    )

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, blank: int) -> None:
        self.keys = keys
        self.cached = cached
        self.found = cached
        self.tokens = tokens
        self.blank = blank
        self.tail: list[Key] = []
        self.stamp = 0
        self.left = 0
        self.whole = True


class PoolLease(Lease):
    """What a request holds in the block pool that has the number `pool`."""

    __slots__ = ("pool",)

    pool: int
