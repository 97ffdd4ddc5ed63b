"""Block pools that tell an index what they hold, as the fleet has them."""

from collections.abc import Sequence

from bench.index.chains import BLOCK
from epp.model.caches.choice import DEFAULT_MODEL, CacheSpec
from epp.model.prefix_index.index import PrefixIndex
from epp.model.prompts.hashing import BlockHash


class Pooled:
    """One endpoint's pool of `blocks` blocks, and its slot in an index."""

    def __init__(self, index: PrefixIndex, blocks: int) -> None:
        self.index = index
        self.slot = index.open()
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
