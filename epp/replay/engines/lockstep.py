"""When steps end: those of one engine, or of several that step together."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from epp.replay.simulation.clock import Clock

if TYPE_CHECKING:  # it imports this module
    from epp.replay.engines.engine import Engine


class Lockstep:
    """Ranks of one server that step together: a step ends when the slowest rank's does.

    vLLM runs the data-parallel ranks of a mixture-of-experts model this way
    (`vllm/v1/engine/core.py`, `DPEngineCoreProc`). A single engine is a single rank.
    """

    def __init__(self, clock: Clock, ranks: Sequence["Engine"]) -> None:
        self._clock = clock
        self._ranks = ranks
        self._plan = 0  # counts what was planned: what was planned before is void
        self._steps = 0  # under way; 0: idle
        self._start = self._first = self._growth = self._late = 0.0
        self._wakes = 0.0  # nothing begins before

    @property
    def ended(self) -> int:
        """How many of the steps that are under way together have ended."""
        return self._under_way() - 1 if self._steps else 0

    @property
    def left(self) -> float:
        """The seconds until the step under way ends; 0 while nothing is."""
        if not self._steps:
            return 0.0
        return max(0.0, self._end_of(self._under_way()) + self._late - self._clock.now)

    def wake(self) -> None:
        """Look for work: now, or after the current step."""
        if not self._steps:
            self._clock.at(max(self._clock.now, self._wakes), partial(self._go_on, self._plan))
        elif (steps := self._under_way()) < self._steps:
            self._wait_for(steps)

    def stall(self, seconds: float) -> None:
        """Do nothing for this many seconds from now; ranks that all ask for it wait together."""
        begins = max(self._wakes, self._clock.now)
        self._wakes = max(begins, self._clock.now + seconds)
        if self._steps:
            steps = self._under_way()
            self._late += self._wakes - begins
            self._wait_for(steps)

    def drop(self) -> None:
        """Forget what is under way if no rank is stepping any more."""
        if not any(rank.stepping for rank in self._ranks):
            self._plan += 1
            self._steps = 0
            self._wakes = 0.0
            self.wake()

    def _under_way(self) -> int:
        """Return which of the steps is under way; a step that ends at this moment still is."""
        return bisect_left(range(1, self._steps), self._clock.now, key=self._end_of) + 1

    def _end_of(self, steps: int) -> float:
        return self._start + steps * (self._first + self._growth * (steps - 1) / 2)

    def _go_on(self, plan: int) -> None:
        """Begin steps, if nothing has begun meanwhile."""
        if plan != self._plan:
            return
        self._plan += 1
        if self._clock.now < self._wakes:
            self._clock.at(self._wakes, partial(self._go_on, self._plan))
            return
        begun = [(rank, takes) for rank in self._ranks if (takes := rank.begin()) is not None]
        if begun:
            slowest = max(takes for _, takes in begun)
            self._start, self._late = self._clock.now, 0.0
            self._first, self._growth = slowest
            steps = min(rank.steps_alike() for rank, _ in begun)
            self._wait_for(min(_before_overtaken(slowest, takes, steps) for _, takes in begun))

    def _wait_for(self, steps: int) -> None:
        self._plan += 1
        self._steps = steps
        self._clock.at(self._end_of(steps) + self._late, partial(self._complete, self._plan))

    def _complete(self, plan: int) -> None:
        if plan != self._plan:
            return
        steps = self._steps
        for rank in self._ranks:
            rank.end(steps)
        self._steps = 0
        self._go_on(plan)


def step_together(clock: Clock, ranks: Sequence["Engine"]) -> None:
    """Make engines that have nothing to do yet step together from now on."""
    lockstep = Lockstep(clock, ranks)
    for rank in ranks:
        rank.join(lockstep)


def _before_overtaken(slowest: tuple[float, float], other: tuple[float, float], steps: int) -> int:
    """Return for how many of the steps the slowest rank remains the slowest."""
    first, growth = slowest
    if other[1] <= growth:
        return steps
    return min(steps, int((first - other[0]) / (other[1] - growth)) + 1)
