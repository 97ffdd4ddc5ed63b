"""A bound TCP port whose connections are taken as they are accepted."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from epp.system.logs import Log

_BACKLOG: Final = 1024
_AT_ONCE: Final = 64
"""Connections that are accepted between two turns of the event loop."""
NO_ROOM: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors of a process that can have no more connections, whatever its peers do."""
_PAUSE_SECONDS: Final = 1.0
"""How long accepting pauses after there was no room."""

_EVERYWHERE: Final = {"", "::"}

_log = Log(__name__)


def bound_sockets(address: str, port: int) -> list[socket.socket]:
    """Return sockets that are bound to a port, and do not listen. Raises `OSError`.

    No address, or `::`, stands for all of them: one socket for both families, as in Go, or one for
    IPv4 where there is no IPv6.
    """
    made: list[socket.socket] = []
    everywhere = address in _EVERYWHERE
    if everywhere:
        address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 (it is asked for)
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in dict.fromkeys(found):
            made.append(socket.socket(family, kind, protocol))
            made[-1].settimeout(0)
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not everywhere)
            made[-1].bind(where)
    except OSError as error:
        for each in made:
            each.close()
        if isinstance(error, socket.gaierror):
            raise
        raise OSError(error.errno, f"port {port}: {error.strerror}") from None
    return made


def listen_arguments(address: str, port: int) -> dict[str, Any]:
    """Return where asyncio is to listen, as its arguments: it has no socket for both families."""
    if address in _EVERYWHERE:
        return {"sock": bound_sockets(address, port)[0]}
    return {"host": address, "port": port}


class Port:
    """Binds a port when it is made, and accepts between `open` and `close`.

    `take` is given each connection, and closes it. Raises `OSError` if the port is taken. `port` is
    the bound one.
    """

    def __init__(self, address: str, port: int, take: Callable[[socket.socket], None]) -> None:
        self._take: Final = take
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._sockets: Final = bound_sockets(address, port)
        self.port: Final[int] = self._sockets[0].getsockname()[1]

    def open(self) -> None:
        """Accept from now on."""
        for each in self._sockets:
            each.listen(_BACKLOG)
            self._go_on(each)

    def _go_on(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_ROOM:
                    self._pause(listening, error)
                    return
                continue  # it was broken off before it was accepted
            self._take(connection)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Accept nothing for a while: a waiting peer would make the socket ready again at once."""
        _log.warning("port.no_room", port=self.port, problem=str(error))
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._pauses[listening] = loop.call_later(_PAUSE_SECONDS, self._go_on, listening)

    def close(self) -> None:
        """Accept no more."""
        for pause in self._pauses.values():
            pause.cancel()
        while self._sockets:
            listening = self._sockets.pop()
            asyncio.get_running_loop().remove_reader(listening)
            with suppress(OSError):
                listening.close()
