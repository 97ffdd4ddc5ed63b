"""The output of `epp up`: lines, and on a terminal a live last line."""

import os
import time
from collections.abc import Iterable
from typing import TextIO

from epp.printable import printable

LOGGED_SECONDS = 10.0
_CLEAR = "\r\x1b[2K"


class Terminal:
    """Lines on a stream, on a terminal with a live last one; each is made printable."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._shown = ""
        self._printed, self._due = "", time.monotonic() + LOGGED_SECONDS

    def introduce(self, lines: Iterable[str]) -> None:
        """Print lines without the time, which people copy from."""
        text = "".join(f"{printable(line)}\n" for line in lines)
        self._write(f"{_CLEAR * self._live}{text}")

    def say(self, line: str) -> None:
        """Print a line; the live line stays below it. Elsewhere it begins with the time."""
        text = printable(line)
        if self._live:
            self._write(f"{_CLEAR}{text}\n{self._fitting(self._shown)}")
        else:
            self._write(f"{_now()} {text}\n")

    def show(self, line: str) -> None:
        """Show the live line; elsewhere print it, if it changed, once in ten seconds."""
        self._shown = line = printable(line)
        if self._live:
            self._write(_CLEAR + self._fitting(line))
        elif line != self._printed and time.monotonic() >= self._due:
            self._printed, self._due = line, time.monotonic() + LOGGED_SECONDS
            self._write(f"{_now()} {line}\n")

    def close(self) -> None:
        """End the last live line, and leave it where it is."""
        if self._live and self._shown:
            self._write("\n")
        self._shown = ""

    def _fitting(self, line: str) -> str:
        """Return the part of a line that fits on the terminal."""
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            width = 80
        return line[: max(1, width - 1)]

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # its reader has gone: serving goes on
            self._live, self._shown = False, ""


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")
