"""TLS handshakes of a port, begun a few at a time, each when the client's hello is whole."""

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

_AT_ONCE: Final = 4
"""Handshakes that begin between two looks at the sockets: some two milliseconds of work."""
_LOW_WATER: Final = (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
_RECORD_HEAD: Final = 5
_HANDSHAKE: Final = 22
_HTTP2: Final = b"PRI *"
"""The beginning of HTTP/2's preface (RFC 9113 §3.4), as long as a record's head."""
_LONGEST_RECORD: Final = _RECORD_HEAD + (1 << 14)
"""RFC 8446 §5.1: a record's head is its type, two bytes of version, and the length of the rest."""


class Handshakes:
    """Makes TLS connections of accepted ones, with the protocols that `accept` returns.

    Otherwise the event loop would first make every handshake whose socket has bytes, a thousand in
    half a second, and each takes 60 KB once begun. A client has `patience` seconds for its hello,
    and as many for the rest. `plaintext` is called with the connection of a client that speaks
    HTTP/2 without TLS. `context` may be replaced, for later handshakes.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        accept: Callable[[], asyncio.Protocol],
        patience: float,
        plaintext: Callable[[socket.socket], None],
    ) -> None:
        self.context = context
        self._accept: Final = accept
        self._plaintext: Final = plaintext
        self._patience: Final = patience
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._ready: deque[socket.socket] = deque()
        self._made: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return how many are not made yet."""
        return len(self._silent) + len(self._ready) + len(self._made)

    def take(self, connection: socket.socket) -> None:
        """Make a handshake with a client that has connected; close the connection if it fails."""
        connection.settimeout(0)
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(self._patience, self._leave, connection)
        loop.add_reader(connection, self._look, connection)
        if not _wakes_at(connection, _RECORD_HEAD):
            self._begin_in_turn(connection)

    def close(self) -> None:
        """Leave all of them."""
        for connection in list(self._silent):
            self._leave(connection)
        while self._ready:
            self._ready.popleft().close()
        for task in self._made:
            task.cancel()

    def _look(self, connection: socket.socket) -> None:
        """Begin if the first record is whole, or is not one; otherwise wait for the rest of it."""
        try:
            seen = connection.recv(_LONGEST_RECORD, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            self._leave(connection)
            return
        if seen.startswith(_HTTP2):
            self._plaintext(connection)
        size = _RECORD_HEAD
        if len(seen) >= size and seen[0] == _HANDSHAKE:
            size += int.from_bytes(seen[3:size], "big")
        if len(seen) >= size or size > _LONGEST_RECORD:  # OpenSSL says what is wrong with others
            self._begin_in_turn(connection)
        elif _has_ended(connection):
            self._leave(connection)
        elif connection.getsockopt(*_LOW_WATER) == size or not _wakes_at(connection, size):
            self._begin_in_turn(connection)  # woken too early: the kernel is short of memory

    def _leave(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._silent.pop(connection).cancel()
        asyncio.get_running_loop().remove_reader(connection)

    def _begin_in_turn(self, connection: socket.socket) -> None:
        self._forget(connection)
        _wakes_at(connection, 1)
        self._ready.append(connection)
        if len(self._ready) == 1:
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(_AT_ONCE, len(self._ready))):
            task = loop.create_task(self._make(self._ready.popleft()), name="handshake")
            self._made.add(task)
            task.add_done_callback(self._made.discard)
        if self._ready:
            loop.call_soon(self._begin_some)

    async def _make(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._accept,
                connection,
                ssl=self.context,
                ssl_handshake_timeout=self._patience,
            )
        except OSError:  # it went, or TLS did not come about
            connection.close()


def _has_ended(connection: socket.socket) -> bool:
    """Say whether the client sends no more."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _wakes_at(connection: socket.socket, size: int) -> bool:
    """Have a reader called only once this many bytes are there; return whether the kernel can.

    The kernel waits for at most half of what it would hold (tcp(7), `tcp_rmem`).
    """
    try:
        connection.setsockopt(*_LOW_WATER, size)
        return connection.getsockopt(*_LOW_WATER) == size
    except OSError:  # a system without it
        return False
