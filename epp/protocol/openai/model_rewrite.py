"""Replaces the model's name in a body, and the priority in a request; changes no other byte.

In a request before it is forwarded; in a response as it passes, so that the client reads the name
that it sent. The model's name is the value of `model` at the top level and in a top-level
`response` object (OpenAI Responses API, streaming events) or `message` object (Anthropic Messages
API, `message_start`), nowhere else: the same key in generated text or in a tool's arguments is
content.
"""

import json
import re
from itertools import islice
from typing import Protocol

_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*+"|[{}\[\]:]', re.DOTALL)
_NUMBER = re.compile(rb"\s*(-?[0-9.eE+-]+|null)")
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_MOST_TOKENS = 50_000
"""Strings, brackets and colons that are looked at: some 15 ms of work."""
_MAX_HELD_BYTES = 8 << 20
"""A longer JSON response is passed on unchanged: it would have to be held completely."""

Span = tuple[int, int]


def model_spans(data: bytes) -> list[Span]:
    """Return the byte ranges of the values of `model`, quotes included, in order.

    `data` is one JSON object; for anything else the result is empty or partial, and so it is for
    what stands behind 50,000 strings, brackets and colons. Never raises.
    """
    spans: list[Span] = []
    path: list[bytes] = []  # the key under which each open object or array stands
    key = b""
    previous: re.Match[bytes] | None = None
    expects_value = False
    for token in islice(_TOKEN.finditer(data), _MOST_TOKENS):
        symbol = token[0]
        if symbol == b":":
            key = _text(previous[0]) if previous else b""
            expects_value = True
        elif symbol in (b"{", b"["):
            path.append(key if symbol == b"{" else b"[")
            key, expects_value = b"", False
        elif symbol in (b"}", b"]"):
            if path:
                path.pop()
            expects_value = False
        elif expects_value:
            expects_value = False
            number = previous is not None and data[previous.end() : token.start()].strip()
            if key == b"model" and _is_model(path) and not number:
                spans.append(token.span())
        previous = token
    return spans


def _is_model(path: list[bytes]) -> bool:
    return path in ([b""], [b"", b"response"], [b"", b"message"])


def _text(quoted: bytes) -> bytes:
    if b"\\" not in quoted:
        return quoted[1:-1]
    try:
        return str(json.loads(quoted)).encode()
    except ValueError:
        return b""


def replace_model(data: bytes, name: str) -> bytes:
    """Return `data` with every `model` replaced by `name`."""
    value = json.dumps(name).encode()
    pieces = []
    at = 0
    for start, end in model_spans(data):
        pieces += [data[at:start], value]
        at = end
    return b"".join([*pieces, data[at:]])


def priority_spans(data: bytes) -> list[Span]:
    """Return the byte ranges of the numbers under `priority` at the top level, in order.

    `data` is as in `model_spans`.
    """
    spans: list[Span] = []
    depth = 0
    previous = b""
    for token in islice(_TOKEN.finditer(data), _MOST_TOKENS):
        symbol = token[0]
        if symbol == b":" and depth == 1 and _text(previous) == b"priority":
            number = _NUMBER.match(data, token.end())
            if number is not None:
                spans.append(number.span(1))
        depth += _DEPTH.get(symbol, 0)
        previous = symbol
    return spans


class Restorer(Protocol):
    """Restores the client's model name in a response as its chunks pass."""

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Return the bytes to pass on after `chunk`; with `last` all that are held."""


class ModelRestorer:
    """Restores the client's model name in a response as its chunks pass.

    With `sse` the response is an event stream, and complete lines are passed on at once; else it
    is JSON, and passed on at its end.
    """

    __slots__ = ("_held", "_name", "_passing", "_size", "_sse")

    def __init__(self, name: str, *, sse: bool) -> None:
        self._name = name
        self._sse = sse
        self._held: list[bytes] = []
        self._size = 0
        self._passing = False

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Return the bytes to pass on after `chunk`; with `last` all that are held."""
        if self._passing:
            return chunk
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size > _MAX_HELD_BYTES:
            self._passing = True
            return self._release()
        if self._sse:
            return self._lines(last=last)
        return replace_model(self._release(), self._name) if last else b""

    def _lines(self, *, last: bool) -> bytes:
        if not last and b"\n" not in self._held[-1]:
            return b""
        data = self._release()
        cut = len(data) if last else data.rfind(b"\n") + 1
        if cut < len(data):
            self._held, self._size = [data[cut:]], len(data) - cut
        return b"".join(map(self._line, data[:cut].splitlines(keepends=True)))

    def _release(self) -> bytes:
        data = b"".join(self._held)
        self._held, self._size = [], 0
        return data

    def _line(self, line: bytes) -> bytes:
        return replace_in_line(line, self._name)


def replace_in_line(line: bytes, name: str) -> bytes:
    """Return a line of an event stream with every `model` in its data replaced by `name`."""
    # WHATWG HTML, "Interpreting an event stream": the space after the colon is optional.
    if line.startswith(b"data:") and b'"model"' in line:
        return replace_model(line, name)
    return line
