"""Simulated engines in virtual time: an hour of traffic takes as long as it takes to compute.

The scheduler, block pool and cost model are the simulator's. This file knows no router.
"""

from collections.abc import Callable, Sequence

from model_server.simulator.cost import step_seconds
from model_server.simulator.scheduler import Chunk, Request, Sampled
from model_server.simulator.scheduler import Scheduler as Engine
from model_server.simulator.settings import Limits, Speed

from epp.replay.simulation.clock import Clock

SPEED = Speed()


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
        """Queue a request. Raises ValueError if it could never fit."""
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
