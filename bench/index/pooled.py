"""Chains of block hashes to measure with, and block pools that tell an index what they hold."""

from collections.abc import Sequence

from epp.model.caches.choice import DEFAULT_MODEL, CacheSpec
from epp.model.prefix_index.index import PrefixIndex
from epp.model.prompts.hashing import BlockHash, extend

BLOCK = 16
"""Tokens of a block."""
_TOKEN_BYTES = 4


def chain(number: int, blocks: int) -> Sequence[BlockHash]:
    """Return the hashes of a conversation's blocks; another number, another conversation."""
    ids = bytes(blocks * BLOCK * _TOKEN_BYTES)
    return extend(number, ids, range(BLOCK, blocks * BLOCK + 1, BLOCK), _TOKEN_BYTES)


class Pooled:
    """One endpoint's pool of `blocks` blocks, and its slot in an index."""

    def __init__(self, index: PrefixIndex, blocks: int) -> None:
        self.index = index
        self.slot = index.add_slot()
        self.pool = CacheSpec(model=DEFAULT_MODEL, capacity=blocks * BLOCK, block=BLOCK).build()
        index.mark(self.slot, closed=True)

    def serve(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Let a prompt in and out again, and tell the index what came and what went."""
        pool, index = self.pool, self.index
        lease = pool.allocate(hashes, sizes, 0, len(hashes))
        if lease is None:
            raise ValueError("the pool is smaller than a prompt")
        pool.release(lease)
        stored, evicted = pool.take_stored(), pool.take_evicted()
        if evicted:
            index.remove(self.slot, evicted)
        if stored:
            index.add(self.slot, stored)
