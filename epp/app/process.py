"""Settings of the process: its logging import, garbage collector and signals.

Import this module before anything that imports structlog: structlog imports rich where it is
installed, for tracebacks that no service prints, and that is a fifth of the time of a start.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

_rich_loaded = "rich" in sys.modules
if not _rich_loaded:
    sys.modules["rich"] = None  # type: ignore[assignment]  # None: `import rich` raises ImportError
import structlog  # noqa: E402, F401 (imported here so that it does not find rich)

if not _rich_loaded:
    del sys.modules["rich"]

_YOUNG_SECONDS = 0.1
"""How often what was made since is collected: at 10,000 requests a second some 15 ms of work."""
_ALL_SECONDS, _ALL_PAUSE = 60.0, 600
"""How often all objects are collected, at most, and how many times as long as that took."""


def freeze_long_lived_objects() -> None:
    """Exempt every object that exists from garbage collection: it lives as long as the process."""
    gc.collect()
    gc.freeze()


async def collect_garbage() -> None:
    """Collect garbage a little at a time until cancelled.

    CPython collects when so many more objects were made than freed, and then all that were made
    since, of which those of open streams are most: of 10,000 streams 0.2 s of work at once, for
    nothing, as exchanges are freed by their reference counts. What was made in a tenth of a second
    is little; all objects are collected once a minute, or more rarely where that takes long.
    """
    gc.disable()
    due = time.monotonic() + _ALL_SECONDS
    try:
        while True:
            await asyncio.sleep(_YOUNG_SECONDS)
            started = time.monotonic()
            if started < due:
                gc.collect(1)  # what is left belongs to the oldest generation from here on
                continue
            gc.collect()
            took = time.monotonic() - started
            due = started + max(_ALL_SECONDS, took * _ALL_PAUSE)
    finally:
        gc.enable()


@contextmanager
def stop_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT; a second one ends the process at once.

    The status is then 128 plus the number of the signal, as shells report it.
    """
    loop = asyncio.get_running_loop()
    received = count()

    def handle(number: int) -> None:
        if next(received):
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
