"""Changes a model's name where it stands in a body, and not one byte more.

A request is spliced before it leaves; a response is put right as it passes, so that the client
reads the name that it asked for. Only the `model` of the top level and of a top-level `response`
object (the events of the Responses API) is a model's name; the same word in a generated text or
in a tool's arguments is not. This file knows no transport.
"""

import json
import re

_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*+"|[{}\[\],:]', re.DOTALL)
_MOST = 16 << 20
"""A JSON response longer than this is passed on as it is: it would have to be held whole."""

Span = tuple[int, int]


def model_spans(data: bytes) -> list[Span]:
    """Return where the values of `model` lie (quotes included), in order.

    `data` is one JSON object; of anything else the answer is empty or partial, never an error.
    """
    spans: list[Span] = []
    path: list[bytes] = []  # the key under which each open object or array stands
    key = b""
    previous: re.Match[bytes] | None = None
    expects_value = False
    for token in _TOKEN.finditer(data):
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
        elif symbol == b",":
            expects_value = False
        elif expects_value and key == b"model" and _is_model(path):
            spans.append(token.span())
        previous = token
    return spans


def _is_model(path: list[bytes]) -> bool:
    return path in ([b""], [b"", b"response"])


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


class ModelRestorer:
    """Puts the client's model name back into a response as its bytes pass by.

    `feed` returns the bytes that can go on: for SSE whole lines, for JSON nothing before the end.
    """

    __slots__ = ("_held", "_name", "_passing", "_size", "_sse")

    def __init__(self, name: str, *, sse: bool) -> None:
        self._name = name
        self._sse = sse
        self._held: list[bytes] = []
        self._size = 0
        self._passing = False

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Take the next bytes, split anywhere; with `last`, everything held comes out."""
        if self._passing:
            return chunk
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size > _MOST:
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
        if line.startswith(b"data:") and b'"model"' in line:
            return replace_model(line, self._name)
        return line
