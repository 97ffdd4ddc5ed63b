"""The ext_proc service over grpc.aio: pumps streams through exchanges.

It moves bytes; every decision is the exchange's. One stream is one exchange and one coroutine,
which stops reading while a decision is pending.
"""

import asyncio
from collections.abc import Callable
from typing import ClassVar

import grpc
import grpc.aio

from epp.adapters.extproc.contract import (
    DrivenExchange,
    ExtProcSettings,
    GrpcStatus,
)
from epp.adapters.extproc.driver import ExchangeDriver
from epp.adapters.extproc.grpcio_health import Context, attach
from epp.adapters.extproc.grpcio_options import bounds, require_free, require_version, target
from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.streams import OpenStreams
from epp.protocol.bodies.body_reader import BodyData
from epp.protocol.extproc.names import METHOD, SERVICE

_CODES = {code.value[0]: code for code in grpc.StatusCode}
"""grpcio's codes by their numbers."""
_DRAIN_SECONDS = 3600.0
"""How long streams under an old certificate may go on."""


class GrpcioServer:
    """Serves `envoy.service.ext_proc.v3.ExternalProcessor/Process` (`contract.ExtProcServer`)."""

    transport: ClassVar[str] = "grpcio"

    def __init__(
        self,
        open_exchange: Callable[[float], DrivenExchange],
        clock: Callable[[], float],
        settings: ExtProcSettings,
    ) -> None:
        self._open_exchange = open_exchange
        self._clock = clock
        self._settings = settings
        self._streams = OpenStreams(
            clock,
            max_held_bytes=settings.max_held_bytes,
            request_timeout=settings.request_timeout,
        )
        self.quiet = self._streams.quiet
        self._health: HealthServices | None = None
        self._server: grpc.aio.Server | None = None
        self._draining: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self.port = settings.port

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._streams.open

    def offer_health(self, health: HealthServices) -> None:
        """Offer health on this port too."""
        self._health = health

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` or `RuntimeError` if the port is taken."""
        settings = self._settings
        if settings.tls is not None:
            require_version(settings.tls_min_version)
        require_free(settings.address, settings.port)
        server, self.port = self._bound(settings.tls)
        await server.start()
        self._server = server

    async def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Serve with this pair from the next handshake on; connections that are open are drained.

        A second server takes the port over. Raises `RuntimeError` for a pair that cannot be used.
        """
        server, _ = self._bound(tls)
        await server.start()
        before, self._server = self._server, server
        if before is not None:
            draining = asyncio.create_task(before.stop(_DRAIN_SECONDS), name="drain")
            self._draining[before] = draining
            draining.add_done_callback(lambda _: self._draining.pop(before))

    def drain(self) -> None:
        """Do nothing: grpcio sends GOAWAY only when it also closes the port (`stop`)."""

    async def stop(self, grace: float) -> None:
        """Refuse further streams; give the open ones `grace` seconds to end."""
        servers = [*self._draining, *([self._server] if self._server else [])]
        await asyncio.gather(*(server.stop(grace) for server in servers))

    def _bound(self, tls: tuple[bytes, bytes] | None) -> tuple[grpc.aio.Server, int]:
        """Return a server that is bound but not started, and its port."""
        settings = self._settings
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                # A taken port is an error, not shared; with TLS one's successor shares it.
                ("grpc.so_reuseport", int(tls is not None)),
                # A gateway's keepalive: by default grpcio closes connections (GOAWAY,
                # too_many_pings) that are pinged more often than every five minutes.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
                *bounds(settings.limits),
            )
        )
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._process
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        if self._health is not None:
            attach(self._health, server)
        where = target(settings.address, self.port)
        if tls is None:
            return server, server.add_insecure_port(where)
        # Not `dynamic_ssl_server_credentials`: with these, grpcio 1.85 ends the process (SIGABRT
        # in `sync.cc`, SIGSEGV) once some hundred handshakes were broken off.
        return server, server.add_secure_port(where, grpc.ssl_server_credentials([tls]))

    async def _process(self, _: object, context: Context) -> None:
        if self._streams.open >= self._settings.limits.max_open_streams:
            exhausted = _CODES[GrpcStatus.RESOURCE_EXHAUSTED]
            await context.abort(exhausted, "too many streams are open")
        outlet = _CallOutlet()
        exchange = self._open_exchange(self._clock())
        driver = ExchangeDriver(exchange, outlet, self._clock, self._streams)
        try:
            status, message = await _pump(driver, outlet, context)
        finally:
            driver.closed()
        if status is not GrpcStatus.OK:
            await context.abort(_CODES[status], message)


class _CallOutlet:
    """A call of grpc.aio as an `Outlet`: keeps what its coroutine is to do next."""

    __slots__ = ("_reader", "changed", "ending", "held", "queue", "wants_room")

    def __init__(self) -> None:
        self.queue: list[bytes] = []
        self.held = False
        self.wants_room = False
        self.ending: tuple[GrpcStatus, str] | None = None
        self.changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None  # while it waits for the peer

    def send(self, message: bytes | tuple[bytes, BodyData]) -> None:
        self.queue.append(message if isinstance(message, bytes) else b"".join(message))

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def await_room(self) -> None:
        self.wants_room = True

    def flush(self) -> None:
        self.changed.set()
        if self.ending is not None and self._reader is not None:
            self._reader.cancel()

    async def read(self, context: Context) -> object:
        """Return the next message; None if the call was ended meanwhile."""
        self._reader = reader = asyncio.current_task()
        try:
            return await context.read()
        except asyncio.CancelledError:
            if reader is None or self.ending is None or reader.uncancel():
                raise
            return None
        finally:
            self._reader = None

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
            data = await outlet.read(context)
            if data is grpc.aio.EOF:
                half_closed = True
                driver.ended()
            elif isinstance(data, bytes):
                driver.message(data)
