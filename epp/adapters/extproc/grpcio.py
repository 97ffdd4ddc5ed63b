"""The ext_proc service over grpc.aio: pumps streams through exchanges.

It moves bytes and keeps time; every decision is the exchange's. One stream is one exchange and
one coroutine, which stops reading while a decision is pending.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from epp.adapters.extproc.contract import (
    RESET_SECONDS,
    Awaiting,
    Conversation,
    ExtProcSettings,
    HealthSource,
    Streams,
    broken,
    decided,
    undecided,
)
from epp.adapters.extproc.grpcio_health import attach
from epp.adapters.extproc.malloc import keep_freed
from epp.protocol.extproc.codec import decode, encode
from epp.protocol.extproc.errors import ProtocolError
from epp.protocol.extproc.names import METHOD, SERVICE


class GrpcioServer:
    """Serves `envoy.service.ext_proc.v3.ExternalProcessor/Process`.

    See `conversation.ExtProcServer` for what it is made of.
    """

    transport = "grpcio"

    def __init__(
        self,
        open_exchange: Callable[[float], Conversation],
        clock: Callable[[], float],
        settings: ExtProcSettings,
        awaiting: Awaiting = undecided,
    ) -> None:
        self._open = open_exchange
        self._clock = clock
        self._settings = settings
        self._awaiting = awaiting
        self._streams = Streams(clock)
        self._port = 0
        self._pair = (b"", b"")
        self._server = grpc.aio.server(
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
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )

    @property
    def port(self) -> int:
        """Where it listens, after `start`."""
        return self._port

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams.open

    def offer_health(self, health: HealthSource) -> None:
        """Offer health on this port too."""
        attach(health, self._server)

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
        await self._streams.quiet(seconds)

    def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Serve with this pair from the next handshake on."""
        self._pair = tls

    def _certificate(self) -> grpc.ServerCertificateConfiguration:
        """Give the pair for one handshake."""
        return grpc.ssl_server_certificate_configuration([self._pair])

    async def start(self) -> None:
        """Bind and serve. Raises `RuntimeError` where the port is taken."""
        keep_freed()
        where = f"{self._settings.address}:{self._settings.port}"
        if self._settings.tls is None:
            self._port = self._server.add_insecure_port(where)
        else:
            self._pair = self._settings.tls
            first = self._certificate()
            credentials = grpc.dynamic_ssl_server_credentials(first, self._certificate)
            self._port = self._server.add_secure_port(where, credentials)
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more streams; give those that are open `grace` seconds to end."""
        await self._server.stop(grace)

    async def _process(self, _: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        clock = self._clock
        exchange = self._open(clock())
        self._streams.opened()
        try:
            await self._pump(exchange, context)
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001 (whatever it is, the client is answered)
            for reply in broken(exchange, error, clock()):
                await context.write(encode(reply))
        finally:
            now = clock()
            self._streams.closed(now)
            exchange.cancelled(now)

    async def _pump(
        self, exchange: Conversation, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        clock, read, write = self._clock, context.read, context.write
        while not exchange.over:
            data = await read()
            if data is grpc.aio.EOF:
                if exchange.announced:
                    await asyncio.sleep(RESET_SECONDS)
                exchange.half_closed(clock())
                return
            replies = exchange.receive(decode(data), clock())
            if exchange.pending:
                seconds = self._settings.decision_timeout
                outcome = await decided(self._awaiting, exchange.record, seconds)
                replies = exchange.resume(outcome, clock())
            for reply in replies:
                await write(encode(reply))
            while exchange.has_more:
                for reply in exchange.proceed(clock()):
                    await write(encode(reply))
