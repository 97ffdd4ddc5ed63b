"""The evictor of vLLM's first engine (v0): the order in which unreferenced blocks are evicted.

Mirrors vLLM `vllm/core/evictor.py` (`LRUEvictor`): the least recently accessed block is evicted,
and of several accessed together the one with the most hashed tokens, which is the deepest in its
chain. As there, stale entries stay in a heap, which is rebuilt when there are too many.
"""

from heapq import heapify, heappop, heappush

from epp.model.caches.lease import Key
from epp.model.invariants import check

_SLACK = 64

_Entry = tuple[int, int, Key]
"""A block's last access, its hashed tokens negated, its key: the lowest goes first."""


class LruEvictor:
    """Blocks without references, by key.

    `step` numbers a block's last access; `hashed` is vLLM's `num_hashed_tokens`, from the start
    of the chain to the block's end.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._heap: list[_Entry] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: Key, step: int, hashed: int) -> None:
        """Add a block, or move it to another access, unless it has a later one."""
        if key in self._entries and self._entries[key][0] > step:
            return
        self._entries[key] = entry = (step, -hashed, key)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def remove(self, key: Key) -> None:
        """Remove a block: it is referenced again, or evicted."""
        del self._entries[key]

    def first(self) -> tuple[Key, int]:
        """Return the block to evict first, and its last access. There must be one."""
        while self._entries.get(self._heap[0][-1]) is not self._heap[0]:
            heappop(self._heap)
        step, _, key = self._heap[0]
        return key, step

    def check_invariants(self) -> None:
        """Assert that the heap has all entries, and few stale ones. For tests."""
        check(
            all_in_heap={*self._entries.values()} <= {*self._heap},
            few_stale_entries=len(self._heap) <= 2 * len(self._entries) + _SLACK,
        )
