"""Simulated servers in virtual time that publish their load when vLLM does.

The scheduler, block pool and cost model are the simulator's. Many steps in a row that only decode
are computed at once. This file knows no router.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from model_server.simulator.cost import step_seconds
from model_server.simulator.scheduler import Chunk, Request, Sampled
from model_server.simulator.scheduler import Scheduler as Engine
from model_server.simulator.settings import Limits

from bench.accuracy.virtual import SPEED, Clock

_MOST_STEPS = 32
"""Steps that are computed at once."""
_ROOM = 64
"""Free blocks for each request, without which steps are taken one by one."""


class EngineLoad(NamedTuple):
    """Requests that wait and that run, and the share of blocks that these hold."""

    waiting: int = 0
    running: int = 0
    usage: float = 0.0


class Server:
    """One engine. `tell` hears of tokens: of each request's first and last, and some between."""

    def __init__(self, limits: Limits, clock: Clock, tell: Callable[[Sampled], None]) -> None:
        self.published = EngineLoad()
        self._engine = Engine(limits)
        self._clock = clock
        self._tell = tell
        self._inbox: list[Request] = []
        self._working = False
        self._ends: Sequence[float] = ()  # of the steps under way, all but the last one decoding

    @property
    def load(self) -> EngineLoad:
        """The load of this moment, which `published` becomes after a step."""
        engine = self._engine
        waiting = len(engine.waiting) + len(self._inbox)
        return EngineLoad(waiting, len(engine.running), engine.pool.usage)

    def submit(self, request: Request) -> None:
        """Take a request in. Raises ValueError where it could never fit."""
        # vLLM `EngineCore.run_busy_loop`: what comes during a step is queued after it.
        self._inbox.append(request)
        if not self._working:
            self._go_on()
        else:
            under_way = bisect_left(self._ends, self._clock.now) + 1
            if under_way < len(self._ends):
                self._wait_for(self._ends[:under_way])

    def _go_on(self) -> None:
        engine = self._engine
        for request in self._inbox:
            engine.add(request)
        self._inbox.clear()
        steps = self._decoding_steps()
        if steps > 1:
            work = [Chunk(each, each.computed, 1) for each in engine.running]
            self._wait_for(self._decoded(work, steps))
            return
        step = engine.schedule()
        self._working = bool(step)
        if step:
            end = self._clock.now + step_seconds(step, SPEED)
            self._wait_for([end], step)

    def _decoding_steps(self) -> int:
        """Say how many steps in a row will decode alone, the last of which may end requests."""
        engine, running = self._engine, self._engine.running
        if engine.waiting or not running or engine.pool.free_count < _ROOM * len(running):
            return 0
        if not all(each.generated for each in running):
            return 0
        return min(_MOST_STEPS, *(each.max_tokens - each.generated for each in running))

    def _decoded(self, work: Sequence[Chunk], steps: int) -> Sequence[float]:
        """Say when steps end that decode the same requests."""
        first = step_seconds(work, SPEED)
        more = SPEED.decode_ns_per_context_token * len(work) * 1e-9
        lengths = (first + more * number for number in range(steps))
        return list(accumulate(lengths, initial=self._clock.now))[1:]

    def _wait_for(self, ends: Sequence[float], step: list[Chunk] | None = None) -> None:
        self._ends = ends
        self._clock.at(ends[-1], partial(self._complete, ends, step))

    def _complete(self, ends: Sequence[float], step: list[Chunk] | None) -> None:
        if ends is not self._ends:
            return  # a request came meanwhile
        engine = self._engine
        if step is None:
            engine.decode(len(ends) - 1)
            step = engine.schedule()
        for sampled in engine.complete(step):
            self._tell(sampled)
        waiting, running = len(engine.waiting), len(engine.running)
        self.published = EngineLoad(waiting, running, engine.pool.usage)
        self._go_on()
