"""The blocks of one pool: which can be found, which are free, and how much space is left."""

from collections.abc import Collection, Sequence

from epp.model.caches.block_pool.free_queue import Block, FreeQueue
from epp.model.caches.content_changes import ContentChanges
from epp.model.invariants import check
from epp.model.prompts.hashing import BlockHash


class Blocks:
    """The blocks that hold content, by vLLM's verbs.

    `cached` has the blocks of each hash, the one that was cached first first (vLLM
    `BlockHashToBlockMap`), `queue` those that nobody holds. `count` counts all, with those that
    have no hash; `blank_tokens` is space without content, below 0 after shrinking under load.
    `releases` is the number of the last release.
    """

    def __init__(self, capacity: int) -> None:
        self.cached: dict[BlockHash, list[Block]] = {}
        self.changes = ContentChanges(self.cached.__contains__)
        self.queue = FreeQueue()
        self.count = 0
        self.blank_tokens = capacity
        self.releases = 0

    @property
    def free_tokens(self) -> int:
        """Tokens that could be allocated."""
        return self.blank_tokens + self.queue.tokens

    def touch(self, blocks: Sequence[Block]) -> None:
        """Add a reference to each block; one that nobody held leaves the free queue."""
        for block in blocks:
            if block.ref_cnt:
                block.shared = True
            else:
                self.queue.remove(block)
            block.ref_cnt += 1

    def allocate(self, tokens: int) -> None:
        """Take space: what has no content first, then from the head of the queue."""
        self.blank_tokens -= tokens
        while self.blank_tokens < 0 and (head := self.queue.head) is not None:
            self.evict(head)

    def cache_full_blocks(self, blocks: Sequence[tuple[BlockHash, int]]) -> list[Block]:
        """Add blocks in use, given by hash and size, so that they can be found."""
        added = []
        for block_hash, size in blocks:
            block = self.add(block_hash, size)
            copies = self.cached.setdefault(block_hash, [])
            copies.append(block)
            if len(copies) == 1:
                self.changes.record_stored([block_hash])
            added.append(block)
        return added

    def add(self, block_hash: BlockHash | None, size: int) -> Block:
        """Add a block in use that cannot be found (yet)."""
        self.count += 1
        return Block(block_hash, size)

    def free(self, blocks: Sequence[Block]) -> None:
        """Remove a reference from each block, the last first; append those that nobody holds."""
        self.releases += 1
        for block in reversed(blocks):
            block.ref_cnt -= 1
            if not block.ref_cnt:
                block.freed = self.releases
                self.queue.append(block)

    def evict(self, block: Block) -> None:
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

    def put_behind(self, block: Block, older: Block) -> None:
        """Free a new block, to be evicted right after `older`, which follows it in its chain."""
        block.ref_cnt, block.freed = 0, older.freed
        self.queue.insert(block, older)

    def shorten(self, unhashed: list[Block], tokens: int) -> None:
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

    def check_invariants(self, holders: Collection[Block]) -> None:
        """Assert that the parts agree; `holders` are blocks in use, once for each reference."""
        used, queued = set(holders), list(self.queue)
        cached = {block for copies in self.cached.values() for block in copies}
        check(
            references=sum(block.ref_cnt for block in used) == len(holders),
            free_are_unused=not any(block.ref_cnt for block in queued),
            queued_tokens=self.queue.tokens == tokens_of(queued),
            count=self.count == len(used) + len(queued),
            found=cached == {each for each in (*used, *queued) if each.block_hash is not None},
        )


def tokens_of(blocks: Collection[Block]) -> int:
    """Return the tokens of blocks together."""
    return sum([block.size for block in blocks])


def still_held(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks that are in use, or free and not evicted."""
    return [block for block in blocks if block.ref_cnt or block.queued]
