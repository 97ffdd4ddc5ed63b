"""The progress of runs: a bar on a terminal, else a line for each run that has ended."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

_BLOCKS = " ▏▎▍▌▋▊▉█"
_EIGHTHS = len(_BLOCKS) - 1


class RunsBar:
    """Shows how far `total` runs are, on a stream (default: stderr).

    A run is known by its `label`. `monotonic` is in seconds.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._monotonic = monotonic
        self._live = self._stream.isatty()
        self._began = monotonic()
        self._done = 0

    def __enter__(self) -> Self:
        if self._live:
            self._draw("")
        return self

    def __exit__(self, *error: object) -> None:
        self._erase()

    def done(self, label: str) -> None:
        """Say that a run has ended."""
        self._done += 1
        if self._live:
            self._draw(label)
            return
        spent = _clock(self._monotonic() - self._began)
        self._stream.write(f"[{self._done}/{self._total}] {spent} {label}\n")
        self._stream.flush()

    def _draw(self, text: str) -> None:
        share = self._done / max(self._total, 1)
        spent = self._monotonic() - self._began
        left = _clock(spent / share - spent) if share > 0 else "?"
        head = f"{self._done}/{self._total} runs "
        tail = f" {share:4.0%}, {left} left  {text}"
        columns = shutil.get_terminal_size().columns
        bar = _bar(share, min(30, max(0, columns - len(head) - len(tail) - 1)))
        self._stream.write(f"\r\x1b[2K{(head + bar + tail)[: columns - 1]}")
        self._stream.flush()

    def _erase(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * _EIGHTHS)
    whole, rest = divmod(eighths, _EIGHTHS)
    return ("█" * whole + (_BLOCKS[rest] if rest else "")).ljust(width)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
