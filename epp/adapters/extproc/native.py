"""The ext_proc service over HTTP/2 of our own (`epp.native`).

It moves bytes and keeps time; every decision is the exchange's. An exchange is driven by the
read that brings its message, without a task of its own unless a decision is pending.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence

import msgspec

from epp.adapters.extproc.connection import HELD_ABOVE, Connection, Open, Status
from epp.adapters.extproc.contract import (
    RESET_SECONDS,
    Awaiting,
    Conversation,
    ExtProcSettings,
    HealthSource,
    Streams,
    broken,
    decided,
    log,
    undecided,
)
from epp.adapters.extproc.listener import Listener
from epp.adapters.extproc.malloc import keep_freed
from epp.adapters.extproc.native_health import health_methods
from epp.adapters.extproc.tls_context import load_pair, server_context
from epp.native.http2 import Stream
from epp.protocol.extproc.codec import decode, encode
from epp.protocol.extproc.errors import ProtocolError
from epp.protocol.extproc.messages import Reply
from epp.protocol.extproc.names import METHOD, SERVICE

_PATH = f"/{SERVICE}/{METHOD}".encode()


class NativeServer:
    """Serves `envoy.service.ext_proc.v3.ExternalProcessor/Process`.

    See `conversation.ExtProcServer` for what it is made of.
    """

    transport = "native"

    def __init__(
        self,
        open_exchange: Callable[[float], Conversation],
        clock: Callable[[], float],
        settings: ExtProcSettings,
        awaiting: Awaiting = undecided,
    ) -> None:
        self.clock = clock
        self.awaiting = awaiting
        self.decision_timeout = settings.decision_timeout
        self.counter = Streams(clock)
        self._open = open_exchange
        self._settings = settings
        self._tls: ssl.SSLContext | None = None
        self._methods: dict[bytes, Open] = {_PATH: self._process}
        most = settings.max_receive_bytes
        limits = msgspec.structs.replace(settings.limits, max_message_bytes=most)
        self._listener = Listener(self._methods, limits)
        self.accept = self._listener.accept

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self.counter.open

    @property
    def port(self) -> int:
        """Where it listens, after `start`."""
        return self._listener.port

    def offer_health(self, health: HealthSource) -> None:
        """Offer health on this port too."""
        self._methods |= health_methods(health)

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
        await self.counter.quiet(seconds)

    async def stop(self, grace: float) -> None:
        """Take no more streams; give those that are open `grace` seconds to end."""
        await self._listener.stop(grace)

    def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Serve with this pair from the next handshake on."""
        if self._tls is not None:
            load_pair(self._tls, *tls)

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` where the port is taken."""
        keep_freed()
        settings = self._settings
        if settings.tls is not None:
            self._tls = server_context(*settings.tls)
        await self._listener.start(settings.address, settings.port, self._tls)

    def _process(self, stream: Stream, connection: Connection) -> "ExchangeCall":
        exchange = self._open(self.clock())
        self.counter.opened()
        return ExchangeCall(self, exchange, stream, connection)


class ExchangeCall:
    """One stream and its exchange. While a decision is pending, messages wait."""

    __slots__ = (
        "_alarm",
        "_connection",
        "_ended",
        "_exchange",
        "_over",
        "_server",
        "_stream",
        "_task",
        "_waiting",
    )

    def __init__(
        self, server: NativeServer, exchange: Conversation, stream: Stream, connection: Connection
    ) -> None:
        self._server = server
        self._exchange = exchange
        self._stream = stream
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
        self._over = False

    def message(self, data: bytes) -> None:
        """Take a message, and answer it unless a decision is pending."""
        if self._task is not None:
            self._waiting.append(data)
            return
        exchange = self._exchange
        try:
            replies = exchange.receive(decode(data), self._server.clock())
            if exchange.pending:
                self._wait()
            elif replies:
                self._say(replies)
        except ProtocolError as error:
            self._end(Status.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001 (whatever it is, the client is answered)
            self._fail(error)
        if exchange.over:
            self._end()

    def ended(self) -> None:
        """Hear that the peer says no more: the exchange ends, once nothing is pending.

        Where that is too early, a reset may follow, which says why.
        """
        self._ended = True
        if self._task is not None or self._exchange.has_more:
            return
        if self._exchange.announced:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(RESET_SECONDS, self._half_closed)
        else:
            self._half_closed()

    def drained(self) -> None:
        """Say more of what was held back, as much as is read soon."""
        if not self._exchange.has_more:
            return
        try:
            self._say(self._exchange.proceed(self._server.clock()))
        except Exception as error:  # noqa: BLE001 (as above)
            self._fail(error)
        if self._exchange.over:
            self._end()
        elif self._ended:
            self.ended()

    def closed(self) -> None:
        """Hear that the peer is gone."""
        if self._task is not None:
            self._task.cancel()
        self._leave()

    def _half_closed(self) -> None:
        try:
            self._exchange.half_closed(self._server.clock())
        except Exception as error:  # noqa: BLE001 (as above)
            self._fail(error)
        self._end()
        self._connection.flush_soon()

    def _say(self, replies: Sequence[Reply]) -> None:
        stream = self._stream
        for reply in replies:
            stream.send(encode(reply))
        if stream.queued > HELD_ABOVE or (len(replies) > 1 and self._exchange.has_more):
            self._connection.hold(stream)

    def _wait(self) -> None:
        self._stream.hold()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._decided(), name="decision")

    async def _decided(self) -> None:
        server, exchange = self._server, self._exchange
        try:
            outcome = await decided(server.awaiting, exchange.record, server.decision_timeout)
            self._say(exchange.resume(outcome, server.clock()))
        except Exception as error:  # noqa: BLE001 (as above)
            self._fail(error)
        finally:
            self._task = None
        self._catch_up()
        self._connection.flush_soon()

    def _catch_up(self) -> None:
        """Take what came in the meantime."""
        if self._exchange.over:
            self._end()
        if self._stream.queued <= HELD_ABOVE:
            self._stream.release()
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            if not self._over:
                self.message(data)
        if self._ended and not self._over:
            self.ended()

    def _fail(self, error: Exception) -> None:
        status = Status.OK
        try:
            self._say(broken(self._exchange, error, self._server.clock()))
        except Exception:  # noqa: BLE001 (the other streams of the connection go on)
            log.exception("exchange.failed", request_id=self._exchange.record.id)
            status = Status.INTERNAL
        self._end(status)

    def _end(self, status: Status = Status.OK, message: str = "") -> None:
        self._stream.owner = None
        self._stream.end(status, message)
        self._leave()

    def _leave(self) -> None:
        """Let the exchange know that it is over, and count the stream no more; once."""
        if self._over:
            return
        self._over = True
        if self._alarm is not None:
            self._alarm.cancel()
        now = self._server.clock()
        self._server.counter.closed(now)
        try:
            self._exchange.cancelled(now)
        except Exception:  # noqa: BLE001 (as above)
            log.exception("exchange.failed", request_id=self._exchange.record.id)
