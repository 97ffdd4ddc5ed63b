"""The progress of runs: a bar on a terminal, else a line for each run that has ended."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

_LEAST_SECONDS = 0.1
"""Between two drawings of the bar."""
_BLOCKS = " ▏▎▍▌▋▊▉█"
_EIGHTHS = len(_BLOCKS) - 1


class RunsBar:
    """Shows how far `total` runs are, on a stream (default: stderr).

    Runs may be under way at the same time; each is known by its `label`. `monotonic` is in
    seconds.
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
        self._began = self._drawn = monotonic()
        self._done = 0
        self._shares: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._erase()

    def at(self, label: str, now: float, end: float) -> None:
        """Say that a run has come to `now` of about `end` virtual seconds."""
        self._shares[label] = min(max(now / end, 0.0), 1.0) if end > 0 else 0.0
        if self._live and self._monotonic() - self._drawn >= _LEAST_SECONDS:
            self._draw(f"{label}: {now:,.0f} of {end:,.0f} s")

    def done(self, label: str, note: str = "") -> None:
        """Say that a run has ended; `note` is what it came to, in a few words."""
        self._shares.pop(label, None)
        self._done += 1
        if self._live:
            self._draw(label)
            return
        spent = _clock(self._monotonic() - self._began)
        text = f"{label}: {note}" if note else label
        self._stream.write(f"[{self._done}/{self._total}] {spent} {text}\n")
        self._stream.flush()

    def _draw(self, text: str) -> None:
        self._drawn = self._monotonic()
        share = (self._done + sum(self._shares.values())) / max(self._total, 1)
        spent = self._drawn - self._began
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
