"""Where `epp up` speaks: lines, and on a terminal a last line that stays and changes."""

import os
import time
from typing import TextIO

LOGGED_SECONDS = 10.0
_CLEAR = "\r\x1b[2K"


class Terminal:
    """Lines on a stream, of which a terminal's last one is live."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._shown = ""
        self._printed, self._due = "", time.monotonic() + LOGGED_SECONDS

    def introduce(self, text: str) -> None:
        """Print lines as they are, which people copy from."""
        self._write(f"{_CLEAR * self._live}{text}\n")

    def say(self, text: str) -> None:
        """Print lines; the live line stays below them. Elsewhere each begins with the time."""
        if self._live:
            self._write(f"{_CLEAR}{text}\n{self._fitting(self._shown)}")
            return
        for line in text.splitlines():
            self._write(f"{_now()} {line}\n" if line else "\n")

    def show(self, line: str) -> None:
        """Show the live line; elsewhere print it, where it changed, once in ten seconds."""
        self._shown = line
        if self._live:
            self._write(_CLEAR + self._fitting(line))
        elif line != self._printed and time.monotonic() >= self._due:
            self._printed, self._due = line, time.monotonic() + LOGGED_SECONDS
            self._write(f"{_now()} {line}\n")

    def close(self) -> None:
        """Leave the last live line where it is, with an end."""
        if self._live and self._shown:
            self._write("\n")
        self._shown = ""

    def _fitting(self, line: str) -> str:
        """Return what fits on one line of the terminal."""
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            width = 80
        return line[: max(1, width - 1)]

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # whoever read it has gone: serving goes on
            self._live, self._shown = False, ""


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")
