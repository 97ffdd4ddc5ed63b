"""A connection to a server that speaks HTTP/2 in plain text, which is known before (h2c)."""

import asyncio
import re
import struct
from collections.abc import Iterable, Sequence

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from epp.adapters.scrape.page_connection import (
    PageConnection,
    PageLost,
    PageRefused,
    PageRequest,
    Stale,
    refusal,
)

# RFC 9113 §4.1, §6.
_HEADER_BYTES, _TYPE_AT = 9, 3
_DATA, _SETTINGS, _GOAWAY = 0x0, 0x4, 0x7
_GOAWAY_BYTES = _HEADER_BYTES + 8
_MAX_FRAME_BYTES = 16_384
"""Bytes of a frame's payload, unless a receiver takes more, which this one does not."""
_MAX_STREAM = 0x7FFF_FFFF
_STATUS = re.compile(rb"[1-9][0-9]{2}")

_FRAME_COST = 64
"""Bytes that a frame counts for beside its own: each takes up to 30 us."""
_MAX_OVERHEAD = 16 << 10
"""Bytes of all frames but the page's, and costs of all frames, beside half of the page."""
_MAX_SETTINGS = 64
"""Settings that a server may have; RFC 9113 has six."""
_SETTING_BYTES = 6
_MAX_UNREAD = 64 << 10
"""Bytes that a server may leave unread of what is sent to it."""
_MAX_SAID = 60
"""Bytes of what is not HTTP/2 that an error repeats."""

Fields = Sequence[tuple[str, str]]


class _H2(H2Connection):
    """Stores how the last few streams ended; by default those of 18 hours, at one a second."""

    MAX_CLOSED_STREAMS = 8


