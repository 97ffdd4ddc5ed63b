"""The free queue: blocks that no request holds and that have content, in the order of eviction."""

from collections.abc import Iterator

from epp.model.prompts.hashing import BlockHash


class KVCacheBlock:
    """A block of `size` tokens.

    `block_hash` is None if it was generated and has no hash yet. `ref_cnt` requests hold it; it is
    `computed` once one of its requests has ended. While it is free, `older` and `newer` are its
    neighbours in the queue, which it joined with the release number `freed`.
    """

    __slots__ = ("block_hash", "computed", "freed", "newer", "older", "ref_cnt", "size")

    def __init__(self, block_hash: BlockHash | None, size: int) -> None:
        self.block_hash = block_hash
        self.size = size
        self.ref_cnt = 1
        self.computed = False
        self.freed = 0
        self.older: KVCacheBlock | None = None
        self.newer: KVCacheBlock | None = None

    @property
    def shared(self) -> bool:
        """Whether it is not one request's alone: another one holds it, or has computed it."""
        return self.ref_cnt > 1 or self.computed

    @property
    def queued(self) -> bool:
        """Whether it is in the free queue."""
        return self.newer is not None


class FreeQueue:
    """A doubly linked list of blocks, of `tokens` tokens together."""

    def __init__(self) -> None:
        self.tokens = 0
        self._ends = KVCacheBlock(None, 0)  # `newer` is the head, `older` the tail
        self._ends.older = self._ends.newer = self._ends

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """Go from the head to the tail."""
        block = self._ends.newer
        while block is not None and block is not self._ends:
            yield block
            block = block.newer

    @property
    def head(self) -> KVCacheBlock | None:
        """The block that is evicted next; None if there is none."""
        head = self._ends.newer
        return None if head is self._ends else head

    def append(self, block: KVCacheBlock) -> None:
        """Add a block at the tail."""
        self.insert(block, self._ends.older or self._ends)

    def insert(self, block: KVCacheBlock, older: KVCacheBlock) -> None:
        """Add a block that is evicted right after `older`."""
        newer = older.newer or self._ends
        block.older, block.newer = older, newer
        older.newer = newer.older = block
        self.tokens += block.size

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out, wherever it is."""
        if block.older is None or block.newer is None:
            raise ValueError("the block is not in the queue")
        block.older.newer, block.newer.older = block.newer, block.older
        block.older = block.newer = None
        self.tokens -= block.size
