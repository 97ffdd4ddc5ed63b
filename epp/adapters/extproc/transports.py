"""The transports by name, and whether they can be had here."""

from typing import Literal, get_args

from epp.adapters.extproc.conversation import ExtProcServer, log

Transport = Literal["native", "grpcio"]
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)


def native_fault() -> str:
    """Say why the native transport cannot be had; empty where it can."""
    try:
        import epp.native.http2  # noqa: F401, PLC0415 (looked for only where it is wanted)
    except ImportError as error:
        return str(error)
    return ""


def server_class(wanted: Transport) -> type[ExtProcServer]:
    """Give the transport that is wanted; grpcio's, with a line in the log, where it is not there.

    Only the one that is given is imported.
    """
    if wanted == "native":
        fault = native_fault()
        if not fault:
            from epp.adapters.extproc.native import NativeServer  # noqa: PLC0415 (see above)

            return NativeServer
        log.warning("transport.fallback", wanted=wanted, used="grpcio", reason=fault)
    from epp.adapters.extproc.grpcio import GrpcioServer  # noqa: PLC0415 (see above)

    return GrpcioServer