class Http2Connection(PageConnection):
    """Gets a page over HTTP/2 with prior knowledge (RFC 9113 §3.3); `fields` are the request."""

    buffer = bytearray(8 << 10)
    """Bytes that are read at once: in small frames, these take a few milliseconds."""

    def __init__(self, fields: Fields, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._fields = fields
        self._h2 = _H2(H2Configuration(client_side=True))
        initial = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_OVERHEAD,
        }
        self._h2.decoder.max_header_list_size = _MAX_OVERHEAD
        self._h2.local_settings = Settings(client=True, initial_values=initial)
        self._received = bytearray()
        self._spoken = False
        self._stream = 0
        self._begin()

    def _begin(self) -> None:
        self._answered = False
        self._overhead = 0

    def _send(self) -> None:
        self._begin()
        try:
            self._stream = self._h2.get_next_available_stream_id()
            self._h2.send_headers(self._stream, self._fields, end_stream=True)
        except H2Error as error:
            raise PageRefused(f"the server takes no request: {error}") from None
        self._flush()

    def _flush(self) -> None:
        """Write HTTP/2's pending frames: requests, acknowledgements, window updates."""
        if data := self._h2.data_to_send():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > _MAX_UNREAD:
                self._break(PageRefused("the server does not read what it is sent"))

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start HTTP/2; the first request is written with it."""
        super().connection_made(transport)
        self._h2.initiate_connection()

    def buffer_updated(self, nbytes: int) -> None:
        """Read the frames that are complete."""
        self._received += memoryview(self.buffer)[:nbytes]
        try:
            while not self._transport.is_closing() and (frame := self._next_frame()):
                self._read(frame)
        except H2Error as error:
            self._break(PageRefused(f"the server breaks a rule of HTTP/2: {error}"))
        except PageRefused as error:
            self._break(error)
        if not self._transport.is_closing():
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail a response that is not complete: only a frame ends one."""
        self.open = False
        self._lost(exc, began=self._answered)

    # Frames.

    def _next_frame(self) -> bytes:
        """Remove and return the next frame; empty until it is complete."""
        received = self._received
        if not self._spoken and len(received) > _TYPE_AT:
            self._spoken = _begun(received)
        if len(received) < _HEADER_BYTES:
            return b""
        length = int.from_bytes(received[:_TYPE_AT])
        if length > _MAX_FRAME_BYTES:
            raise PageRefused(f"a frame is larger than {_MAX_FRAME_BYTES} bytes")
        end = _HEADER_BYTES + length
        if len(received) < end:
            return b""
        frame = bytes(received[:end])
        del received[:end]
        return frame

    def _read(self, frame: bytes) -> None:
        kind = frame[_TYPE_AT]
        self._overhead += _FRAME_COST + (0 if kind == _DATA else len(frame))
        if self._overhead > _MAX_OVERHEAD + self._page_bytes // 2:
            raise PageRefused("the server sends too many frames beside the page")
        if kind == _SETTINGS and len(frame) > _HEADER_BYTES + _SETTING_BYTES * _MAX_SETTINGS:
            raise _too_many_settings()
        if kind == _GOAWAY:
            self._on_goaway(frame)  # h2 ends all streams there, and RFC 9113 §6.8 some
            return
        for event in self._h2.receive_data(frame):
            self._handle(event)

    def _on_goaway(self, frame: bytes) -> None:
        """Send no more requests here; a response that is under way continues."""
        if len(frame) < _GOAWAY_BYTES:
            raise PageRefused(f"GOAWAY has {len(frame)} bytes")
        last, code = struct.unpack_from(">II", frame, _HEADER_BYTES)
        self.open = False
        if self._response is None or self._response.done():
            self.abort()
        elif last & _MAX_STREAM < self._stream:
            kind = Stale if self._used else PageLost
            self._fail(kind(f"the server is going away: {_name(code)}"))

    def _handle(self, event: Event) -> None:
        match event:
            case ResponseReceived() | InformationalResponseReceived():
                self._on_head(event.headers)
            case DataReceived():
                self.on_body(event.data)
                length, stream = event.flow_controlled_length, event.stream_id
                self._h2.acknowledge_received_data(length, stream)
            case StreamEnded():
                self._on_end()
            # A server may reset a stream that has ended.
            case StreamReset() if event.stream_id == self._stream:
                self._fail(PageLost(f"the server reset the stream: {_name(event.error_code or 0)}"))
            case RemoteSettingsChanged() if len(self._h2.remote_settings) > _MAX_SETTINGS:
                raise _too_many_settings()

    def _on_head(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse any status but 200."""
        self._answered = True
        status = dict(headers)[b":status"]
        if status != b"200":
            # RFC 9110 §15: three digits.
            self._fail(refusal(int(status) if _STATUS.fullmatch(status) else 0))

    def _on_end(self) -> None:
        self._finish()
        self._begin()
        if not self.open:
            self.abort()

    def _break(self, error: Exception) -> None:
        self._fail(error)
        self.abort()


def _begun(received: bytearray) -> bool:
    """Return true, or raise `PageRefused` for bytes that do not begin as HTTP/2 does."""
    # RFC 9113 §3.4: a server's first frame is SETTINGS.
    if received[_TYPE_AT] != _SETTINGS:
        said = bytes(received[:_MAX_SAID]).partition(b"\r\n")[0].decode("ascii", "replace")
        problem = "the server does not speak HTTP/2, though its pool's appProtocol says h2c"
        raise PageRefused(f"{problem}: it answers {said!r}")
    return True


def _too_many_settings() -> PageRefused:
    return PageRefused(f"the server has more than {_MAX_SETTINGS} settings")


def _name(code: int) -> str:
    try:
        return ErrorCodes(code).name
    except ValueError:
        return str(code)


def fields_of(request: PageRequest) -> Fields:
    """Return a request as HTTP/2 has it (RFC 9113 §8.2, §8.3.1): in lower case."""
    return (
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", request.authority),
        (":path", request.target),
        *((name.lower(), value) for name, value in request.headers.items()),
    )
