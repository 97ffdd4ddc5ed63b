"""The progress of runs: a bar on a terminal, otherwise lines for a log.

Without a terminal, there is a line for each run that has ended, and now and then one for all.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import NamedTuple, Self, TextIO

_BLOCKS = " ▏▎▍▌▋▊▉█"
_EIGHTHS = len(_BLOCKS) - 1
LINE_SECONDS = 30.0
"""A log gets a line as often as this."""
_DRAW_SECONDS = 1.0


class Requests(NamedTuple):
    """The requests of all runs, by their number: how many have ended, and how many there are."""

    ended: Sequence[int]
    sizes: Sequence[int]


class RunsBar:
    """Shows how far `total` runs are, on a stream (default: stderr).

    A run is known by its `label`. `requests` has the progress of runs that have not ended. Progress
    is shown again after each `pause`, in seconds, as is `monotonic`.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        requests: Requests | None = None,
        pause: float | None = None,
    ) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._monotonic = monotonic
        self._requests = requests
        self._live = self._stream.isatty()
        self._pause = pause or (_DRAW_SECONDS if self._live else LINE_SECONDS)
        self._began = monotonic()
        self._done: set[int] = set()
        self._label = ""
        self._over = Event()
        self._shown = Thread(target=self._show_on, daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._draw()
        self._shown.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._shown.join()
        if self._live:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def done(self, label: str, number: int | None = None) -> None:
        """Record that a run has ended; without a number, it is the next one."""
        self._done.add(len(self._done) if number is None else number)
        self._label = label
        if self._live:
            self._draw()
        else:
            self._write(label)

    def show(self) -> None:
        """Show how far all runs are."""
        if self._live:
            self._draw()
            return
        ended, size = self._progress()
        counted = "" if self._requests is None else f"{ended:,} of {size:,} requests, "
        self._write(f"{counted}{_left(ended, size, self._spent())} left")

    def _show_on(self) -> None:
        while not self._over.wait(self._pause):
            with suppress(OSError):  # nobody reads it: what ends a run finds that, too
                self.show()

    def _spent(self) -> float:
        return self._monotonic() - self._began

    def _progress(self) -> tuple[int, int]:
        """Return how much is done, and of how much: requests if they are counted, else runs."""
        if self._requests is None:
            return len(self._done), self._total
        both = enumerate(zip(*self._requests, strict=True))
        # A run that has ended may not have sent all (`--duration`).
        ended = sum(size if number in self._done else ended for number, (ended, size) in both)
        return ended, sum(self._requests.sizes)

    def _write(self, text: str) -> None:
        spent = _clock(self._spent())
        self._stream.write(f"[{len(self._done)}/{self._total}] {spent} {text}\n")
        self._stream.flush()

    def _draw(self) -> None:
        ended, size = self._progress()
        share = ended / max(size, 1)
        head = f"{len(self._done)}/{self._total} runs "
        tail = f" {share:4.0%}, {_left(ended, size, self._spent())} left  {self._label}"
        columns = shutil.get_terminal_size().columns
        bar = _bar(share, min(30, max(0, columns - len(head) - len(tail) - 1)))
        self._stream.write(f"\r\x1b[2K{(head + bar + tail)[: columns - 1]}")
        self._stream.flush()


def _left(ended: int, size: int, spent: float) -> str:
    return _clock(spent * (size - ended) / ended) if ended else "?"


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * _EIGHTHS)
    whole, rest = divmod(eighths, _EIGHTHS)
    return ("█" * whole + (_BLOCKS[rest] if rest else "")).ljust(width)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
