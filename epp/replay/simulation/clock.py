"""Virtual time: what is to happen, in the order in which it is due."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Clock:
    """`now` is in seconds, from 0. What is due at the same time happens in the order of asking."""

    __slots__ = ("_agenda", "_tickets", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have `do` called at `when`, or next where that is past."""
        heappush(self._agenda, (max(when, self.now), next(self._tickets), do))

    def run(self, over: Callable[[], bool]) -> None:
        """Go on until `over()`, or until nothing is left to do."""
        agenda = self._agenda
        while agenda and not over():
            self.now, _, do = heappop(agenda)
            do()
