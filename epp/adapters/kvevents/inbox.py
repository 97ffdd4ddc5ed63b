"""What a ZMQ socket has received, on asyncio's loop."""

import asyncio
from contextlib import suppress

import zmq

_AT_ONCE = 64
"""Messages of one socket that are taken in before others have their turn."""


class Inbox:
    """What a socket has received, for one reader on the event loop."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.FD, self._ready.set)

    async def take(self) -> list[list[bytes]]:
        """Wait for messages and take some of them; never empty."""
        while True:
            self._ready.clear()
            messages: list[list[bytes]] = []
            # The descriptor tells of changes only, so all must be taken before it is waited for.
            with suppress(zmq.Again):
                while len(messages) < _AT_ONCE:
                    messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
                self._ready.set()
            if messages:
                return messages
            await self._ready.wait()

    def close(self) -> None:
        """Stop listening and close the socket."""
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=0)
