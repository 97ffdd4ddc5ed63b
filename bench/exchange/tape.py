"""What Envoy sends over HTTP/2, read by read; it is written before anything is measured."""

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from bench.exchange.play import Read
from bench.extproc.reply import Ask, PromptCache, event_stream, json_body
from bench.extproc.workload import BYTES_PER_TOKEN, HEAD_SHARE, HEADS, Shape
from bench.messages import bodies, request_messages, response_messages

_FRAME = 16_384
"""RFC 9113 §4.2: the largest frame, unless a peer allows more."""
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0x0, 0x1, 0x4, 0x8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_APART_S = 0.001
_BETWEEN = 8
"""Requests that are sent between a request and its response: as many are in flight."""
_WINDOW = 2**31 - 1
_INITIAL_WINDOW = 65_535

_POST_HTTP = bytes((0x80 | 3, 0x80 | 6))
"""`:method: POST` and `:scheme: http`, of the static table (RFC 7541, Appendix A)."""
_GRPC_HEADERS = (
    (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (b":authority", b"picker"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"x-envoy-internal", b"true"),
    (b"x-forwarded-for", b"127.0.0.1"),
)


class Connection:
    """Envoy's end of one connection: it writes and never reads.

    Every message is a read of its own, as on a machine that keeps up.
    """

    def __init__(self) -> None:
        self._ids = count(1, 2)

    @staticmethod
    def preface() -> Read:
        """Return how it begins (RFC 9113 §3.4), with windows that never close."""
        # §6.5.1: SETTINGS_INITIAL_WINDOW_SIZE (4); §6.9.2: the connection's window grows apart.
        settings = (4).to_bytes(2) + _WINDOW.to_bytes(4)
        more = (_WINDOW - _INITIAL_WINDOW).to_bytes(4)
        data = (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, more)
            + _frame(_SETTINGS, _ACK, 0, b"")
        )
        return Read(after=0.0, data=data)

    def open(self) -> tuple[int, bytes]:
        """Open a stream: its number, and the frame that says so."""
        number = next(self._ids)
        headers = _new_headers() if number == 1 else _known_headers()
        return number, _frame(_HEADERS, _END_HEADERS, number, _POST_HTTP + headers)


class Exchange(msgspec.Struct, frozen=True):
    """The reads of one request: up to the last of its body, and those of its response."""

    request: tuple[Read, ...]
    response: tuple[Read, ...]


class Requests:
    """Requests of a shape without end, each with its response, on one connection."""

    def __init__(self, connection: Connection, shape: Shape, caches: Sequence[PromptCache]) -> None:
        self._connection = connection
        self._shape = shape
        self._caches = caches
        self._bodies = bodies(shape, salt=f"{shape.size:06d}{shape.chunks:04d}")
        self._numbers = count()

    def __iter__(self) -> "Requests":
        return self

    def __next__(self) -> Exchange:
        stream, opening = self._connection.open()
        frames = [_message(stream, each) for each in request_messages(next(self._bodies))]
        frames[0] = opening + frames[0]
        response = response_messages(*self._answer(next(self._numbers)))
        said = [*(_message(stream, each) for each in response), _end(stream)]
        return Exchange(_reads(frames), _reads(said))

    def _answer(self, number: int) -> tuple[str, Sequence[bytes]]:
        size, head = self._shape.size // BYTES_PER_TOKEN, number % HEADS
        ask = Ask(size, head, int(size * HEAD_SHARE), self._shape.chunks, 0.0)
        cached = self._caches[head % len(self._caches)].admit(ask)
        if self._shape.chunks:
            return "text/event-stream", event_stream(ask, cached)
        return "application/json", [json_body(ask, cached)]


def overlapping(source: Requests, number: int) -> Iterator[Read]:
    """Yield the reads of `number` requests, nine of which are in flight at once."""
    waiting: list[Exchange] = []
    for _ in range(number):
        exchange = next(source)
        yield from exchange.request
        waiting.append(exchange)
        if len(waiting) > _BETWEEN:
            yield from waiting.pop(0).response
    for each in waiting:
        yield from each.response


def _new_headers() -> bytes:
    """Encode the headers so that the peer remembers them."""
    # RFC 7541 §6.2.1: 0x40, then the lengths and bytes of a name and a value that are new.
    return b"".join(
        bytes((0x40, len(name))) + name + bytes((len(value),)) + value
        for name, value in _GRPC_HEADERS
    )


def _known_headers() -> bytes:
    """Encode the headers as those that the peer remembers: the last one is number 62 (§2.3.3)."""
    return bytes(0x80 | 62 + behind for behind in reversed(range(len(_GRPC_HEADERS))))


def _reads(frames: Sequence[bytes]) -> tuple[Read, ...]:
    return tuple(Read(after=_APART_S / len(frames), data=data) for data in frames)


def _message(stream: int, message: bytes) -> bytes:
    """Put a gRPC message into frames: a byte that says it is plain, its length, itself."""
    data = b"\0" + len(message).to_bytes(4) + message
    return b"".join(
        _frame(_DATA, 0, stream, data[start : start + _FRAME])
        for start in range(0, len(data), _FRAME)
    )


def _end(stream: int) -> bytes:
    return _frame(_DATA, _END_STREAM, stream, b"")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    # RFC 9113 §4.1: length (24 bits), type, flags, stream.
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload
