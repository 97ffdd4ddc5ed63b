"""A connection of a gRPC server: feeds a session what is read, writes what comes out of it.

What is read at once is handled at once, and all that is said about it leaves in one write. It
knows methods by their paths and no more of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, Protocol, cast

import structlog

from epp.adapters.extproc.limits import Limits, Patience
from epp.native.http2 import CLOSED, ENDED, FAULT, MESSAGE, ConnectionFailure, Session, Stream

_log = structlog.get_logger()

_HTTP_BAD_METHOD, _HTTP_BAD_TYPE = 405, 415
_GRPC = b"application/grpc"
_NO_ERROR, _ENHANCE_YOUR_CALM = 0x0, 0xB
_TAKEN_AT_ONCE = 1 << 20
_HIGH_WATER = 1 << 20
_LAST_WORDS_SECONDS = 2.0

HELD_ABOVE = 1 << 20
"""Bytes that may wait for a peer's window before what it sends on that stream is slowed."""


class Status(IntEnum):
    """gRPC's, as far as they are used."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


_FAULTS = {
    Status.RESOURCE_EXHAUSTED: "the message is larger than is taken",
    Status.UNIMPLEMENTED: "compressed messages are not understood",
    Status.INTERNAL: "the stream ended amid a message",
}


class Call(Protocol):
    """One stream's user. Whoever ends the stream itself (`Stream.end`) hears no more of it."""

    def message(self, data: bytes) -> None:
        """Take a message."""

    def ended(self) -> None:
        """Hear that the peer says no more."""

    def drained(self) -> None:
        """Hear that the peer has read of a stream that was held."""

    def closed(self) -> None:
        """Hear that the stream is gone."""


Open = Callable[[Stream, "Connection"], Call]


class Listening(Protocol):
    """What connections have in common."""

    methods: Mapping[bytes, Open]
    limits: Limits

    def joined(self, connection: "Connection") -> None:
        """Count a connection."""

    def left(self, connection: "Connection") -> None:
        """Count it no more."""


