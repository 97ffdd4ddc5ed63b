"""Chooses a transport by its name; grpcio if the native one cannot be used."""

import os
from typing import Literal

from epp import compiled
from epp.adapters.extproc.contract import ExtProcServer, HealthServer
from epp.adapters.extproc.health import HealthServices
from epp.system.logs import Log

_log = Log(__name__)

Transport = Literal["native", "grpcio"]

_REMEDY = (
    "a request costs several times the CPU: run `make native` where libnghttp2 and its headers "
    "are (`epp check --native` says what is missing), or say --transport grpcio"
)


def native_fault() -> str:
    """Return why the native transport cannot be used; empty if it can."""
    return compiled.fault("epp.adapters.extproc.http2.session")


def server_class(wanted: Transport, tls_ciphers: str = "") -> type[ExtProcServer]:
    """Return the server of a transport; grpcio's, with a warning, if that cannot be used.

    Only the returned one is imported. `tls_ciphers` are those of `ExtProcSettings`.
    """
    if wanted == "native":
        fault = native_fault()
        if not fault:
            from epp.adapters.extproc.native import NativeServer  # noqa: PLC0415 (see above)

            return NativeServer
        _log.warning(
            "transport.fallback", wanted=wanted, used="grpcio", reason=fault, remedy=_REMEDY
        )
    if tls_ciphers:
        # gRPC `doc/environment_variables.md`: there is no argument for it, and it is read once.
        os.environ["GRPC_SSL_CIPHER_SUITES"] = tls_ciphers
    from epp.adapters.extproc.grpcio import GrpcioServer  # noqa: PLC0415 (see above)

    return GrpcioServer


def health_server(transport: str, health: HealthServices) -> HealthServer:
    """Return a server of health alone, on the transport that is in use."""
    if transport == "native":
        from epp.adapters.extproc.native_health import NativeHealthServer  # noqa: PLC0415 (see above)

        return NativeHealthServer(health)
    from epp.adapters.extproc.grpcio_health import GrpcioHealthServer  # noqa: PLC0415 (see above)

    return GrpcioHealthServer(health)
