"""One port for several workers: who connects is passed on to the one with the fewest connections.

Workers that listened at the port themselves (SO_REUSEPORT) would be given connections by a hash of
their addresses, and a gateway keeps few: of two, both go to one worker every other time.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_BACKLOG: Final = 1024
_AT_ONCE: Final = 64
"""Connections that are passed on between two turns of the event loop."""

Deal = Callable[[socket.socket], bool]
"""Passes a connection on; returns False if nobody takes it."""


class SharedPort:
    """Binds a port when it is made, and accepts between `open` and `close`.

    Raises `OSError` if the port is taken. `port` is the bound one.
    """

    def __init__(self, address: str, port: int, deal: Deal) -> None:
        self._deal: Final = deal
        self._open = False
        self._sockets: list[socket.socket] = []
        try:
            self._bind(address, port)
        except OSError:
            self.close()
            raise
        self.port: Final[int] = self._sockets[0].getsockname()[1]

    def _bind(self, address: str, port: int) -> None:
        found = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, where in dict.fromkeys(found):
            bound = socket.socket(family, kind, protocol)
            self._sockets.append(bound)
            bound.settimeout(0)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(where)

    def open(self) -> None:
        """Accept from now on."""
        if self._open:
            return
        self._open = True
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            each.listen(_BACKLOG)
            loop.add_reader(each, self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except OSError:  # none is left; or it was broken off, or no descriptor is left
                return
            with connection:  # whoever took it has a descriptor of its own
                self._deal(connection)

    def close(self) -> None:
        """Accept no more."""
        if self._open:
            loop = asyncio.get_running_loop()
            for each in self._sockets:
                loop.remove_reader(each)
        self._open = False
        for each in self._sockets:
            with suppress(OSError):
                each.close()
