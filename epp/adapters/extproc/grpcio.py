"""The ext_proc service over grpc.aio: pumps streams through exchanges.

It moves bytes; every decision is the exchange's. One stream is one exchange and one coroutine,
which stops reading while a decision is pending.
"""

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from epp.adapters.extproc.contract import (
    DrivenExchange,
    ExtProcSettings,
    GrpcStatus,
    HealthSource,
)
from epp.adapters.extproc.driver import ExchangeDriver, StreamCounter
from epp.adapters.extproc.grpcio_health import Context, attach
from epp.protocol.extproc.names import METHOD, SERVICE

_CODES = {code.value[0]: code for code in grpc.StatusCode}
"""grpcio's codes by their numbers."""


class GrpcioServer:
    """Serves `envoy.service.ext_proc.v3.ExternalProcessor/Process` (`contract.ExtProcServer`)."""

    transport = "grpcio"

    def __init__(
        self,
        open_exchange: Callable[[float], DrivenExchange],
        clock: Callable[[], float],
        settings: ExtProcSettings,
    ) -> None:
        self._open_exchange = open_exchange
        self._clock = clock
        self._settings = settings
        self._counter = StreamCounter(clock)
        self._port = 0
        self._pair = (b"", b"")
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.max_receive_bytes),
                ("grpc.max_send_message_length", settings.max_send_bytes),
                ("grpc.so_reuseport", 0),  # a taken port is an error, not shared
                # A gateway's keepalive: by default grpcio closes connections (GOAWAY,
                # too_many_pings) that are pinged more often than every five minutes.
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
        """The bound port, after `start`."""
        return self._port

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._counter.open

    def offer_health(self, health: HealthSource) -> None:
        """Offer health on this port too."""
        attach(health, self._server)

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
        await self._counter.quiet(seconds)

    def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Serve with this pair from the next handshake on."""
        self._pair = tls

    def _certificate(self) -> grpc.ServerCertificateConfiguration:
        """Return the pair for one handshake."""
        return grpc.ssl_server_certificate_configuration([self._pair])

    async def start(self) -> None:
        """Bind and serve. Raises `RuntimeError` where the port is taken."""
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
        """Refuse further streams; give the open ones `grace` seconds to end."""
        await self._server.stop(grace)

    async def _process(self, _: object, context: Context) -> None:
        outlet = _CallOutlet()
        exchange = self._open_exchange(self._clock())
        driver = ExchangeDriver(exchange, outlet, self._clock, self._counter)
        try:
            status, message = await _pump(driver, outlet, context)
        finally:
            driver.closed()
        if status is not GrpcStatus.OK:
            await context.abort(_CODES[status], message)


class _CallOutlet:
    """A call of grpc.aio as an `Outlet`: keeps what its coroutine is to do next."""

    __slots__ = ("changed", "ending", "held", "queue", "wants_room")

    def __init__(self) -> None:
        self.queue: list[bytes] = []
        self.held = False
        self.wants_room = False
        self.ending: tuple[GrpcStatus, str] | None = None
        self.changed = asyncio.Event()

    def send(self, messages: Sequence[bytes]) -> None:
        self.queue += messages

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def await_room(self) -> None:
        self.wants_room = True

    def flush(self) -> None:
        self.changed.set()

    def end(self, status: GrpcStatus, message: str) -> None:
        self.ending = status, message


async def _pump(
    driver: ExchangeDriver, outlet: _CallOutlet, context: Context
) -> tuple[GrpcStatus, str]:
    """Read and write until the driver ends the call; return how it ends.

    A write waits for the peer to read, so after it there is room.
    """
    half_closed = False
    while True:
        queue, outlet.queue = outlet.queue, []
        for message in queue:
            await context.write(message)
        if outlet.ending is not None:
            return outlet.ending
        if outlet.wants_room:
            outlet.wants_room = False
            driver.drained()
        elif outlet.held or half_closed:
            await outlet.changed.wait()
            outlet.changed.clear()
        else:
            data = await context.read()
            if data is grpc.aio.EOF:
                half_closed = True
                driver.ended()
            else:
                driver.message(data)
