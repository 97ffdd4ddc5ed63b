"""A connection of a gRPC server over HTTP/2: feeds a session with what is read, writes its frames.

The bytes of one read are handled at once, and all replies to them are sent in one write; work
beyond one turn (`Session.receive`) is left for further turns (`turns.py`). Methods are identified
by their paths.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol, cast

from epp.adapters.extproc.contract import GRPC, GrpcStatus, MethodCall, is_grpc
from epp.adapters.extproc.http2 import session as http2
from epp.adapters.extproc.http2.session import ConnectionFailure, Session, Stream
from epp.adapters.extproc.limits import PeerLimits, TokenBucket
from epp.adapters.extproc.read_ahead import Event, ReadAhead
from epp.adapters.extproc.turns import FULL_READ_BYTES, Turns
from epp.system.logs import Log

_log = Log(__name__)

# Looked up once: docs/adr/0013-compiled.md says why.
_OPENED: Final[int] = http2.OPENED
_MESSAGE: Final[int] = http2.MESSAGE
_ENDED: Final[int] = http2.ENDED
_FAULT: Final[int] = http2.FAULT
_GROWN: Final[int] = http2.GROWN
_NO_ERROR: Final = 0x0  # RFC 9113 §7
_ENHANCE_YOUR_CALM: Final = 0xB  # RFC 9113 §7
_BYTES_AT_ONCE: Final = 1 << 20  # of one write
_HIGH_WATER_BYTES: Final = 1 << 20
_LITTLE_BYTES: Final = 1 << 12
"""Reads up to this size are handled before larger ones."""
_TLS_HANDSHAKE: Final = b"\x16"  # RFC 8446 §5.1
_SPEAKS_TLS: Final = (
    "it speaks TLS, and this port does not: the ext_proc port does with --secure-serving=true, or"
    " take TLS (Envoy: transport_socket) off the gateway's cluster"
)
_CLOSED_AT_ONCE: Final = 64  # streams of a lost connection, in one turn
_CLOSE_SECONDS: Final = 2.0  # for a peer to read the GOAWAY before its connection is aborted
QUEUE_BYTES: Final = 1 << 20
"""Bytes that may wait for a peer's window before its own sending on that stream is slowed."""

_FAULTS = {
    GrpcStatus.RESOURCE_EXHAUSTED: "the message is larger than the limit",
    GrpcStatus.UNIMPLEMENTED: "compressed messages are not supported",
    GrpcStatus.INTERNAL: "the stream ended in the middle of a message",
}

Method = Callable[[Stream, "GrpcConnection"], MethodCall | None]
"""Serves a stream, or returns None for one that it has ended."""


class ConnectionOwner(Protocol):
    """The server of a connection: its methods by path, the limits of a connection, and turns."""

    methods: Mapping[bytes, Method]
    limits: PeerLimits
    turns: Turns

    def connection_opened(self, connection: "GrpcConnection") -> bool:
        """Handle a connection that was made; return whether there is room for it."""

    def connection_closed(self, connection: "GrpcConnection") -> None:
        """Handle the loss of a connection, whose streams are closed."""

    def warn_left(self, peer: object, reason: str) -> None:
        """Log that the server gave up a peer."""


