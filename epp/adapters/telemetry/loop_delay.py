"""Measures how late the event loop runs its timers, by a timer of its own.

A callback that computes, a garbage collection, or a thread that keeps the interpreter makes the
timer late. So does a machine that runs something else, but then the process uses no CPU, and the
kernel counts how long the thread waited for a core. A delay counts as held by the process as far as
it used CPU and did not wait for a core.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText, expose
from epp.system.line_quota import LineQuota
from epp.system.logs import Log

_log = Log(__name__)

IDLE_SECONDS: Final = 0.5
BUSY_SECONDS: Final = 0.025
"""Seconds between samples. What holds the loop before the timer is due is not measured."""
_BUSY_SHARE: Final = 0.03
"""The share of a core above which a process is sampled often: a wake-up costs it little. Ten
endpoints that are polled, and nothing else, take a third of that."""

_NANO: Final = 1e-9
_SHORT_SECONDS: Final = 0.025
"""A delay too short for its cause to matter."""
_ASK_SECONDS: Final = 1.0
"""How old a wait for a core may be to explain a delay."""
_LOGGED_SECONDS: Final = 1.0
"""A delay that is logged: every request has waited as long."""
_LINE_SECONDS: Final = 60.0
"""Least seconds between two such lines."""


class LoopDelay:
    """Histograms of one event loop, in seconds, a value for every sample."""

    def __init__(self) -> None:
        self.delay = Histogram(families.LOOP_BOUNDS)
        self.held = Histogram(families.LOOP_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None
        self._core_wait = CoreWait()
        self._core_wait_seconds = 0.0
        self._ask_at = 0.0
        self._lines = LineQuota(_LINE_SECONDS)

    def start(self) -> None:
        """Sample the running loop, in its thread, until `stop`."""
        self._core_wait.open()
        self._core_waited(time.monotonic())
        self._sample_in(BUSY_SECONDS)

    def stop(self) -> None:
        """End sampling; the measurements stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._core_wait.close()

    def collect(self) -> Iterator[FamilyText]:
        """Yield both families."""
        yield from expose(families.LOOP_DELAY, [((), self.delay)])
        yield from expose(families.LOOP_HELD, [((), self.held)])

    def _sample_in(self, seconds: float) -> None:
        self._started, self._cpu = time.monotonic(), time.process_time()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._sample, seconds)

    def _sample(self, seconds: float) -> None:
        now = time.monotonic()
        late, cpu = now - self._started - seconds, time.process_time() - self._cpu
        if late < 0:
            late = 0.0
        self.delay.observe(late)
        if late > _SHORT_SECONDS or now > self._ask_at:
            waited = self._core_waited(now)
            held = max(0.0, min(late - waited, cpu))
            if late > _LOGGED_SECONDS:
                self._warn(now, late, cpu, waited)
        else:
            held = min(cpu, late)
        self.held.observe(held)
        busy = cpu > _BUSY_SHARE * (seconds + late)
        self._sample_in(BUSY_SECONDS if busy else IDLE_SECONDS)

    def _warn(self, now: float, late: float, cpu: float, waited: float) -> None:
        more = self._lines.take("late", now)
        if more is None:
            return
        if waited > late / 2:
            cause = "there was no core for it: see its CPU limit, and what else runs there"
        elif cpu > late / 2:
            cause = "it had too much to compute, or a plug-in did: /debug/pprof/profile shows what"
        else:
            cause = "it stood still: a plug-in waits for something, or the process was stopped"
        _log.warning("event_loop.late", seconds=round(late, 3), cause=cause, more=more)

    def _core_waited(self, now: float) -> float:
        """Return how long the thread has waited for a core since this was asked last."""
        before, self._core_wait_seconds = self._core_wait_seconds, self._core_wait.seconds()
        self._ask_at = now + _ASK_SECONDS
        return self._core_wait_seconds - before


class CoreWait:
    """How long the thread that opens it was ready to run but had no core, in seconds.

    It stays 0 if the kernel does not say (Linux: `Documentation/scheduler/sched-stats.rst`).
    """

    def __init__(self) -> None:
        self._file = -1

    def open(self) -> None:
        """Follow the calling thread."""
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def seconds(self) -> float:
        """Return the total since the thread began."""
        try:
            _, waited, _ = os.pread(self._file, 64, 0).split()  # ns on a core, ns waited, turns
            return int(waited) * _NANO
        except (OSError, ValueError):
            return 0.0
