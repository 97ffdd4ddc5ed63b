"""The gRPC health services that gateways and kubelets ask."""

from enum import Enum

import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from epp.protocol.envoy import SERVICE

_LIVE = ("liveness",)
_READY = ("", "readiness", "inference-extension", SERVICE)


class Health(Enum):
    """What a service says of itself."""

    SERVING = health_pb2.HealthCheckResponse.SERVING
    NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthServices:
    """`liveness` serves as long as the process answers; the others once the picker is ready.

    Names: GIE proposal 004 and what its conformance suite probes (`inference-extension`).
    """

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._states: dict[str, int] = {}

    def attach(self, server: grpc.aio.Server) -> None:
        """Offer the services on a server that has not started."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def tell(self, state: Health) -> None:
        """Set whether the picker is ready."""
        self._states = dict.fromkeys(_READY, state.value)
        self._states |= dict.fromkeys(_LIVE, Health.SERVING.value)
        for service, value in self._states.items():
            await self._servicer.set(service, value)

    def check(self, request: bytes) -> bytes | None:
        """Answer a `HealthCheckRequest` of a server that is not grpcio's.

        None where there is no such service. Raises `ValueError` for what is no request.
        """
        try:
            service = health_pb2.HealthCheckRequest.FromString(request).service
        except DecodeError as error:
            raise ValueError(f"not a HealthCheckRequest: {error}") from None
        state = self._states.get(service)
        if state is None:
            return None
        answer: bytes = health_pb2.HealthCheckResponse(status=state).SerializeToString()
        return answer


async def serve_health(services: HealthServices, where: str) -> tuple[grpc.aio.Server, int]:
    """Start a plaintext server with nothing but health on `address:port`; return its port."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    services.attach(server)
    port = server.add_insecure_port(where)
    await server.start()
    return server, port
