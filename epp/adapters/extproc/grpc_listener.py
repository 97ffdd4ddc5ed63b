"""A port of a gRPC server: accepts connections, or is passed them, drains and closes them."""

import asyncio
import os
import resource
import socket
import ssl
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

from epp.adapters.extproc.contract import MethodCall
from epp.adapters.extproc.grpc_connection import GrpcConnection, Method
from epp.adapters.extproc.http2.session import Stream
from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.turns import Turns
from epp.model.endpoint import target_of
from epp.system.line_quota import LineQuota
from epp.system.logs import Log
from epp.system.port import Port, listen_arguments
from epp.system.tls import server_tls

if TYPE_CHECKING:  # see `GrpcListener.start`
    from epp.system.handshakes import Handshakes

_log = Log(__name__)

_PLAINTEXT = (
    "it speaks plaintext, and this port TLS: add TLS to the gateway's cluster (Envoy:"
    " transport_socket), or set --secure-serving=false"
)


class GrpcListener:
    """One port, and the connections to it. After `start`, `port` is the bound one."""

    def __init__(self, methods: Mapping[bytes, Method], limits: PeerLimits) -> None:
        self.methods = methods
        self.limits = limits
        self.turns = Turns()
        self.port = 0
        # A quarter of the allowed descriptors is left for pods, files and other ports.
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(limits.max_connections, max(open_files, 0) * 3 // 4 or sys.maxsize)
        self._lines = LineQuota()
        self._connections: dict[GrpcConnection, None] = {}
        self._shed: set[GrpcConnection] = set()
        self._taking: set[asyncio.Task[None]] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._listener: asyncio.Server | Port | None = None
        self._handshakes: Handshakes | None = None
        self._serving = False

    async def start(self, address: str, port: int | None, tls: ssl.SSLContext | None) -> None:
        """Bind and serve, with TLS if a context (`server_context`) is given.

        Without a port connections are passed by `take`. Raises `OSError` if the port is taken.
        """
        if tls is not None:
            from epp.system.handshakes import Handshakes  # noqa: PLC0415 (only TLS needs it)

            patience = self.limits.handshake_seconds
            self._handshakes = Handshakes(tls, self.accept, patience, self._warn_of_plaintext)
        if port is not None and tls is None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(
                self.accept, **listen_arguments(address, port)
            )
            self.port = self._listener.sockets[0].getsockname()[1]
        elif port is not None:
            self._listener = listener = Port(address, port, self._shake_hands)
            self.port = listener.port
            listener.open()
        self._serving = True

    def take(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted, between `start` and `stop`."""
        if not self._serving:
            connection.close()
        elif self._handshakes is not None:
            self._shake_hands(connection)
        else:
            task = asyncio.create_task(self._take(connection), name="connection")
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _take(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.accept, connection)
        except OSError:  # it went
            connection.close()

    @property
    def open(self) -> int:
        """How many connections there are, or are being set up, except those that are shed."""
        coming = len(self._taking) if self._handshakes is None else len(self._handshakes)
        return len(self._connections) + coming - len(self._shed)

    def shed(self, connections: int) -> None:
        """Drain some connections, the newest first, so that their peers reconnect."""
        kept = (each for each in reversed(self._connections) if each not in self._shed)
        for each in list(islice(kept, connections)):
            self._shed.add(each)
            each.drain()

    def drain(self) -> None:
        """Drain all connections, and those that still come with their first streams."""
        self.methods = {path: partial(self._last, each) for path, each in self.methods.items()}
        self.shed(len(self._connections))

    def _last(
        self, method: Method, stream: Stream, connection: GrpcConnection
    ) -> MethodCall | None:
        """Serve a stream of a connection that is to have no more."""
        if connection not in self._shed:
            self._shed.add(connection)
            asyncio.get_running_loop().call_soon(connection.drain)
        return method(stream, connection)

    def renew(self, tls: ssl.SSLContext) -> None:
        """Serve with this context from the next handshake on; after `start`, and with TLS only."""
        if self._handshakes is not None:
            self._handshakes.context = tls

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of one connection."""
        return cast(asyncio.Protocol, GrpcConnection(self))  # which has its methods

    def _shake_hands(self, connection: socket.socket) -> None:
        handshakes = cast("Handshakes", self._handshakes)
        if self._has_room(len(self._connections) + len(handshakes) + 1):
            handshakes.take(connection)
        else:
            connection.close()

    async def stop(self, grace: float) -> None:
        """Refuse further connections; give open streams `grace` seconds to end."""
        if not self._serving:
            return
        self._serving = False
        if self._listener is not None:
            self._listener.close()
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in list(self._connections):
            connection.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._none_open.wait()
        for connection in list(self._connections):
            connection.abort_streams()
        await self._none_open.wait()

    def connection_opened(self, connection: GrpcConnection) -> bool:
        """Add a connection to those that `stop` drains; return whether it may stay."""
        self._connections[connection] = None
        self._none_open.clear()
        return self._has_room(len(self._connections))

    def _has_room(self, connections: int) -> bool:
        if connections <= self._most:
            return True
        more = self._lines.take("full", asyncio.get_running_loop().time())
        if more is not None:
            _log.warning("connections.full", port=self.port, connections=self._most, more=more)
        return False

    def connection_closed(self, connection: GrpcConnection) -> None:
        """Remove a connection."""
        self._connections.pop(connection, None)
        self._shed.discard(connection)
        if not self._connections:
            self._none_open.set()

    def _warn_of_plaintext(self, connection: socket.socket) -> None:
        with suppress(OSError):  # it went
            self.warn_left(connection.getpeername(), _PLAINTEXT)

    def warn_left(self, peer: object, reason: str) -> None:
        """Log that a peer was given up, at most one line for each reason in ten seconds.

        `peer` is what `socket.getpeername` returns.
        """
        more = self._lines.take(reason, asyncio.get_running_loop().time())
        if more is not None:
            name = target_of(*peer[:2]) if isinstance(peer, tuple) else str(peer)
            _log.warning("connection.left", peer=name, reason=reason, more=more)


def server_context(
    pair: tuple[bytes, bytes], least: ssl.TLSVersion, ciphers: str
) -> ssl.SSLContext:
    """Return the TLS context for HTTP/2 with a (key, certificate chain) pair in PEM.

    `least` is 1.2 or above (RFC 9113 §9.2); see `server_tls`.
    """
    context = server_tls(least, ciphers)
    context.set_alpn_protocols(["h2"])  # RFC 9113 §3.2
    # `load_cert_chain` only reads files; this pair is in memory and has no name.
    number = os.memfd_create("certificate")
    try:
        os.write(number, b"\n".join(pair))
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
    return context