class GrpcConnection:
    """One connection of a peer, with the methods of an `asyncio.Protocol` (ADR 13)."""

    def __init__(self, server: ConnectionOwner) -> None:
        self._server = server
        self._limits = limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._session = Session(
            max_streams=limits.max_streams,
            stream_window=limits.stream_window,
            max_header_bytes=limits.max_header_bytes,
            max_message_bytes=limits.max_message_bytes,
            max_queued=limits.max_queued,
        )
        self._transport: asyncio.Transport
        self._paused = False  # the peer does not read
        self._closed = False  # nothing more is sent
        self._gone = False
        self._flushing = False
        self._received = False  # any byte, since the keepalive timer was set
        self._pinged = 0  # the pong that a silent peer owes; 0 for none
        self._last_pong = 0  # the pong after which a draining connection takes no streams
        self._held: set[Stream] = set()
        self._turns = server.turns
        self._look = 0  # the look at which it was last read; 0 before any
        self._waiting = False  # for a turn
        self._ahead = ReadAhead(server.turns)
        self._unread: deque[bytes] = deque()
        self._start = 0  # of the unread part of the first of them
        self._lost: list[Stream] = []  # still to be closed
        self._abuse = TokenBucket(limits.abuse_burst, limits.abuse_rate)
        self._timer: asyncio.TimerHandle | None = None
        self._greeting: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings (RFC 9113 §3.4: they come first); the peer has a while for its own."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if not self._server.connection_opened(self):
            self._transport.abort()
            return
        call_later, limits = self._loop.call_later, self._limits
        self._timer = call_later(limits.ping_after, self._keepalive)
        self._greeting = call_later(limits.handshake_seconds, self._expect_settings)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Handle the bytes read, and reply; while others wait for turns, wait for one too."""
        self._received, last = True, self._look
        crowded = self._turns.crowd(last)
        self._look = self._turns.look
        if crowded or self._unread:
            self._unread.append(data)
            self._wait_for_turns(little=last > 0 and len(data) <= _LITTLE_BYTES)
            return
        if self._receive(data, 0) and (left := self._session.unread):
            self._unread.append(data)
            self._start = len(data) - left
            self._wait_for_turns(little=False)
        elif len(data) >= FULL_READ_BYTES and not (self._paused or self._transport.is_closing()):
            self._transport.pause_reading()
            self._loop.call_soon(self._read_again)

    def eof_received(self) -> None:
        """Have the transport close: the peer sends no more. uvloop's TLS asks for this method."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Close every stream."""
        self._cancel_timers()
        self._closed = self._gone = True
        self._close_streams()

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read and write again."""
        self._paused = False
        if not self._transport.is_closing():
            self._read_again()
            self.flush()

    # Turns.

    def take_turn(self) -> bool:
        """Handle a part of the bytes read, or of a lost connection; return whether more is left."""
        try:
            if self._lost:
                self._close_some()
            else:
                self._read_on()
        except Exception:  # noqa: BLE001 (whatever it is, the others' turns come)
            _log.exception("connection.failed")
            self._unread.clear()
            self._transport.abort()
        self._waiting = bool(self._unread or self._lost or self._ahead)
        self._read_again()
        return self._waiting

    def _wait_for_turns(self, *, little: bool) -> None:
        if not self._waiting:
            self._waiting = True
            (self._turns.arrive if little else self._turns.go_on)(self)
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        ahead = self._ahead
        far = ahead.far and bool(ahead)
        if self._unread and not far:
            data = self._unread[0]
            self._receive(data, self._start)
            if left := self._session.unread:
                self._start = len(data) - left
            elif self._unread:
                self._unread.popleft()
                self._start = 0
        if ahead and (far or not self._unread):
            self._serve(ahead.take(self._loop.time()))
            self.flush()

    def _receive(self, data: bytes, start: int) -> bool:
        """Handle bytes, and reply; return whether some of them may be left."""
        session = self._session
        try:
            events = session.receive(data, start)
        except ConnectionFailure as failure:
            is_hello = not session.settings_received and data.startswith(_TLS_HANDSHAKE)
            self._give_up(_SPEAKS_TLS if is_hello else str(failure))
            return False
        self._handle(events)
        if self._last_pong and session.pongs >= self._last_pong:
            self._last_pong = 0
            session.go_away()
        return self.flush() and not self._transport.is_closing()

    def _read_again(self) -> None:
        far = self._waiting and self._ahead.far
        if not (self._paused or self._unread or far or self._transport.is_closing()):
            self._transport.resume_reading()

    # What calls and the listener call.

    def flush(self) -> bool:
        """Write frames, as far as the peer reads them; return whether there may be more to do."""
        self._flushing = False
        if self._paused or self._closed:
            return True
        session = self._session
        try:
            data = session.take(_BYTES_AT_ONCE)
        except ConnectionFailure as failure:
            self._give_up(str(failure))
            return False
        if data:
            self._transport.write(data)
        more = session.has_work()
        if more:
            self._flush_rest()
        if self._held:
            self._release_drained()
        return more

    def _flush_rest(self) -> None:
        session = self._session
        if session.has_events:
            self._handle(session.take_events())
        if self._abused():
            self._give_up("it asks for work that moves nothing")
        elif session.full:
            self.flush_soon()
        elif session.queued > self._limits.max_queued:
            self._give_up("it reads nothing")
        elif session.done:
            self._close()

    def flush_soon(self) -> None:
        """Flush after the callbacks that are ready to run."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def hold(self, stream: Stream) -> None:
        """Hold a stream's window until no more than `QUEUE_BYTES` of it waits to be read."""
        stream.hold()
        self._held.add(stream)

    def drain(self) -> None:
        """Refuse further streams, but not those that the peer may already have sent.

        RFC 9113 §6.8: the first GOAWAY names the highest stream of all, and the one that names
        the last stream taken follows after a round trip, which a ping measures.
        """
        self._last_pong = max(self._pinged, self._session.pongs) + 1
        self._session.announce_end()
        self._session.ping()
        self.flush()

    def abort_streams(self) -> None:
        """Break off all streams, and the connection."""
        self._session.terminate(_NO_ERROR)
        self._close_with_goaway()

    # The parts of it.

    def _handle(self, events: list[Event]) -> None:
        if self._waiting:
            self._ahead.add(events, self._loop.time())
        else:
            self._serve(events)

    def _serve(self, events: list[Event]) -> None:
        for stream, event, value in events:
            owner: MethodCall | None = stream.owner
            if event == _MESSAGE:
                if owner is not None:
                    owner.message(value)
            elif owner is not None:
                self._end_call(stream, owner, event, value)
            elif event == _OPENED:  # of any other event the call is over
                self._open_call(stream)

    def _open_call(self, stream: Stream) -> None:
        # gRPC over HTTP/2, Requests: the method is POST, the path is /service/method.
        if stream.method != b"POST":
            stream.refuse(405)  # RFC 9110 §15.5.6
        elif stream.content_type != GRPC and not is_grpc(stream.content_type):
            stream.refuse(415)  # ditto, if it does not begin with application/grpc
        elif (method := self._server.methods.get(stream.path)) is None:
            stream.end(GrpcStatus.UNIMPLEMENTED, "there is no such method")
        else:
            stream.owner = method(stream, self)

    def _end_call(self, stream: Stream, owner: MethodCall, event: int, value: int | None) -> None:
        if event == _ENDED:
            owner.ended()
            return
        if event == _GROWN:
            owner.growing(cast(int, value))
            return
        stream.owner = None
        if event == _FAULT:
            stream.end(cast(int, value), _FAULTS[GrpcStatus(cast(int, value))])
        self._held.discard(stream)
        owner.closed()

    def _release_drained(self) -> None:
        for stream in [each for each in self._held if each.queued <= QUEUE_BYTES]:
            self._held.discard(stream)
            stream.release()
            if stream.owner is not None:
                stream.owner.drained()
            self.flush_soon()

    def _abused(self) -> bool:
        score, self._session.abuse_score = self._session.abuse_score, 0
        if not score or self._abuse.take(score, self._loop.time()):
            return False
        self._session.terminate(_ENHANCE_YOUR_CALM)
        return True

    def _keepalive(self) -> None:
        """Ping a silent peer; abort the connection if it does not answer."""
        after = self._limits.ping_after
        if self._received or self._waiting:  # what waits may not have been read
            self._received, self._pinged = False, 0
        elif self._pinged:
            self._transport.abort()
            return
        else:
            self._pinged = self._session.pongs + 1
            after = self._limits.ping_timeout
            self._session.ping()  # RFC 9113 §6.7: a peer that is alive answers it
            self.flush()
        self._timer = self._loop.call_later(after, self._keepalive)

    def _expect_settings(self) -> None:
        # RFC 9113 §3.4: a client sends its preface and SETTINGS first, and waits for nothing.
        if self._waiting:  # its settings may not have been read
            patience = self._limits.handshake_seconds
            self._greeting = self._loop.call_later(patience, self._expect_settings)
        elif not self._session.settings_received:
            self._give_up("it sends no SETTINGS")

    def _give_up(self, why: str) -> None:
        self._server.warn_left(self._transport.get_extra_info("peername"), why)
        self._close_with_goaway()

    def _close_with_goaway(self) -> None:
        if not self._transport.is_closing():
            with suppress(ConnectionFailure):
                self._transport.write(self._session.take(_BYTES_AT_ONCE))
            self._close()
        self._close_streams()

    def _close(self) -> None:
        """Close once everything is written, which a peer that does not read cannot put off."""
        self._closed = True
        self._cancel_timers()
        self._timer = self._loop.call_later(_CLOSE_SECONDS, self._transport.abort)
        self._transport.close()

    def _cancel_timers(self) -> None:
        for timer in filter(None, (self._timer, self._greeting)):
            timer.cancel()

    def _close_streams(self) -> None:
        self._held.clear()
        self._unread.clear()
        self._lost += self._session.abandon() + self._ahead.drop()
        self._close_some()
        if self._lost and not self._waiting:
            self._waiting = True
            self._turns.go_on(self)

    def _close_some(self) -> None:
        some, self._lost[-_CLOSED_AT_ONCE:] = self._lost[-_CLOSED_AT_ONCE:], []
        for stream in some:
            owner, stream.owner = stream.owner, None
            if owner is not None:
                owner.closed()
        if self._gone and not self._lost:
            self._server.connection_closed(self)
