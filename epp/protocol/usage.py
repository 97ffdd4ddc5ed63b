"""Finds the usage object in a response as its bytes pass by, and decodes nothing else.

One scanner serves JSON and SSE, whatever the split: a generated text cannot contain the bytes
`"usage"` unescaped, so the key can be searched for as it is. State is a tail of a few bytes
between chunks, or the part of the object seen so far. This file knows no transport.
"""

import re

import msgspec

from epp.model.request import Usage
from epp.protocol.watch import KEY

try:
    from epp.native.watch import Watch
except ImportError:
    from epp.protocol.watch import Watch

_START = re.compile(rb'"usage"\s*:\s*(\{)')
_UNDECIDED = re.compile(rb'"usage"\s*(:\s*)?$')
_TAIL = 64
_MOST = 65_536
"""A usage object larger than this is not one."""
_MOST_TOKENS = 1 << 31


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Reported(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


_decoder = msgspec.json.Decoder(_Reported)


class UsageScanner(Watch):
    """Fed with the bytes of one response; `usage` is the last one that it saw, or None.

    A later report replaces what it names and keeps the rest, as APIs that split usage over
    several events need.
    """

    __slots__ = ("usage",)

    def __init__(self) -> None:
        super().__init__()
        self.usage: Usage | None = None

    def seen(self, data: bytes) -> None:
        """Read what may be usage."""
        at = 0
        while True:
            start = 0 if self.eager else self._find(data, at)
            if start < 0:
                return
            end = _object_end(data, start)
            if end < 0:
                self.eager = len(data) - start <= _MOST
                self.rest = data[start:] if self.eager else b""
                return
            self.eager = False
            self._take(data[start:end])
            at = end
            data = data[at:]
            at = 0

    def _find(self, data: bytes, at: int) -> int:
        """Return where the next usage object starts; -1 keeps what may still become one."""
        found = _START.search(data, at)
        if found:
            return found.start(1)
        undecided = _UNDECIDED.search(data, max(at, len(data) - _TAIL))
        self.rest = data[undecided.start() :] if undecided else data[-len(KEY) + 1 :]
        return -1

    def _take(self, raw: bytes) -> None:
        try:
            seen = _decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        before = self.usage or Usage()
        details = seen.prompt_tokens_details or seen.input_tokens_details
        cached = details.cached_tokens if details else None
        prompt = _first(seen.prompt_tokens, seen.input_tokens, before.prompt_tokens)
        generated = _first(seen.completion_tokens, seen.output_tokens, before.completion_tokens)
        if not all(0 <= tokens <= _MOST_TOKENS for tokens in (prompt, generated, cached or 0)):
            return
        if cached is not None and cached > prompt:
            self.usage = Usage(prompt, generated, before.cached_tokens, doubtful=True)
            return
        self.usage = Usage(prompt, generated, before.cached_tokens if cached is None else cached)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _object_end(data: bytes, start: int) -> int:
    """Return the offset after the object that opens at `start`, or -1 while it is incomplete.

    Usage objects hold numbers and objects of numbers, so braces can be counted.
    """
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
