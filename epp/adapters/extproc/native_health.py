"""gRPC health over HTTP/2 over nghttp2: on the ext_proc port, or on one of its own."""

from collections.abc import Callable

from epp.adapters.extproc.contract import GrpcStatus
from epp.adapters.extproc.grpc_connection import GrpcConnection, Method
from epp.adapters.extproc.grpc_listener import GrpcListener
from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.http2.session import Stream
from epp.adapters.extproc.limits import PeerLimits
from epp.protocol.health import SERVICE

_MAX_REQUEST_BYTES = 1 << 16
"""A request holds nothing but the name of a service."""


def health_methods(health: HealthServices) -> dict[bytes, Method]:
    """Return the methods of the service by their paths."""
    return {
        f"/{SERVICE}/Check".encode(): lambda stream, _: HealthCall(stream, health.check),
        f"/{SERVICE}/List".encode(): lambda stream, _: HealthCall(stream, lambda _: health.list()),
        f"/{SERVICE}/Watch".encode(): lambda stream, conn: WatchCall(stream, conn, health),
    }


class NativeHealthServer:
    """A plaintext server with nothing but health. After `start`, `port` is the bound one."""

    def __init__(self, health: HealthServices) -> None:
        self._listener = GrpcListener(
            health_methods(health),
            PeerLimits(max_message_bytes=_MAX_REQUEST_BYTES, max_connections=1024, max_streams=16),
        )

    @property
    def port(self) -> int:
        """The bound port, after `start`."""
        return self._listener.port

    async def start(self, address: str, port: int) -> None:
        """Bind and serve. Raises `OSError` if the port is taken."""
        await self._listener.start(address, port, None)

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self._listener.stop(0)


class HealthCall:
    """One call with one request. `respond` returns the response, or None: no such service.

    It raises `ValueError` for a malformed request.
    """

    __slots__ = ("_respond", "_stream")

    def __init__(self, stream: Stream, respond: Callable[[bytes], bytes | None]) -> None:
        self._stream = stream
        self._respond = respond

    def message(self, data: bytes) -> None:
        """Handle the request, and answer it."""
        try:
            self._answer(data)
        except ValueError as error:
            self._end(GrpcStatus.INVALID_ARGUMENT, str(error))

    def _answer(self, data: bytes) -> None:
        response = self._respond(data)
        if response is None:
            self._end(GrpcStatus.NOT_FOUND, "there is no such service")
        else:
            self._stream.send(response)
            self._end()

    def _end(self, status: GrpcStatus = GrpcStatus.OK, problem: str = "") -> None:
        self._stream.owner = None
        self._stream.end(status, problem)
        self.closed()

    def ended(self) -> None:
        """End the call with an error: there was no request."""
        self._end(GrpcStatus.INVALID_ARGUMENT, "a call without a request")

    def growing(self, _size: int) -> None:
        """End the call: a request of this service is never that long."""
        self._end(GrpcStatus.RESOURCE_EXHAUSTED, "a request holds nothing but a name")

    def drained(self) -> None:
        """Nothing is held."""

    def closed(self) -> None:
        """Nothing is kept."""


class WatchCall(HealthCall):
    """A call of `Watch`, which lasts until the peer or the connection ends it."""

    __slots__ = ("_connection", "_health", "_watching")

    def __init__(self, stream: Stream, connection: GrpcConnection, health: HealthServices) -> None:
        super().__init__(stream, health.check)
        self._connection = connection
        self._health = health
        self._watching = False

    def _answer(self, data: bytes) -> None:
        if not self._watching:
            self._health.watch(data, self._send)
            self._watching = True

    def _send(self, answer: bytes) -> None:
        self._stream.send(answer)
        self._connection.flush_soon()

    def ended(self) -> None:
        """Go on: a peer that watches half-closes after its request."""
        if not self._watching:
            super().ended()

    def closed(self) -> None:
        """Stop watching."""
        self._health.unwatch(self._send)
