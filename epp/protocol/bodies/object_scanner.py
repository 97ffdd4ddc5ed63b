"""Finds the objects under one JSON key, near the top level, in bytes as they pass."""

import re
from collections.abc import Sequence

KEY = b'"usage"'
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{)')
_UNDECIDED = re.compile(rb'"usage"\s*(:\s*)?$')
_SYMBOL = re.compile(rb'\\.?|["{}\[\]\n]', re.DOTALL)
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_TAIL = 64
"""A key that is further away from its object than this is not found if a chunk ends between."""
_MAX = 4096
"""If an object is still open after this many bytes at the end of a chunk, it is dropped, and so are
those found before it."""
_KEPT = 16
"""The last objects of one value, which are kept until its end shows how deep they were."""


class ObjectScanner:
    """Takes bytes in any pieces, and returns the objects under the key `"usage"`.

    They must contain only numbers and objects of numbers, as braces are counted. A text in JSON
    cannot contain the key's quotes unescaped, so a plain search finds the key.

    An object counts if at most `levels` objects and arrays enclose it. Their number is known when
    all are closed: at the end of the line with `lines` (server-sent events), else when `end` is
    called. Bytes before the first object cost only the search for the key.
    """

    __slots__ = ("_depth", "_found", "_levels", "_lines", "_open", "_quoted", "_rest", "_walking")

    def __init__(self, levels: int = 1, lines: bool = False) -> None:  # noqa: FBT001, FBT002 (a keyword costs 50 ns)
        self._levels = levels
        self._lines = lines
        self._rest = b""  # bytes that may be part of an object
        self._open = False  # whether it begins one
        self._walking = False  # whether an object of unknown depth was found
        self._depth = 0  # from that of the first one found
        self._quoted = False  # whether a text has begun
        self._found: list[tuple[int, bytes]] = []

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Take the next bytes; return the objects whose depth is now known."""
        data, self._rest = self._rest + chunk, b""
        settled: list[bytes] = []
        start = 0 if self._open else self._next(data, 0, settled)
        while start >= 0:
            end = _end(data, start)
            if end < 0:
                self._open = len(data) - start <= _MAX
                if self._open:
                    self._rest = data[start:]
                else:
                    self._forget()
                break
            self._open, self._walking = False, True
            self._found = [*self._found[1 - _KEPT :], (self._depth, data[start:end])]
            start = self._next(data, end, settled)
        return settled

    def end(self) -> Sequence[bytes]:
        """Return the objects whose depth is known with the end of the body."""
        settled: list[bytes] = []
        if not self._open and not self._quoted:
            self._settle(settled)
        return settled

    def _settle(self, settled: list[bytes]) -> None:
        """Everything is closed: the depth of an object is what was closed since it was found."""
        settled += [each for depth, each in self._found if 0 < depth - self._depth <= self._levels]
        self._forget()

    def _forget(self) -> None:
        self._found = []
        self._depth, self._walking, self._quoted = 0, False, False

    def _next(self, data: bytes, at: int, settled: list[bytes]) -> int:
        """Return where the next object begins; -1 if there is none yet, and keep its beginning."""
        while self._walking:
            symbol = _SYMBOL.search(data, at)
            if symbol is None:
                return -1
            at = symbol.end()
            if symbol[0] == b'"' and not self._quoted:
                if found := _OBJECT.match(data, symbol.start()):
                    return found.start(1)
                if _undecided(data, symbol.start()):
                    self._rest = data[symbol.start() :]
                    return -1
            elif symbol[0] == b"\\":  # the next chunk begins with what it escapes
                self._rest = symbol[0]
            self._pass(symbol[0], settled)
        if found := _OBJECT.search(data, at):
            return found.start(1)
        undecided = _UNDECIDED.search(data, max(at, len(data) - _TAIL))
        self._rest = data[undecided.start() :] if undecided else data[at:][-len(KEY) + 1 :]
        return -1

    def _pass(self, symbol: bytes, settled: list[bytes]) -> None:
        """Count what a symbol opens or closes; with `lines` a line break closes all."""
        if symbol == b'"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += _DEPTH.get(symbol, 0)
            if symbol == b"\n" and self._lines:
                self._settle(settled)


def _undecided(data: bytes, at: int) -> bool:
    """Whether the key may begin there, and go on in the next chunk."""
    length = len(data) - at
    return length <= _TAIL and (
        KEY.startswith(data[at:]) if length < len(KEY) else _UNDECIDED.match(data, at) is not None
    )


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
