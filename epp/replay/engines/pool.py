"""The KV blocks of one engine by the rules of vLLM (`vllm/v1/core/block_pool.py`, 0.32).

A free block keeps its key until it is allocated again, so that the queue of free blocks is the
order of eviction too. Whole lists of blocks are moved at once: no rule depends on which number a
block has.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice


class KVBlocks:
    """`usable` blocks, numbered from 1: the null block is not among them.

    The keys of a list of blocks differ from one another. Without `caching` blocks have no keys.
    """

    __slots__ = (
        "_by_key",
        "_copies",
        "_free",
        "_held",
        "_keys",
        "_more_holders",
        "_outdated",
        "caching",
        "free_count",
        "usable",
    )

    def __init__(self, usable: int, *, caching: bool = True) -> None:
        self.usable = usable
        self.caching = caching
        self.free_count = usable
        self._free = deque(range(1, usable + 1))
        # A block that is taken out of the middle of the queue leaves its place there, which is
        # skipped later: so many of a block's places, the first ones, are such.
        self._outdated: dict[int, int] = {}
        self._held: set[int] = set()
        self._more_holders: dict[int, int] = {}  # of held blocks, beyond the first
        self._keys: dict[int, int] = {}
        self._by_key: dict[int, int] = {}
        # `BlockHashToBlockMap`: several blocks may have one key; the one registered first is found.
        self._copies: dict[int, list[int]] = {}

    @property
    def usage(self) -> float:
        """The share of blocks that are held (`BlockPool.get_usage`)."""
        return 1.0 - self.free_count / self.usable

    def cached_run(self, keys: Sequence[int], limit: int) -> list[int]:
        """Return the blocks of the longest cached run from the start of `keys[:limit]`."""
        run: list[int] = []
        find = self._by_key.get
        for key in islice(keys, limit):
            block = find(key)
            if block is None:
                break
            run.append(block)
        return run

    def held_among(self, blocks: Sequence[int]) -> int:
        """Return how many of `blocks` are held."""
        return len(self._held.intersection(blocks))

    def touch(self, blocks: Sequence[int]) -> None:
        """Hold cached blocks; those that were free can no longer be evicted."""
        again = self._held.intersection(blocks)
        for block in again:
            self._more_holders[block] = self._more_holders.get(block, 0) + 1
        if len(again) < len(blocks):
            outdated = self._outdated
            fresh = [block for block in blocks if block not in again]
            for block in fresh:
                outdated[block] = outdated.get(block, 0) + 1
            self._held.update(fresh)
            self.free_count -= len(fresh)
            if len(self._free) > 2 * self.usable:
                self._free = deque(self.free_order())
                outdated.clear()

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the front of the queue, and evict what they cached.

        Raises ValueError, and changes nothing, where fewer are free.
        """
        if count > self.free_count:
            raise ValueError(f"{count} blocks wanted, {self.free_count} free")
        taken = self._pop(count)
        self.free_count -= count
        self._held.update(taken)
        keys, by_key, copies = self._keys, self._by_key, self._copies
        for block in taken:
            key = keys.pop(block, None)
            if key is not None:
                if copies and key in copies:
                    self._forget_copy(key, block)
                else:
                    del by_key[key]
        return taken

    def register(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Make held blocks findable under their keys."""
        by_key = self._by_key
        if by_key.keys().isdisjoint(keys):
            by_key.update(zip(keys, blocks, strict=True))
        else:
            for key, block in zip(keys, blocks, strict=True):
                if key in by_key:
                    self._copies.setdefault(key, [by_key[key]]).append(block)
                else:
                    by_key[key] = block
        self._keys.update(zip(blocks, keys, strict=True))

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of a request's blocks, the last first: a chain's tail is evicted before its head.

        Blocks with keys go to the back of the queue, those without, which are the request's last,
        to the front.
        """
        more, keys = self._more_holders, self._keys
        if more and not more.keys().isdisjoint(blocks):
            released = [block for block in reversed(blocks) if not self._held_by_more(block)]
        else:
            released = list(reversed(blocks))
        self._held.difference_update(released)
        self.free_count += len(released)
        nameless = 0
        while nameless < len(released) and released[nameless] not in keys:
            nameless += 1
        if nameless:
            self._free.extendleft(reversed(released[:nameless]))
            del released[:nameless]
        self._free.extend(released)

    def free_order(self) -> list[int]:
        """Return the free blocks, the next to be evicted first."""
        skipped = dict(self._outdated)
        order: list[int] = []
        for block in self._free:
            if skipped.get(block):
                skipped[block] -= 1
            else:
                order.append(block)
        return order

    def key_of(self, block: int) -> int | None:
        """Return the key that a block is cached under."""
        return self._keys.get(block)

    def _pop(self, count: int) -> list[int]:
        pop, outdated = self._free.popleft, self._outdated
        taken: list[int] = []
        while len(taken) < count:
            block = pop()
            if block not in outdated:
                taken.append(block)
            elif outdated[block] == 1:
                del outdated[block]
            else:
                outdated[block] -= 1
        return taken

    def _held_by_more(self, block: int) -> bool:
        """Take one holder off a block that has several; False where it has one."""
        more = self._more_holders
        left = more.get(block, 0) - 1
        if left > 0:
            more[block] = left
        elif not left:
            del more[block]
        return left >= 0

    def _forget_copy(self, key: int, block: int) -> None:
        copies = self._copies[key]
        copies.remove(block)
        self._by_key[key] = copies[0]
        if len(copies) == 1:
            del self._copies[key]
