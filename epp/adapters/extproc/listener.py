"""Where gRPC connections come in, and how they end in good order."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress

from epp.adapters.extproc.connection import Connection, Open
from epp.adapters.extproc.limits import Limits


class Listener:
    """One port, and the connections to it. After `start`, `port` is the bound one."""

    def __init__(self, methods: Mapping[bytes, Open], limits: Limits) -> None:
        self.methods = methods
        self.limits = limits
        self.port = 0
        self._connections: set[Connection] = set()
        self._alone = asyncio.Event()
        self._alone.set()
        self._listener: asyncio.Server | None = None

    async def start(self, address: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Bind and serve. Raises `OSError` where the port is taken."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: Connection(self), address, port, ssl=tls)
        self.port = self._listener.sockets[0].getsockname()[1]

    def accept(self) -> Connection:
        """Make what serves one connection."""
        return Connection(self)

    async def stop(self, grace: float) -> None:
        """Take no more connections; give the streams that are open `grace` seconds to end."""
        if self._listener is None:
            return
        self._listener.close()
        for connection in list(self._connections):
            connection.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._alone.wait()
        for connection in list(self._connections):
            connection.cut()
        await self._alone.wait()

    def joined(self, connection: Connection) -> None:
        """Count a connection."""
        self._connections.add(connection)
        self._alone.clear()

    def left(self, connection: Connection) -> None:
        """Count it no more."""
        self._connections.discard(connection)
        if not self._connections:
            self._alone.set()
