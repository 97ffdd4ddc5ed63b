"""The ext_proc service over grpc.aio: pumps streams through exchanges.

It moves bytes and keeps time; every decision is the exchange's. One stream is one exchange and
one coroutine, which stops reading while a decision is pending.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec
import structlog

from epp.errors import Overloaded, PickerFault, RequestError
from epp.model.request import Decision, RequestRecord
from epp.protocol.envoy import METHOD, SERVICE, ProtocolError, decode, encode
from epp.protocol.messages import Message, Reply

log = structlog.get_logger()

_RESET_SECONDS = 0.05
"""A stream that is reset reads as one that has ended, and is cancelled a moment later."""


class Conversation(Protocol):
    """What this transport needs of an exchange (`epp.protocol.exchange.Exchange`)."""

    record: RequestRecord

    @property
    def pending(self) -> bool:
        """Whether a decision is awaited."""

    @property
    def over(self) -> bool:
        """Whether everything has been said."""

    @property
    def announced(self) -> bool:
        """Whether the proxy said what it would send: an earlier end is then a reset."""

    def receive(self, message: Message, now: float) -> Sequence[Reply]:
        """Take a message."""

    def resume(self, outcome: Decision | RequestError, now: float) -> Sequence[Reply]:
        """Take the decision that was pending."""

    def fail(self, error: RequestError, now: float) -> Sequence[Reply]:
        """Give up with an error."""

    def half_closed(self, now: float) -> None:
        """Hear that the peer sends no more."""

    def cancelled(self, now: float) -> None:
        """Hear that the peer is gone."""


Awaiting = Callable[[RequestRecord], Awaitable[Decision | RequestError]]
"""Waits for a decision that its director called pending."""


class ExtProcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how to listen.

    `tls` is a (key, certificate chain) pair in PEM, None for plaintext. Sizes are in bytes.
    `decision_timeout` bounds a pending decision, in seconds.
    """

    address: str = "0.0.0.0"  # noqa: S104 (a pod is reached from outside)
    port: int = 9002
    tls: tuple[bytes, bytes] | None = None
    max_receive_bytes: int = 65 << 20
    max_send_bytes: int = -1
    decision_timeout: float = 60.0


async def _undecided(record: RequestRecord) -> Decision | RequestError:
    return PickerFault(f"no one decides on request {record.id}")


class ExtProcServer:
    """Serves `envoy.service.ext_proc.v3.ExternalProcessor/Process`.

    `open_exchange` makes one exchange, given the time; `clock` tells it. `services` are further
    generic handlers for the same port (health). After `start`, `port` is the bound one.
    """

    def __init__(
        self,
        open_exchange: Callable[[float], Conversation],
        clock: Callable[[], float],
        settings: ExtProcSettings,
        awaiting: Awaiting = _undecided,
    ) -> None:
        self._open = open_exchange
        self._clock = clock
        self._settings = settings
        self._awaiting = awaiting
        self.streams = 0
        self.port = 0
        self._last_end = clock()
        self._idle = asyncio.Event()
        self._idle.set()
        self.server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.max_receive_bytes),
                ("grpc.max_send_message_length", settings.max_send_bytes),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            )
        )
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._process
        )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )

    async def start(self) -> None:
        """Bind and serve. Raises `RuntimeError` where the port is taken."""
        where = f"{self._settings.address}:{self._settings.port}"
        if self._settings.tls is None:
            self.port = self.server.add_insecure_port(where)
        else:
            credentials = grpc.ssl_server_credentials([self._settings.tls])
            self.port = self.server.add_secure_port(where, credentials)
        await self.server.start()

    async def stop(self, grace: float) -> None:
        """Take no more streams; give those that are open `grace` seconds to end."""
        await self.server.stop(grace)

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
        while True:
            await self._idle.wait()
            left = self._last_end + seconds - self._clock()
            if left <= 0:
                return
            await asyncio.sleep(left)

    def _opened(self) -> None:
        self.streams += 1
        self._idle.clear()

    def _closed(self, now: float) -> None:
        self.streams -= 1
        self._last_end = now
        if not self.streams:
            self._idle.set()

    async def _process(self, _: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        clock = self._clock
        exchange = self._open(clock())
        self._opened()
        try:
            await self._pump(exchange, context)
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            log.exception("exchange.failed", request_id=exchange.record.id)
            fault = PickerFault(f"the picker failed: {type(error).__name__}")
            for reply in exchange.fail(fault, clock()):
                await context.write(encode(reply))
        finally:
            now = clock()
            self._closed(now)
            exchange.cancelled(now)

    async def _pump(
        self, exchange: Conversation, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        clock, read, write = self._clock, context.read, context.write
        while not exchange.over:
            data = await read()
            if data is grpc.aio.EOF:
                if exchange.announced:
                    await asyncio.sleep(_RESET_SECONDS)
                exchange.half_closed(clock())
                return
            replies = exchange.receive(decode(data), clock())
            if exchange.pending:
                replies = await self._decided(exchange)
            for reply in replies:
                await write(encode(reply))

    async def _decided(self, exchange: Conversation) -> Sequence[Reply]:
        outcome: Decision | RequestError
        try:
            async with asyncio.timeout(self._settings.decision_timeout):
                outcome = await self._awaiting(exchange.record)
        except TimeoutError:
            outcome = Overloaded("no decision in time", reason="decision-timeout", retry_after=1)
        return exchange.resume(outcome, self._clock())
