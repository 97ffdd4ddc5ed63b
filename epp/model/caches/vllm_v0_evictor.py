"""The evictor of vLLM's first engine (v0): the order in which unreferenced blocks are evicted.

Mirrors vLLM `vllm/core/evictor.py` (`LRUEvictor`): the least recently accessed block is evicted,
and of several accessed together the one with the most hashed tokens, which is the deepest in its
chain: vLLM counts whole blocks. As there, stale entries stay in a heap, which is rebuilt when there
are too many.
"""

from heapq import heapify, heappop, heappush

from epp.model.caches.contract import Key

_SLACK = 64

_Entry = tuple[int, int, Key]
"""A block's last access, its depth negated, its key: the lowest goes first."""


class LruEvictor:
    """Blocks without references, by key.

    `step` numbers a block's last access; `depth` is its place in its chain, from 1.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[_Entry] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: Key, step: int, depth: int) -> None:
        """Add a block, or move it to another access, unless it has a later one."""
        if key in self._entries and self._entries[key][0] > step:
            return
        self._entries[key] = entry = (step, -depth, key)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def remove(self, key: Key) -> None:
        """Remove a block: it is referenced again, or evicted."""
        del self._entries[key]

    def first(self) -> Key:
        """Return the block to evict first. There must be one."""
        while self._entries.get(self._heap[0][-1]) is not self._heap[0]:
            heappop(self._heap)
        return self._heap[0][-1]
