"""Finds the objects of one JSON key in bytes that pass by."""

import re
from collections.abc import Sequence

KEY = b'"usage"'
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{)')
_UNDECIDED = re.compile(rb'"usage"\s*(:\s*)?$')
_TAIL = 64
"""A key that is further away from its object than this is not found where a chunk ends between."""
_MOST = 65_536
"""An object that goes on for longer when a chunk ends is given up."""


class ObjectScanner:
    """Fed with bytes in any pieces, it gives the objects that stand under the key `"usage"`.

    They must hold numbers and objects of numbers: their braces are counted. A text in JSON cannot
    contain the key's quotes unescaped, so that it is looked for as it is.
    """

    __slots__ = ("_open", "_rest")

    def __init__(self) -> None:
        self._rest = b""  # what was seen and may be part of one
        self._open = False  # whether it begins one

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Take the next bytes; return the objects that end in them."""
        data = self._rest + chunk if self._rest else chunk
        if not self._open and KEY not in data:
            self._rest = data[-len(KEY) + 1 :]
            return ()
        found = []
        end = 0
        while (start := 0 if self._open else self._start(data, end)) >= 0:
            end = _end(data, start)
            if end < 0:
                self._open = len(data) - start <= _MOST
                self._rest = data[start:] if self._open else b""
                break
            self._open = False
            found.append(data[start:end])
        return found

    def _start(self, data: bytes, at: int) -> int:
        """Return where the next object begins; -1 keeps what may still become one."""
        found = _OBJECT.search(data, at)
        if found:
            return found.start(1)
        undecided = _UNDECIDED.search(data, max(at, len(data) - _TAIL))
        self._rest = data[undecided.start() :] if undecided else data[at:][-len(KEY) + 1 :]
        return -1


def _end(data: bytes, start: int) -> int:
    """Return the offset behind the object that begins at `start`, or -1 while it is not whole."""
    depth = 0
    at = start
    while True:
        close = data.find(b"}", at)
        if close < 0:
            return -1
        depth += data.count(b"{", at, close) - 1
        if depth == 0:
            return close + 1
        at = close + 1
