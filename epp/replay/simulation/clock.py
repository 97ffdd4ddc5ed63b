"""Virtual time: calls in the order in which they are due."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_Due = tuple[float, int, Callable[[], None]]
"""The time, a number in the order of scheduling, and the call."""


class Clock:
    """`now` is in seconds, from 0. Calls due at the same time are made in the order they came."""

    __slots__ = ("_agenda", "_routine", "_tickets", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._agenda: list[_Due] = []
        self._routine: list[_Due] = []
        self._tickets = count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Call `do` at `when`, or next if that is past."""
        heappush(self._agenda, (max(when, self.now), next(self._tickets), do))

    def routinely_at(self, when: float, do: Callable[[], None]) -> None:
        """Call `do` at `when`, as a routine: a run does not continue for routines alone."""
        heappush(self._routine, (max(when, self.now), next(self._tickets), do))

    @property
    def until_next(self) -> float:
        """The seconds until a call is due that is not a routine; 0 if there is none."""
        return self._agenda[0][0] - self.now if self._agenda else 0.0

    def run(self, over: Callable[[], bool]) -> None:
        """Run until `over()` is true, or until only routines are left."""
        agenda, routine = self._agenda, self._routine
        while agenda and not over():
            queue = routine if routine and routine[0] < agenda[0] else agenda
            self.now, _, do = heappop(queue)
            do()
