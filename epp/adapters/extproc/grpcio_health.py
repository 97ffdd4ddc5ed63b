"""gRPC health over grpc.aio: on the ext_proc port, or on one of its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from epp.adapters.extproc.grpcio_options import bounds, require_free, target
from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.limits import PeerLimits
from epp.protocol.health import SERVICE

_LIMITS = PeerLimits(max_connections=1024, max_streams=16)

Context = grpc.aio.ServicerContext[Any, Any]


class GrpcioHealthServer:
    """A plaintext server with nothing but health. After `start`, `port` is the bound one."""

    def __init__(self, health: HealthServices) -> None:
        self.port = 0
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0), *bounds(_LIMITS)))
        attach(health, self._server)

    async def start(self, address: str, port: int) -> None:
        """Bind and serve. Raises `OSError` or `RuntimeError` if the port is taken."""
        require_free(address, port)
        self.port = self._server.add_insecure_port(target(address, port))
        await self._server.start()

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self._server.stop(0)


def attach(health: HealthServices, server: grpc.aio.Server) -> None:
    """Offer the health service on a server that has not started."""

    async def check(request: bytes, context: Context) -> bytes:
        try:
            answer = health.check(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return answer

    async def list_(_: bytes, __: Context) -> bytes:
        return health.list()

    async def watch(request: bytes, context: Context) -> AsyncIterator[bytes]:
        responses: asyncio.Queue[bytes] = asyncio.Queue()
        send = responses.put_nowait
        try:
            health.watch(request, send)
            while True:
                yield await responses.get()
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            health.unwatch(send)

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Check": grpc.unary_unary_rpc_method_handler(check),
        "List": grpc.unary_unary_rpc_method_handler(list_),
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
