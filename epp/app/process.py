"""Settings of the process: its logging import, garbage collector and signals.

Import this module before anything that imports structlog: structlog imports rich where it is
installed, for tracebacks that no service prints, and that is a fifth of the time of a start.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

_rich_loaded = "rich" in sys.modules
if not _rich_loaded:
    sys.modules["rich"] = None  # type: ignore[assignment]  # None: `import rich` raises ImportError
import structlog  # noqa: E402, F401 (imported here so that it does not find rich)

if not _rich_loaded:
    del sys.modules["rich"]

_GC_THRESHOLDS = (10_000, 5, 200)
"""Allocations before the youngest generation is collected; collections before the two older.

What is collected at once is what came to stay since: 50,000 objects take 5 ms, and of ten thousand
streams that are open all objects a tenth of a second.
"""


def freeze_long_lived_objects() -> None:
    """Exempt every object that exists from garbage collection, and collect the others rarely.

    What exists at the start lives as long as the process. Exchanges are freed by their reference
    counts, so the collector has little to do.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


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
