"""Restores the model's name in a response as it passes; changes no other byte.

The client reads the name that it sent. The model's name is the value of `model` at the top level
and in a top-level `response` object (OpenAI Responses API, streaming events) or `message` object
(Anthropic Messages API, `message_start`), nowhere else: the same key in generated text or in a
tool's arguments is content.

All requests wait while a response is scanned, so the scan is bounded: in a JSON response it ends
with the first name or after a megabyte, as engines write the model before the long parts (vLLM), or
behind an answer that is shorter (Anthropic's); in an event it ends with the name.

JSON is passed on as soon as its name or its end is there, since the body's own end may not be told:
Envoy sends none before trailers, and these only if the filter asks for them.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from epp.protocol.bodies.json_tokens import Path, Span, allowance, members

_NAMES: frozenset[Path] = frozenset(((b"model",), (b"response", b"model"), (b"message", b"model")))
_NAMES_AND_END: frozenset[Path] = _NAMES | {()}
_KEY = b'"model"'
_EVENT_COST = 8
"""The cost of scanning an event besides its tokens, in tokens."""
_QUOTE = ord('"')
_MAX_HELD = 1 << 20
"""Bytes of a response, or of a line of one, in which its name is looked for."""
_MAX_TOKENS = 10_000
"""Texts, brackets and colons of a response's piece that are looked at: up to 10 ms of work."""


def model_spans(data: bytes, left: Iterator[int] | None = None) -> Iterator[Span]:
    """Yield the byte ranges of the values of `model`, quotes included, in order.

    `data` is one JSON object; for anything else the result is empty or partial, and so it is for
    what `members` does not look at. Never raises.
    """
    return (span for _, span in members(data, _NAMES, left) if data[span[0]] == _QUOTE)


def replace_model(data: bytes, name: str) -> bytes:
    """Return a JSON object with every `model` replaced by `name`."""
    return _replaced(data, model_spans(data), name)


def looked_at() -> Iterator[int]:
    """Return how much of a response may be scanned between two turns of the event loop."""
    return allowance(_MAX_TOKENS)


def replace_first(data: bytes, name: str, left: Iterator[int]) -> bytes:
    """Return a response that is JSON with its `model`, the first one, replaced by `name`."""
    return _replaced(data, islice(model_spans(data[:_MAX_HELD], left), 1), name)


def replace_in_events(data: bytes, name: str, left: Iterator[int]) -> bytes:
    """Return lines of an event stream with the first `model` in the data of each replaced."""
    return _replaced(data, _event_spans(data, left), name)


def _event_spans(data: bytes, left: Iterator[int]) -> Iterator[Span]:
    end = 0
    while (key := data.find(_KEY, end)) >= 0 and tuple(islice(left, _EVENT_COST)):
        line = max(end, data.rfind(b"\n", end, key) + 1, data.rfind(b"\r", end, key) + 1)
        end = _line_end(data, key)
        # WHATWG HTML, "Interpreting an event stream": the space after the colon is optional.
        if data.startswith(b"data:", line):
            begin = line + len(b"data:")
            within = data[begin : min(end, begin + _MAX_HELD)]
            for start, stop in islice(model_spans(within, left), 1):
                yield begin + start, begin + stop


def _line_end(data: bytes, at: int) -> int:
    feed = data.find(b"\n", at)
    end = feed if feed >= 0 else len(data)
    carriage = data.find(b"\r", at, end)
    return carriage if carriage >= 0 else end


def _replaced(data: bytes, spans: Iterator[Span], name: str) -> bytes:
    value = json.dumps(name).encode()
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces += [data[at:start], value]
        at = end
    return b"".join([*pieces, data[at:]]) if pieces else data


class Restorer(Protocol):
    """Restores the client's model name in a response as its chunks pass."""

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Return the bytes to pass on after `chunk`; with `last` all the rest."""


class ModelRestorer:
    """Restores the client's model name in a response as its chunks pass.

    With `sse` the response is an event stream, and complete lines are passed on at once; else it is
    JSON, and passed on from its first name on. Only the part that must be scanned is held back.
    """

    __slots__ = ("_held", "_left", "_name", "_passing", "_size", "_sse")

    def __init__(self, name: str, *, sse: bool) -> None:
        self._name = name
        self._sse = sse
        self._held: list[bytes] = []
        self._left = looked_at()  # of JSON before its end is told
        self._size = 0
        self._passing = False  # the part after the scan

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Return the bytes to pass on after `chunk`; with `last` all the rest."""
        if not self._passing:
            return self._next(chunk, last=last)
        end = chunk.find(b"\n") + 1 if self._sse else 0
        if not end:
            return chunk
        self._passing = False
        return chunk[:end] + self._next(chunk[end:], last=last)

    def _next(self, chunk: bytes, *, last: bool) -> bytes:
        self._held.append(chunk)
        self._size += len(chunk)
        complete = last or self._size >= _MAX_HELD
        if self._sse:
            return self._lines(last=last) if complete or b"\n" in chunk else b""
        self._passing = complete
        if complete:
            return replace_first(self._release(), self._name, looked_at())
        return self._found() if len(self._held) == 1 or chunk.rstrip()[-1:] == b"}" else b""

    def _found(self) -> bytes:
        """Return the held part of a JSON response if its name, or its end, is in it."""
        data = self._release()
        for path, span in members(data, _NAMES_AND_END, self._left):
            if not path or data[span[0]] == _QUOTE:
                self._passing = True
                return _replaced(data, iter([span] if path else []), self._name)
        self._held, self._size = [data], len(data)
        return b""

    def _lines(self, *, last: bool) -> bytes:
        data = self._release()
        cut = len(data) if last else data.rfind(b"\n") + 1
        if len(data) - cut >= _MAX_HELD:
            cut, self._passing = len(data), True
        self._held, self._size = [data[cut:]], len(data) - cut
        return replace_in_events(data[:cut], self._name, looked_at())

    def _release(self) -> bytes:
        data = b"".join(self._held)
        self._held, self._size = [], 0
        return data
