"""Virtual time: what is to happen, in the order in which it is due."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_Due = tuple[float, int, Callable[[], None]]
"""When, the number by which it was asked for, and what is to be called."""


class Clock:
    """`now` is in seconds, from 0. What is due at the same time happens in the order of asking."""

    __slots__ = ("_agenda", "_routine", "_tickets", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._agenda: list[_Due] = []
        self._routine: list[_Due] = []
        self._tickets = count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have `do` called at `when`, or next if that is past."""
        heappush(self._agenda, (max(when, self.now), next(self._tickets), do))

    def routinely_at(self, when: float, do: Callable[[], None]) -> None:
        """Have `do` called as long as there is anything else to do: nothing waits for it."""
        heappush(self._routine, (max(when, self.now), next(self._tickets), do))

    @property
    def until_next(self) -> float:
        """The seconds until something is due that is not a routine; 0 if nothing is."""
        return self._agenda[0][0] - self.now if self._agenda else 0.0

    def run(self, over: Callable[[], bool]) -> None:
        """Go on until `over()`, or until nothing is left to do but routine."""
        agenda, routine = self._agenda, self._routine
        while agenda and not over():
            queue = routine if routine and routine[0] < agenda[0] else agenda
            self.now, _, do = heappop(queue)
            do()
