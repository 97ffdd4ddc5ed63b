"""The space of one block pool: what is in it, and how much of it could be given out.

What is held is in `blocks.py`, the order of eviction in `free_queue.py`; free blocks
without content, all alike and first to be taken, are a number.
"""

from collections.abc import Iterator, Sequence

from epp.model.caches.block_pool.blocks import BlockStore
from epp.model.caches.block_pool.bounds import LARGEST, names_in, tokens_in
from epp.model.caches.block_pool.free_queue import FreeQueue
from epp.model.prompts.hashing import BlockHash


class PoolSpace:
    """`capacity` is in tokens, and so is `block`, the engine's block size."""

    def __init__(self, capacity: int, block: int) -> None:
        self._capacity = tokens_in(capacity)
        self.block = block
        self._blank = self._capacity  # without content; below 0 after shrinking under load
        self._contents = BlockStore()
        self._queue = FreeQueue(self._contents)
        self._holed = 0  # blocks of releases up to this one may lack what stands before them

    def __len__(self) -> int:
        return len(self._contents.stamps)

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all that can be found; the pool must not change meanwhile."""
        return self._contents.findable()

    @property
    def block(self) -> int:
        """The engine's block size, in tokens."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        self._block = max(1, tokens_in(block, LARGEST))

    @property
    def capacity(self) -> int:
        """All that the pool can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, in tokens."""
        return self._blank + self._queue.tokens

    @property
    def closed(self) -> bool:
        """Whether no block is held without all that stand before it, each by its own hash.

        The rules alone keep it so: what a request holds it holds from the start of the chain, and
        gives back together, to be evicted from its end. Only what the engine says by itself can
        leave a hole (`store`, `discard`), and only blocks that are free by then can lack what
        stands before them: until they are evicted, or hit again together with it.
        """
        return self._queue.oldest > self._holed and not self._contents.spans

    @property
    def offload_tier(self) -> None:
        """None: the pool is the GPU's, and all is in it."""

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return list(self)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        return self._contents.find(names_in(hashes))[0]

    def resize(self, capacity: int) -> None:
        """Change the capacity; blocks in use stay, and are owed until they are freed."""
        before, self._capacity = self._capacity, tokens_in(capacity)
        self._blank += self._capacity - before
        self._take(0)

    def coarsen(self, blocks: int) -> None:
        """Hold at least `blocks` fewer, at the cost of precision about those longest free.

        Adjacent ones are merged, so that a chain that parts in between finds less; where that is
        not enough, the oldest are evicted.
        """
        target = max(0, len(self) - tokens_in(blocks))
        self._queue.merge(len(self) - target)
        while len(self) > target and (oldest := self._queue.next()) is not None:
            self._blank += self._queue.evict(self._contents.sizes[oldest] or 1)

    # What is new.

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""
        return self._contents.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        return self._contents.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return the hashes that stand for more or fewer blocks since the last call: how many."""
        return self._contents.take_merged()

    def _take(self, tokens: int) -> None:
        """Take tokens: blank ones, then from the head of the free queue, evicting what is there."""
        self._blank -= tokens
        if self._blank < 0:
            self._blank += self._queue.evict(-self._blank)
