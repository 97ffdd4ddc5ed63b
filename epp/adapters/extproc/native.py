"""The ext_proc service over HTTP/2 over nghttp2 (`http2/`).

It moves bytes; every decision is the exchange's. An exchange is driven by the read that brings its
message, without a task of its own.
"""

import ssl
from collections.abc import Callable
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from epp.adapters.extproc.contract import (
    DrivenExchange,
    ExtProcSettings,
    GrpcStatus,
)
from epp.adapters.extproc.driver import ExchangeDriver
from epp.adapters.extproc.grpc_connection import QUEUE_BYTES, GrpcConnection, Method
from epp.adapters.extproc.grpc_listener import GrpcListener, server_context
from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.http2.session import Stream
from epp.adapters.extproc.native_health import health_methods
from epp.adapters.extproc.streams import OpenStreams
from epp.protocol.bodies.body_reader import BodyData
from epp.protocol.extproc.names import METHOD, SERVICE

_PATH: Final = f"/{SERVICE}/{METHOD}".encode()


class NativeServer:
    """Serves `envoy.service.ext_proc.v3.ExternalProcessor/Process` (`contract.ExtProcServer`).

    At a port, or over connections that another process has accepted and passes to `take`.
    """

    transport: ClassVar[str] = "native"

    def __init__(
        self,
        open_exchange: Callable[[float], DrivenExchange],
        clock: Callable[[], float],
        settings: ExtProcSettings,
    ) -> None:
        self._clock = clock
        self._streams = OpenStreams(
            clock,
            max_held_bytes=settings.max_held_bytes,
            request_timeout=settings.request_timeout,
        )
        self._open_exchange = open_exchange
        self._settings = settings
        self._most_streams = settings.limits.max_open_streams
        self._methods: dict[bytes, Method] = {_PATH: self._process}
        self._listener = GrpcListener(self._methods, settings.limits)
        self.accept, self.drain = self._listener.accept, self._listener.drain
        self.take, self.shed = self._listener.take, self._listener.shed
        self.stop, self.quiet = self._listener.stop, self._streams.quiet

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._streams.open

    @property
    def port(self) -> int:
        """The bound port, after `start`."""
        return self._listener.port

    @property
    def open_connections(self) -> int:
        """How many connections there are, except those that are being given up."""
        return self._listener.open

    def offer_health(self, health: HealthServices) -> None:
        """Offer health on this port too."""
        self._methods |= health_methods(health)

    async def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Serve with this pair from the next handshake on; open connections keep theirs."""
        self._listener.renew(self._context(tls))

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` if the port is taken."""
        settings = self._settings
        tls = None if settings.tls is None else self._context(settings.tls)
        port = None if settings.passed else settings.port
        await self._listener.start(settings.address, port, tls)

    def _context(self, tls: tuple[bytes, bytes]) -> ssl.SSLContext:
        settings = self._settings
        return server_context(tls, settings.tls_min_version, settings.tls_ciphers)

    def _process(self, stream: Stream, connection: GrpcConnection) -> ExchangeDriver | None:
        if self._streams.open >= self._most_streams:
            stream.end(GrpcStatus.RESOURCE_EXHAUSTED, "too many streams are open")
            return None
        exchange = self._open_exchange(self._clock())
        outlet = _StreamOutlet(stream, connection)
        return ExchangeDriver(exchange, outlet, self._clock, self._streams)


@mypyc_attr(free_list_len=1)
class _StreamOutlet:
    """A stream of a connection as an `Outlet`."""

    def __init__(self, stream: Stream, connection: GrpcConnection) -> None:
        self._stream = stream
        self._connection = connection

    def send(self, message: bytes | tuple[bytes, BodyData]) -> None:
        stream = self._stream
        if isinstance(message, bytes):
            stream.send(message)
        else:
            stream.send(message[0], message[1])
        if stream.queued > QUEUE_BYTES:
            self._connection.hold(stream)

    def hold(self) -> None:
        self._stream.hold()

    def release(self) -> None:
        if self._stream.queued <= QUEUE_BYTES:
            self._stream.release()

    def await_room(self) -> None:
        self._connection.hold(self._stream)

    def flush(self) -> None:
        self._connection.flush_soon()

    def end(self, status: GrpcStatus, message: str) -> None:
        self._stream.owner = None
        self._stream.end(status, message)
