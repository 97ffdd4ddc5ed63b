"""The KV blocks of one engine by the rules of vLLM (`vllm/v1/core/block_pool.py`, 0.32).

Blocks have no numbers: which one holds a key changes nothing. What is moved is extents, runs of
blocks that were filled one after another and that the same requests hold. That works because a
chain's tail is let go of, and so evicted, before its head: what is cached of a chain is always its
beginning.
"""

from collections.abc import Iterator, Sequence

import msgspec


class Extent:
    """The blocks `start` to `end` of a chain, held by this many requests or, by none, free."""

    __slots__ = ("end", "holders", "keys", "newer", "older", "open", "right", "start")

    def __init__(self, keys: Sequence[int], start: int, end: int, holders: int) -> None:
        self.keys = keys
        self.start = start
        self.end = end
        self.holders = holders
        self.open = False  # whether it ends where who filled it is: nothing else follows it
        self.right: Extent | None = None  # what was cut off; who held this then holds it too
        self.older = self.newer = self  # in the queue of free ones


class HeldBlocks(msgspec.Struct, eq=False):
    """The blocks of one request. `keys` are those of its chain, as far as it will ever get.

    It holds `count` blocks. The first `registered` of them have keys, and are in `extents`.
    """

    keys: Sequence[int] = ()
    extents: list[Extent] = []
    registered: int = 0
    count: int = 0


class KVBlocks:
    """`usable` blocks: the null block is not among them. Without `caching` blocks have no keys."""

    def __init__(self, usable: int, *, caching: bool = True) -> None:
        self.usable = usable
        self.caching = caching
        self.free_count = usable
        # A free block keeps its key until it is allocated again, so that the queue is the order of
        # eviction too. Blocks without keys are always before the others (`free_blocks`).
        self._blank = usable
        self._queue = Extent((), 0, 0, 0)  # its `newer` is the next to be evicted
        # By their first key. `BlockHashToBlockMap`: several blocks may have one key, and the one
        # registered first is found. Extents with the same first key are alike to their end.
        self._found: dict[int, list[Extent]] = {}

    def cached_run(self, keys: Sequence[int], limit: int) -> list[tuple[Extent, int]]:
        """Return the extents of the longest cached run of `keys[:limit]`, and where each ends."""
        run: list[tuple[Extent, int]] = []
        at = 0
        while at < limit:
            alike = self._found.get(keys[at])
            if alike is None:
                break
            at = _common(alike[0], keys, limit)
            run.append((alike[0], at))
            if at < alike[0].end:
                break
        return run

    def admit(self, held: HeldBlocks, run: Sequence[tuple[Extent, int]], blocks: int) -> bool:
        """Hold a cached run, if `blocks` more than it fit; False, and nothing changes, if not."""
        # `full_sequence_must_fit`; free blocks of the run leave the queue, too.
        free = sum(end - extent.start for extent, end in run if not extent.holders)
        if blocks > self.free_count - free:
            return False
        held.extents = [extent for extent, _ in run]
        held.registered = held.count = run[-1][1] if run else 0
        for extent, end in run:
            if end < extent.end:
                self._split(extent, end)
            if not extent.holders:
                self._unqueue(extent)
            extent.holders += 1
            extent.open = False
        self.free_count -= free
        return True

    def allocate(self, held: HeldBlocks, count: int) -> None:
        """Give `count` free blocks to a request, and evict what they cached. There are so many."""
        self.free_count -= count
        held.count += count
        wanted = count - self._blank
        self._blank = max(0, -wanted)
        while wanted > 0:
            wanted -= self._evict(wanted)

    def register(self, held: HeldBlocks, full: int) -> None:
        """Make a request's first `full` blocks findable under their keys."""
        keys, at = held.keys, held.registered
        while at < full:
            alike = self._found.get(keys[at])
            if alike is None:
                self._add(held, at, full)
                break
            end = _common(alike[0], keys, full)
            if end < alike[0].end:
                self._split(alike[0], end)
            alike[0].open = False
            copy = Extent(keys, at, end, 1)
            alike.append(copy)
            held.extents.append(copy)
            at = end
        held.registered = full

    def free(self, held: HeldBlocks) -> None:
        """Let go of a request's blocks, the last first: a chain's tail is evicted before its head.

        Those without keys, which are its last, are the next to be allocated.
        """
        nameless = held.count - held.registered
        self._blank += nameless
        self.free_count += nameless
        for extent in reversed(list(_parts(held))):
            extent.holders -= 1
            if not extent.holders:
                self.free_count += extent.end - extent.start
                extent.right = None
                self._enqueue(extent, self._queue)
        held.extents = []
        held.count = held.registered = 0

    def free_order(self) -> Iterator[int | None]:
        """Yield the keys of free blocks, the next to be evicted first; None for those without."""
        yield from [None] * self._blank
        extent = self._queue.newer
        while extent is not self._queue:
            yield from reversed(extent.keys[extent.start : extent.end])
            extent = extent.newer

    def _add(self, held: HeldBlocks, start: int, end: int) -> None:
        """Register blocks whose keys no others have."""
        if held.extents and held.extents[-1].open:
            held.extents[-1].end = end
            return
        added = Extent(held.keys, start, end, 1)
        added.open = True
        self._found[held.keys[start]] = [added]
        held.extents.append(added)

    def _split(self, extent: Extent, at: int) -> None:
        """Make a block the first of another extent, here and in those that are alike."""
        rights = []
        for left in self._found[extent.keys[extent.start]]:
            right = Extent(left.keys, at, left.end, left.holders)
            left.end = at
            if left.holders:
                left.right, right.right = right, left.right
            else:
                self._enqueue(right, left)
            rights.append(right)
        self._found[extent.keys[at]] = rights

    def _evict(self, most: int) -> int:
        """Evict up to this many blocks of one extent; return how many."""
        extent = self._queue.newer
        count = extent.end - extent.start
        alike = self._found[extent.keys[extent.start]]
        if count <= most:
            self._unqueue(extent)
            alike.remove(extent)
            if not alike:
                del self._found[extent.keys[extent.start]]
            return count
        if len(alike) > 1:
            self._split(extent, extent.end - most)
            return self._evict(most)
        extent.end -= most
        return most

    def _enqueue(self, extent: Extent, before: Extent) -> None:
        extent.older, extent.newer = before.older, before
        before.older.newer = before.older = extent

    def _unqueue(self, extent: Extent) -> None:
        extent.older.newer, extent.newer.older = extent.newer, extent.older


def _common(extent: Extent, keys: Sequence[int], limit: int) -> int:
    """Return where a chain whose key at the extent's start is the same is no longer like it."""
    known, low, high = extent.keys, extent.start + 1, min(extent.end, limit)
    if known[high - 1] == keys[high - 1]:
        return high
    while low < high:  # a key says that all before it are the same
        middle = (low + high) // 2
        if known[middle] == keys[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def _parts(held: HeldBlocks) -> Iterator[Extent]:
    """Yield the extents that a request holds, with what was cut off them meanwhile."""
    ends = [*[extent.start for extent in held.extents[1:]], held.registered]
    for extent, end in zip(held.extents, ends, strict=False):  # there may be none
        part: Extent | None = extent
        while part is not None and part.start < end:
            yield part
            part = part.right
