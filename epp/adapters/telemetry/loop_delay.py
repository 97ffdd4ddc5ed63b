"""How long the event loop keeps everybody waiting, sampled by a timer of its own.

Whatever holds the loop makes the timer late: a callback that computes, a collection of garbage, a
thread that keeps the interpreter to itself. So does a machine that runs something else instead,
but that costs the process no CPU. What is late and is paid for was held by the process.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText, expose

IDLE_SECONDS: Final = 0.15
BUSY_SECONDS: Final = 0.025
"""Between samples. What held the loop is seen but for as much of it as lay before the timer."""
_BUSY_SHARE: Final = 0.005
"""Of a core: a process that uses more is sampled often, as a wake-up costs it little."""


class LoopDelay:
    """Histograms of one event loop, in seconds, a value for every sample."""

    def __init__(self) -> None:
        self.delay = Histogram(families.LOOP_BOUNDS)
        self.held = Histogram(families.LOOP_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Sample the running loop until `stop`."""
        self._sample_in(IDLE_SECONDS)

    def stop(self) -> None:
        """End sampling; what was seen stays."""
        if self._timer is not None:
            self._timer.cancel()

    def collect(self) -> Iterator[FamilyText]:
        """Yield both families."""
        yield from expose(families.LOOP_DELAY, [((), self.delay)])
        yield from expose(families.LOOP_HELD, [((), self.held)])

    def _sample_in(self, seconds: float) -> None:
        self._started, self._cpu = time.monotonic(), time.process_time()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._sample, seconds)

    def _sample(self, seconds: float) -> None:
        late = max(0.0, time.monotonic() - self._started - seconds)
        cpu = time.process_time() - self._cpu
        self.delay.observe(late)
        self.held.observe(min(late, cpu))
        busy = cpu > _BUSY_SHARE * (seconds + late)
        self._sample_in(BUSY_SECONDS if busy else IDLE_SECONDS)
