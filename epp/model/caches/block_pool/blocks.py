"""The blocks of one pool: which can be found, which are free, and how much space is left.

A hash has 64 bits. Sizes are in tokens and bounded, so that sums of them fit 64 bits too.
"""

from array import array
from collections.abc import Collection, Sequence
from operator import index
from typing import cast

from epp.model.caches.block_pool.free_queue import FreeQueue, KVCacheBlock
from epp.model.caches.content_changes import ContentChanges
from epp.model.prompts.hashing import BlockHash

LARGEST = (1 << 31) - 1
"""Tokens of a block, at most; larger numbers are clamped."""
MAX_TOKENS = 1 << 60
"""Tokens of anything, at most; larger numbers are clamped."""


class Blocks:
    """The blocks that hold content, by vLLM's verbs.

    `cached` has the blocks of each hash, in the order in which they were cached (vLLM
    `BlockHashToBlockMap`), `queue` those that no request holds. `count` is the number of all,
    including those without a hash; `blank_tokens` is space without content, below 0 after shrinking
    under load. `releases` is the number of the last release.
    """

    def __init__(self, capacity: int) -> None:
        self.cached: dict[BlockHash, list[KVCacheBlock]] = {}
        self.changes = ContentChanges(self.cached.__contains__)
        self.queue = FreeQueue()
        self.count = 0
        self.blank_tokens = capacity
        self.releases = 0

    @property
    def free_tokens(self) -> int:
        """Tokens that could be allocated."""
        return self.blank_tokens + self.queue.tokens

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add a reference to each block; a free one leaves the queue."""
        for block in blocks:
            if not block.ref_cnt:
                self.queue.remove(block)
            block.ref_cnt += 1

    def allocate(self, tokens: int) -> None:
        """Take space: first space without content, then from the head of the queue."""
        self.blank_tokens -= tokens
        while self.blank_tokens < 0 and (head := self.queue.head) is not None:
            self.evict(head)

    def cache_full_blocks(self, blocks: Sequence[tuple[BlockHash, int]]) -> list[KVCacheBlock]:
        """Add blocks in use, given by hash and size, so that they can be found."""
        added = [self.add(block_hash, size) for block_hash, size in blocks]
        self.changes.record_stored([each for each, _ in blocks if each not in self.cached])
        for (block_hash, _), block in zip(blocks, added, strict=True):
            self.cached.setdefault(block_hash, []).append(block)
        return added

    def add(self, block_hash: BlockHash | None, size: int) -> KVCacheBlock:
        """Add a block in use that cannot be found (yet)."""
        self.count += 1
        return KVCacheBlock(block_hash, size)

    def free(self, blocks: Sequence[KVCacheBlock], *, computed: bool = True) -> None:
        """Remove a reference from each block, the last first; append those that are free now."""
        self.releases += 1
        for block in reversed(blocks):
            block.computed |= computed
            block.ref_cnt -= 1
            if not block.ref_cnt:
                block.freed = self.releases
                self.queue.append(block)

    def evict(self, block: KVCacheBlock) -> None:
        """Drop a free block, wherever it is in the queue: its space has no content any more."""
        self.queue.remove(block)
        self.blank_tokens += block.size
        self.count -= 1
        if block.block_hash is None:
            return
        copies = self.cached[block.block_hash]
        copies.remove(block)
        if not copies:
            del self.cached[block.block_hash]
            self.changes.record_evicted([block.block_hash])

    # Generated blocks, which get their hashes late.

    def put_behind(self, block: KVCacheBlock, older: KVCacheBlock) -> None:
        """Free a new block, to be evicted right after `older`, which follows it in its chain."""
        block.ref_cnt, block.freed, block.computed = 0, older.freed, True
        self.queue.insert(block, older)

    def shorten(self, unhashed: list[KVCacheBlock], tokens: int) -> None:
        """Take tokens from the start of unhashed blocks; those that have none left go."""
        while tokens:
            first = unhashed[0]
            used = min(tokens, first.size)
            tokens -= used
            first.size -= used
            self.queue.tokens -= used if first.queued else 0
            if not first.size:
                del unhashed[0]
                self.count -= 1
                first.ref_cnt = 0
                if first.queued:
                    self.queue.remove(first)


def tokens_of(blocks: Collection[KVCacheBlock]) -> int:
    """Return the tokens of blocks together."""
    return sum([block.size for block in blocks])


def still_held(blocks: Sequence[KVCacheBlock]) -> list[KVCacheBlock]:
    """Return the blocks that are in use, or free and not evicted."""
    return [block for block in blocks if block.ref_cnt or block.queued]


def hashes_in(hashes: Sequence[BlockHash]) -> list[BlockHash]:
    """Return a copy of hashes.

    Raises `TypeError` if one is not an int, `OverflowError` if one does not fit 64 bits.
    """
    return cast("list[BlockHash]", array("Q", hashes).tolist())


def sizes_in(sizes: Sequence[int]) -> list[int]:
    """Return a copy of the sizes of blocks, each at most `LARGEST`.

    Raises `TypeError` if one is not an int, `OverflowError` if one is negative.
    """
    return [min(size, LARGEST) for size in array("Q", sizes)]


def tokens_in(given: int, most: int = MAX_TOKENS) -> int:
    """Return a number of tokens, clamped to 0..`most`; raises `TypeError` if it is not an int."""
    return max(0, min(index(given), most))
