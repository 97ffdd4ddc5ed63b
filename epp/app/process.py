"""The signals that end a process, in good order or at once."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count


@contextmanager
def stopping(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    heard = count()

    def hear(number: int) -> None:
        if next(heard):
            os._exit(128 + number)
        stop.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, hear, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