class Connection(asyncio.Protocol):
    """One connection of a peer's."""

    def __init__(self, server: Listening) -> None:
        self._server = server
        self._limits = limits = server.limits
        self._max_queued = limits.max_queued
        self._loop = asyncio.get_running_loop()
        self._session = Session(
            max_streams=limits.max_streams,
            stream_window=limits.stream_window,
            max_header_bytes=limits.max_header_bytes,
            max_message_bytes=limits.max_message_bytes,
        )
        self._transport: asyncio.Transport
        self._paused = False
        self._flushing = False
        self._heard = False
        self._pinged = False
        self._last_pong = 0  # the one after which a connection that is left takes no streams
        self._held: set[Stream] = set()
        self._patience = Patience(limits.nuisance_burst, limits.nuisance_rate)
        self._alarm: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._server.joined(self)
        self._alarm = self._loop.call_later(self._limits.ping_after, self._wonder)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Handle what was read, and answer it."""
        self._heard = True
        session = self._session
        try:
            events = session.receive(data)
        except ConnectionFailure as failure:
            self._leave(str(failure))
            return
        self._handle(events)
        if session.nuisance:
            self._charge()
        if self._last_pong and session.pongs >= self._last_pong:
            self._last_pong = 0
            session.go_away()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._abandon()
        self._server.left(self)

    def pause_writing(self) -> None:
        """Read no more from a peer that does not read."""
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self.flush()

    # What calls and the server call.

    def flush(self) -> None:
        """Write what the session has to say, as far as the peer reads it."""
        self._flushing = False
        if self._paused or self._transport.is_closing():
            return
        session = self._session
        try:
            data = session.take(_TAKEN_AT_ONCE)
        except ConnectionFailure as failure:
            self._leave(str(failure))
            return
        if data:
            self._transport.write(data)
        if session.restless(self._max_queued):
            self._go_on()
        if self._held:
            self._let_go()

    def _go_on(self) -> None:
        session = self._session
        if session.unheard:
            self._handle(session.hear())
        if session.full:
            self.flush_soon()
        elif session.queued > self._max_queued:
            self._leave("it reads nothing")
        elif session.done:
            self._close()

    def flush_soon(self) -> None:
        """Flush when what is ready to run has run."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def hold(self, stream: Stream) -> None:
        """Hold a stream's window until no more than `HELD_ABOVE` of it waits to be read."""
        stream.hold()
        self._held.add(stream)

    def leave(self) -> None:
        """Let the streams that are open end, and those that the peer is about to open."""
        self._last_pong = self._session.pongs + (2 if self._pinged else 1)
        self._session.announce_end()
        self._session.ping()
        self.flush()

    def cut(self) -> None:
        """Break off all streams, and the connection."""
        self._session.terminate(_NO_ERROR)
        self._last_words()

    # The parts of it.

    def _handle(self, events: list[tuple[Stream, int, Any]]) -> None:
        for stream, event, value in events:
            owner: Call | None = stream.owner
            if event == MESSAGE:
                if owner is not None:
                    owner.message(value)
            elif owner is not None:
                self._tell(stream, owner, event, value)
            else:
                self._open(stream, event)

    def _open(self, stream: Stream, event: int) -> None:
        if event or stream.ending:
            return  # nobody's any more
        if stream.method != b"POST":
            stream.refuse(_HTTP_BAD_METHOD)
        elif not _is_grpc(stream.content_type):
            stream.refuse(_HTTP_BAD_TYPE)
        elif (method := self._server.methods.get(stream.path)) is None:
            stream.end(Status.UNIMPLEMENTED, "there is no such method")
        else:
            stream.owner = method(stream, self)

    def _tell(self, stream: Stream, owner: Call, event: int, value: int) -> None:
        if event == ENDED:
            owner.ended()
            return
        stream.owner = None
        if event == FAULT:
            stream.end(value, _FAULTS[Status(value)])
        if event in {CLOSED, FAULT}:
            self._held.discard(stream)
            owner.closed()

    def _let_go(self) -> None:
        for stream in [each for each in self._held if each.queued <= HELD_ABOVE]:
            self._held.discard(stream)
            stream.release()
            if stream.owner is not None:
                stream.owner.drained()
            self.flush_soon()

    def _charge(self) -> None:
        if not self._patience.bears(self._session.nuisance, self._loop.time()):
            self._session.terminate(_ENHANCE_YOUR_CALM)
            self._leave("it asks for work that moves nothing")
        self._session.nuisance = 0

    def _wonder(self) -> None:
        """Ask a silent peer whether it is there; leave one that does not answer."""
        limits = self._limits
        after = limits.ping_after
        if self._heard:
            self._heard = self._pinged = False
        elif self._pinged:
            self._transport.abort()
            return
        else:
            self._pinged = True
            after = limits.ping_timeout
            self._session.ping()
            self.flush()
        self._alarm = self._loop.call_later(after, self._wonder)

    def _leave(self, why: str) -> None:
        peer = self._transport.get_extra_info("peername")
        _log.warning("connection.left", peer=str(peer), reason=why)
        self._last_words()

    def _last_words(self) -> None:
        with suppress(ConnectionFailure):
            self._transport.write(self._session.take(_TAKEN_AT_ONCE))
        self._close()
        self._abandon()

    def _close(self) -> None:
        """Close once everything is written, which a peer that does not read cannot put off."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_later(_LAST_WORDS_SECONDS, self._transport.abort)
        self._transport.close()

    def _abandon(self) -> None:
        self._held.clear()
        for stream in self._session.abandon():
            owner, stream.owner = stream.owner, None
            if owner is not None:
                owner.closed()


def _is_grpc(content_type: bytes) -> bool:
    plain = content_type == _GRPC
    return plain or content_type.partition(b";")[0].partition(b"+")[0].strip() == _GRPC
