"""The order in which vLLM's first engine (v0) evicts blocks that nobody uses.

Mirrors vLLM `vllm/core/evictor.py` (`LRUEvictor`): the block last accessed the longest ago goes;
of one access, the one with the most hashed tokens, that is to say, the deepest. As there, a heap
keeps entries that no longer count, and is rebuilt when there are too many.
"""

from heapq import heapify, heappop, heappush

from epp.model.caches.lease import Key

_SLACK = 64

Place = tuple[int, int, Key]
"""When a block was accessed, minus its hashed tokens, its key: the least goes first."""


class LruEvictor:
    """Blocks without references, by key. `step` counts accesses, `hashed` tokens to its end."""

    def __init__(self) -> None:
        self._places: dict[Key, Place] = {}
        self._order: list[Place] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: Key, step: int, hashed: int) -> None:
        """Put a block in its place, or in another than it had, unless that is of a later access."""
        if key in self._places and self._places[key][0] > step:
            return
        self._places[key] = place = (step, -hashed, key)
        heappush(self._order, place)
        if len(self._order) > 2 * len(self._places) + _SLACK:
            self._order = list(self._places.values())
            heapify(self._order)

    def remove(self, key: Key) -> None:
        """Take a block out, to be used or forgotten."""
        del self._places[key]

    def first(self) -> tuple[Key, int]:
        """Return the block that goes first, and when it was accessed; there must be one."""
        while self._places.get(self._order[0][-1]) is not self._order[0]:
            heappop(self._order)
        step, _, key = self._order[0]
        return key, step
