"""Simulated engines in virtual time: an hour of traffic takes as long as it takes to compute.

The scheduler, block pool and cost model are the simulator's. This file knows no router.
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from model_server.simulator.cost import step_seconds
from model_server.simulator.scheduler import Chunk, Request, Sampled
from model_server.simulator.scheduler import Scheduler as Engine
from model_server.simulator.settings import Limits, Speed

SPEED = Speed()


class Clock:
    """What is to happen, in order of time; equal times in the order of asking. In seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Do something at a time, at once where it is past."""
        heapq.heappush(self._agenda, (max(when, self.now), next(self._tickets), work))

    def run(self, over: Callable[[], bool]) -> None:
        """Go on until it is over, or nothing is left to do."""
        while self._agenda and not over():
            self.now, _, work = heapq.heappop(self._agenda)
            work()


class Pods:
    """Engines by their target. `tell` hears of each token, `idle` ones take no time."""

    def __init__(
        self,
        targets: Sequence[str],
        limits: Limits,
        clock: Clock,
        tell: Callable[[Sampled], None],
    ) -> None:
        self._engines = {target: Engine(limits) for target in targets}
        self._working: set[str] = set()
        self._clock = clock
        self._tell = tell

    def submit(self, target: str, request: Request) -> None:
        """Queue a request. Raises ValueError where it could never fit."""
        self._engines[target].add(request)
        if target not in self._working:
            self._working.add(target)
            self._step(target)

    def queues(self, target: str) -> tuple[int, int]:
        """Count the requests that wait and those that run."""
        engine = self._engines[target]
        return len(engine.waiting), len(engine.running)

    def _step(self, target: str) -> None:
        step = self._engines[target].schedule()
        if not step:
            self._working.discard(target)
            return
        end = self._clock.now + step_seconds(step, SPEED)
        self._clock.at(end, lambda: self._complete(target, step))

    def _complete(self, target: str, step: list[Chunk]) -> None:
        for sampled in self._engines[target].complete(step):
            self._tell(sampled)
        self._step(target)
