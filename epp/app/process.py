"""Settings of the process: its logging import, garbage collector, memory and signals.

Import this module before anything that imports structlog: structlog imports rich and colorama if
they are installed, for tracebacks that no service prints and for Windows, and that is a fifth of
the time of a start.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EADDRNOTAVAIL
from itertools import count

_hidden = [name for name in ("colorama", "rich") if name not in sys.modules]
for name in _hidden:
    sys.modules[name] = None  # type: ignore[assignment]  # None: its import raises ImportError
import structlog  # noqa: E402, F401 (imported here so that it does not find them)

for name in _hidden:
    del sys.modules[name]

from epp.errors import ConfigError, reason  # noqa: E402 (after structlog)
from epp.system.memory import resident_bytes, trim_freed_memory  # noqa: E402 (after structlog)

_SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while the event loop waits for it; default 5 ms."""
_MIN_PAUSE, _MAX_PAUSE = 0.1, 0.3
"""The pause between collections; after the least one, at 10,000 requests a second, a collection
takes some 15 ms."""
_ROUND_SECONDS = 0.001
"""If collecting the newest objects takes longer than this, it is done more often."""
_ALL_SECONDS, _ALL_PAUSE = 60.0, 600
"""The least time between collections of all objects: seconds, and a multiple of their CPU time."""
_LOOK_SECONDS, _MUCH_BYTES = 2.0, 32 << 20
"""How often the size of the process is checked, and the growth that is tolerated."""
_TRIM_PAUSE = 200
"""The least pause before freed memory is given back again, as a multiple of its CPU time."""


@contextmanager
def listening(flag: str, address: str) -> Iterator[None]:
    """Turn an error of binding a port into a `ConfigError` that names the port's flag."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, socket.gaierror) or getattr(error, "errno", 0) == EADDRNOTAVAIL:
            problem = f"cannot listen on `{address}`: {reason(error)}"
            raise ConfigError(problem, "--bind-address") from error
        raise ConfigError(f"cannot listen: {reason(error)}", flag) from error


@contextmanager
def file_of(setting: str) -> Iterator[None]:
    """Add the setting that names a file to a `ConfigError` whose place is that file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.problem, f"{setting} {error.place}".strip()) from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage: imports leave little, and would have all their objects examined again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_long_lived_objects(*, collected: bool = False) -> None:
    """Exempt all current objects from garbage collection: they live as long as the process.

    With `collected`, `collect_garbage` runs already, and objects that it has seen are not examined
    again, which would hold the loop for 50 ms at 1,000 endpoints.
    """
    gc.collect(1 if collected else 2)
    gc.freeze()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Make threads release the interpreter quickly, since the loop needs it after each poll.

    Otherwise a thread that reads a long body would make the loop wait several times per request.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def collect_garbage() -> None:
    """Collect garbage a little at a time until cancelled.

    By default, CPython waits until many more objects were made than freed, and then examines all of
    them at once. Most belong to open streams and are freed by their reference counts anyway: at
    10,000 streams this takes 0.2 s for nothing. A tenth of a second makes few objects, and so does
    a longer time in an idle process. All objects are examined once a minute, or less often if that
    takes much CPU time. CPU time counts, because a process that gets little of it makes as much
    garbage as any other.
    """
    gc.disable()
    pause, due = _MIN_PAUSE, time.monotonic() + _ALL_SECONDS
    try:
        while True:
            await asyncio.sleep(pause)
            started = time.monotonic()
            if started < due:
                gc.collect(1)  # survivors move to the oldest generation
                brief = time.monotonic() - started < _ROUND_SECONDS
                pause = min(_MAX_PAUSE, 2 * pause) if brief else _MIN_PAUSE
                continue
            before = time.thread_time()
            gc.collect()
            took = time.thread_time() - before
            due = started + max(_ALL_SECONDS, took * _ALL_PAUSE)
    finally:
        gc.enable()


async def give_back_freed_memory() -> None:
    """Return freed memory to the kernel whenever the process has grown, until cancelled.

    Long bodies, tokenized texts, removed endpoints, and tables that were moved to grow leave holes
    in the heap. How much of it is free is not known, so this tries repeatedly, for half a percent
    of a core.
    """
    least, pause = resident_bytes(), _LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause, size = _LOOK_SECONDS, resident_bytes()
        least = min(least, size)
        if size > least + _MUCH_BYTES:
            pause = max(pause, _TRIM_PAUSE * await asyncio.to_thread(_trim))


def _trim() -> float:
    """Give back what is free; return the CPU seconds that it took."""
    before = time.thread_time()
    trim_freed_memory()
    return time.thread_time() - before


@contextmanager
def stop_signals(stop: asyncio.Event, at_once: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set `stop` on the first SIGTERM, SIGINT or SIGHUP.

    A second SIGTERM or SIGINT ends the process at once. The status is then 128 plus the number of
    the signal, as in shells; `at_once` is called first. A second SIGHUP means nothing: of a
    terminal that is closed, both the shell and the kernel send one.
    """
    received = count()

    def handle(number: int) -> None:
        if next(received):
            if number == signal.SIGHUP:
                return
            at_once()
            os._exit(128 + number)
        stop.set()

    with signals_handled(handle):
        yield


@contextmanager
def signals_handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the number of each SIGTERM, SIGINT and SIGHUP within the context."""
    loop = asyncio.get_running_loop()
    signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup(1) has started it
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
