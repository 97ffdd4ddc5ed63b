"""One pod's KV block pool: allocates, touches, frees and evicts as vLLM v1 does.

Mirrors vLLM 0.32 `vllm/v1/core/block_pool.py`, `kv_cache_manager.py` and
`FreeKVCacheBlockQueue`: lookup is the longest cached run from the start; admission touches the
hits, then takes new blocks from the head of the free queue, whose old content is evicted only
then, and registers all full blocks at once; a request that does not fit holds nothing; blocks
are freed in reverse order, hashed ones to the tail of the queue, others to its head; equal blocks
are not merged; recency is the time of the last release.

The unit is a token, so that blocks may differ in size: with equal sizes, and a capacity of
`(num_gpu_blocks - 1) * block_size`, the rules are vLLM's to the letter. Free blocks without a
hash are interchangeable and always ahead of the others, so they are a number, not a queue.
"""

from collections import OrderedDict
from collections.abc import Sequence

from epp.model.blocks import BlockHash


class Block:
    """A run of KV cache. `hash` is None where its content cannot be looked up again."""

    __slots__ = ("hash", "refs", "size")

    def __init__(self, block_hash: BlockHash | None, size: int) -> None:
        self.hash = block_hash
        self.size = size
        self.refs = 1


class Lease:
    """What one request holds.

    Its blocks in order, the first `cached` of which it found, and `blank` tokens of blocks
    without a hash.
    """

    __slots__ = ("blank", "blocks", "cached")

    def __init__(self, blocks: list[Block], cached: int, blank: int) -> None:
        self.blocks = blocks
        self.cached = cached
        self.blank = blank


class BlockPool:
    """`capacity` is in tokens. Not thread-safe; one writer.

    Callers learn of changed content by `take_stored` and `take_evicted`.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blank = capacity  # free and without content; below 0 after shrinking under load
        self._queued = 0  # free with content
        self._queue: OrderedDict[Block, None] = OrderedDict()
        self._cached: dict[BlockHash, Block] = {}
        self._copies: dict[BlockHash, list[Block]] = {}
        self._stored: list[BlockHash] = []
        self._evicted: list[BlockHash] = []

    @property
    def capacity(self) -> int:
        """All that the pool can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, in tokens."""
        return self._blank + self._queued

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return tuple(self._cached)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        for count, block_hash in enumerate(hashes):
            if block_hash not in self._cached:
                return count
        return len(hashes)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> Lease | None:
        """Allocate a prompt: its full blocks and `blank` tokens of a last, partial one.

        `sizes` are in tokens, at least as many as `hashes`; only the first `lookup` blocks may
        hit. None: it does not fit now, nothing changed. A prompt larger than the whole pool is
        given an empty lease, for the engine will never hold it.
        """
        hits = self.match(hashes[:lookup])
        found = [self._cached[block_hash] for block_hash in hashes[:hits]]
        need = sum(sizes[hits : len(hashes)]) + blank
        idle = sum(block.size for block in found if not block.refs)
        if need > self.free - idle:
            whole = need + sum(block.size for block in found)
            return None if whole <= self._capacity else Lease([], 0, 0)
        for block in found:
            self._touch(block)
        self._take(need)
        blocks = found
        for block_hash, size in zip(hashes[hits:], sizes[hits:], strict=False):
            block = Block(block_hash, size)
            blocks.append(block)
            self._register(block_hash, block)
        return Lease(blocks, hits, blank)

    def grow(self, lease: Lease, tokens: int) -> None:
        """Add generated tokens: full blocks whose content nobody can name yet, but which age.

        What does not fit is left out: the engine would preempt a request instead.
        """
        tokens = min(tokens, self.free)
        if tokens > 0:
            self._take(tokens)
            lease.blocks.append(Block(None, tokens))

    def release(self, lease: Lease) -> None:
        """Free what a request holds, last block first."""
        self._blank += lease.blank
        for block in reversed(lease.blocks):
            block.refs -= 1
            if not block.refs:
                self._queue[block] = None
                self._queued += block.size
        lease.blocks, lease.blank = [], 0
        if self._blank < 0:
            self._take(0)

    def revoke(self, lease: Lease) -> None:
        """Free what a request holds; what it did not find was never computed, and is dropped."""
        fresh = lease.blocks[lease.cached :]
        self.release(lease)
        for block in fresh:
            if not block.refs and block in self._queue:
                self._drop(block)
                self._blank += block.size

    def resize(self, capacity: int) -> None:
        """Change the capacity; blocks in use stay, and are owed until they are freed."""
        self._blank += capacity - self._capacity
        self._capacity = capacity
        if self._blank < 0:
            self._take(0)

    def take_stored(self) -> list[BlockHash]:
        """Return the hashes that became findable since the last call."""
        stored, self._stored = self._stored, []
        return stored

    def take_evicted(self) -> list[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _touch(self, block: Block) -> None:
        if not block.refs:
            del self._queue[block]
            self._queued -= block.size
        block.refs += 1

    def _take(self, tokens: int) -> None:
        """Take tokens from the head of the free queue, evicting what stands there."""
        self._blank -= tokens
        while self._blank < 0 and self._queue:
            block = next(iter(self._queue))
            self._drop(block)
            self._blank += block.size

    def _drop(self, block: Block) -> None:
        del self._queue[block]
        self._queued -= block.size
        if block.hash is None:
            return
        copies = self._copies.get(block.hash, [])
        if self._cached[block.hash] is not block:
            copies.remove(block)
        elif copies:
            self._cached[block.hash] = copies.pop(0)
        else:
            del self._cached[block.hash]
            self._evicted.append(block.hash)
        if not copies:
            self._copies.pop(block.hash, None)

    def _register(self, block_hash: BlockHash, block: Block) -> None:
        if block_hash in self._cached:
            self._copies.setdefault(block_hash, []).append(block)
        else:
            self._cached[block_hash] = block
            self._stored.append(block_hash)
