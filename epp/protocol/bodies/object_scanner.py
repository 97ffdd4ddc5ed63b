"""Finds the objects under one JSON key, near the top level, in bytes as they pass."""

import re
from collections.abc import Sequence

from epp.protocol.bodies.json_tokens import TEXT, TEXT_REST

KEY = b'"usage"'
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{)')
_UNDECIDED = re.compile(rb'"usage"\s*(:\s*)?$')
_TOKEN = re.compile(rb'"usage"\s*:\s*(\{)|' + TEXT + rb"|\\.|[{}\[\]\n]", re.DOTALL)
_TEXT_REST = re.compile(TEXT_REST, re.DOTALL)
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
        data = self._rest + chunk if self._rest else chunk
        if not self._open and not self._walking and KEY not in data:
            self._rest = data[-len(KEY) + 1 :]
            return ()
        settled: list[bytes] = []
        start = 0 if self._open else self._next(data, 0, settled)
        while start >= 0:
            end = _end(data, start)
            if end < 0:
                self._open = len(data) - start <= _MAX
                self._rest = data[start:] if self._open else b""
                if not self._open:
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
        if not self._walking:
            return self._start(data, at)
        if self._quoted and (at := self._text_end(data, at)) < 0:
            return -1
        return self._walk(data, at, settled)

    def _walk(self, data: bytes, at: int, settled: list[bytes]) -> int:
        """As `_next`, if one was found before in the same value, and no text has begun."""
        seen = at
        for token in _TOKEN.finditer(data, at):
            symbol, seen = token[0], token.end()
            if token.lastindex == 1:
                return token.start(1)
            if symbol[:1] == b'"':
                if (symbol == KEY or not token.lastindex) and _undecided(data, token.start()):
                    self._rest = data[token.start() :]
                    return -1
                if not token.lastindex:
                    return self._text_end(data, token.start() + 1)
            elif symbol == b"\n" and self._lines:
                self._settle(settled)
                return self._start(data, seen)
            self._depth += _DEPTH.get(symbol, 0)
        self._rest = _lone_backslash(data, seen)
        return -1

    def _text_end(self, data: bytes, at: int) -> int:
        """Return the position after the text that continues there; -1 while it is not complete."""
        rest = _TEXT_REST.match(data, at)
        self._quoted = rest is None or not rest.lastindex
        if rest is not None and rest.lastindex:
            return rest.end()
        self._rest = _lone_backslash(data, at)
        return -1

    def _start(self, data: bytes, at: int) -> int:
        """As `_next`, if none was found before in the same value."""
        found = _OBJECT.search(data, at)
        if found:
            return found.start(1)
        undecided = _UNDECIDED.search(data, max(at, len(data) - _TAIL))
        self._rest = data[undecided.start() :] if undecided else data[at:][-len(KEY) + 1 :]
        return -1


def _undecided(data: bytes, at: int) -> bool:
    """Whether the key may begin there, and go on in the next chunk."""
    length = len(data) - at
    return length <= _TAIL and (
        KEY.startswith(data[at:]) if length < len(KEY) else _UNDECIDED.match(data, at) is not None
    )


def _lone_backslash(data: bytes, at: int) -> bytes:
    """Return the backslash at the end of `data[at:]` that escapes the next byte, if any."""
    rest = data[at:]
    return b"\\" if (len(rest) - len(rest.rstrip(b"\\"))) % 2 else b""


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
