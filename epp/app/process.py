"""Settings of the process: its logging import, garbage collector, memory and signals.

Import this module before anything that imports structlog: structlog imports rich if it is
installed, for tracebacks that no service prints, and that is a fifth of the time of a start.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

_rich_loaded = "rich" in sys.modules
if not _rich_loaded:
    sys.modules["rich"] = None  # type: ignore[assignment]  # None: `import rich` raises ImportError
import structlog  # noqa: E402, F401 (imported here so that it does not find rich)

if not _rich_loaded:
    del sys.modules["rich"]

from epp.adapters.extproc.memory import resident_bytes, trim_freed_memory  # noqa: E402 (after structlog)

_SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter that the event loop asks for; by default 5 ms."""
_LEAST_PAUSE, _MOST_PAUSE = 0.1, 0.3
"""How long nothing is collected: at 10,000 requests a second the least is some 15 ms of work."""
_ROUND_SECONDS = 0.001
"""How long collecting what was made since may take before it is done more often."""
_ALL_SECONDS, _ALL_PAUSE = 60.0, 600
"""How often all objects are collected, at most, and how many times as long as that took."""
_LOOK_SECONDS, _MUCH_BYTES = 2.0, 32 << 20
"""How often it is looked whether the process has grown, and by how much it may have."""
_TRIM_PAUSE = 200
"""How many times as long as it took, at least, until freed memory is given back again."""


def freeze_long_lived_objects(*, collected: bool = False) -> None:
    """Exempt every object that exists from garbage collection: it lives as long as the process.

    What `collect_garbage` has `collected` is not looked at again, which at 1,000 endpoints would
    hold the loop for 50 ms.
    """
    gc.collect(1 if collected else 2)
    gc.freeze()


@contextmanager
def interpreter_shared() -> Iterator[None]:
    """Have threads release the interpreter soon: the loop asks for it after each look at sockets.

    A thread that reads a long body would otherwise make it wait several times a request.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def collect_garbage() -> None:
    """Collect garbage a little at a time until cancelled.

    CPython collects when this many more objects were made than freed, and then all that were made
    since, of which those of open streams are most: of 10,000 streams 0.2 s of work at once, for
    nothing, as exchanges are freed by their reference counts. What was made in a tenth of a second
    is little, and so is that of a longer time while the process idles; all objects are collected
    once a minute, or more rarely if that takes long.
    """
    gc.disable()
    pause, due = _LEAST_PAUSE, time.monotonic() + _ALL_SECONDS
    try:
        while True:
            await asyncio.sleep(pause)
            started = time.monotonic()
            if started < due:
                gc.collect(1)  # what is left belongs to the oldest generation from here on
                brief = time.monotonic() - started < _ROUND_SECONDS
                pause = min(_MOST_PAUSE, 2 * pause) if brief else _LEAST_PAUSE
                continue
            gc.collect()
            took = time.monotonic() - started
            due = started + max(_ALL_SECONDS, took * _ALL_PAUSE)
    finally:
        gc.enable()


async def give_back_freed_memory() -> None:
    """Return freed memory to the kernel while the process is larger than it was, until cancelled.

    Long bodies, texts that are tokenized, endpoints that go, and tables of blocks, which grow by
    being moved, leave holes in the heap, which would stay. What is in use cannot be told from what
    is freed, so that it is tried again and again, for half a percent of the time.
    """
    least, pause = resident_bytes(), _LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause, size = _LOOK_SECONDS, resident_bytes()
        least = min(least, size)
        if size > least + _MUCH_BYTES:
            began = time.monotonic()
            await asyncio.to_thread(trim_freed_memory)
            pause = max(pause, _TRIM_PAUSE * (time.monotonic() - began))


@contextmanager
def stop_signals(stop: asyncio.Event, at_once: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT; a second one ends the process at once.

    The status is then 128 plus the number of the signal, as shells report it; `at_once` is called
    before.
    """
    loop = asyncio.get_running_loop()
    received = count()

    def handle(number: int) -> None:
        if next(received):
            at_once()
            os._exit(128 + number)
        stop.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
