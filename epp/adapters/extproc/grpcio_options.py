"""The common options of grpcio's servers: their bounds, and a port of their own."""

import ssl

from epp.adapters.extproc.limits import PeerLimits
from epp.model.endpoint import target_of
from epp.system.port import bound_sockets

_MAX_STREAMS = 1_000
"""Streams of one connection. A peer that opens and resets all of them makes others wait for them,
about half a millisecond each: grpcio hands streams over in the order in which they came.
Fewer would hold up gateways that keep to one connection."""


def bounds(limits: PeerLimits) -> tuple[tuple[str, int], ...]:
    """Return the arguments of a server that bound what its peers may cost."""
    return (
        # Windows stay at 64 KiB: where grpcio widens them it reads megabytes ahead of each stream,
        # which nothing counts.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_concurrent_streams", min(limits.max_streams, _MAX_STREAMS)),
        # Streams that the event loop has not taken yet: by default some of more than 1,000 are
        # ended with CANCELLED, at random, and all beyond 3,000 (gRPC core, server.cc).
        ("grpc.server.max_pending_requests", limits.max_open_streams),
        ("grpc.server.max_pending_requests_hard_limit", limits.max_open_streams),
        ("grpc.max_metadata_size", limits.max_header_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_header_bytes),
        # The TLS handshake and the peer's first SETTINGS together; two minutes by default.
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_seconds * 1000)),
        # A silent peer; by default it is pinged after two hours, and has a minute to answer.
        ("grpc.keepalive_time_ms", int(limits.ping_after * 1000)),
        ("grpc.http2.ping_timeout_ms", int(limits.ping_timeout * 1000)),
    )


def require_free(address: str, port: int) -> None:
    """Raise `OSError` if a port is taken: grpcio's own error says less, or it shares the port."""
    for each in bound_sockets(address, port):
        each.close()


def target(address: str, port: int) -> str:
    """Return where to listen in grpcio's words: `::` is all addresses, of IPv4 too."""
    return target_of(address or "::", port)


def require_version(least: ssl.TLSVersion) -> None:
    """Raise `RuntimeError` for a minimum version above 1.2, which grpcio cannot enforce."""
    if least > ssl.TLSVersion.TLSv1_2:
        raise RuntimeError("grpcio serves TLS 1.2 too; --tls-min-version needs --transport native")
