"""The load generator's HTTP/1.1 side: one request at a time over a keep-alive connection.

It looks at a response only as far as it must to see its status and its end.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from bench.extproc.body_end import END_OF_HEAD, BodyEnd


class Answer:
    """What was seen of one response. `status` 0: the connection was lost."""

    __slots__ = ("first_byte_s", "status")

    def __init__(self, status: int, first_byte_s: float) -> None:
        self.status = status
        self.first_byte_s = first_byte_s


class Connection(asyncio.Protocol):
    """A connection that sends a request when told to and reports the answer once it is whole."""

    def __init__(self) -> None:
        self.alive = False
        self._done: Callable[[Connection, Answer], None] | None = None
        self._head = b""
        self._body: BodyEnd | None = None
        self._sent_at = 0.0
        self._first_byte_s = 0.0
        self._status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        if self._done is not None:
            self._finish(0)

    def send(
        self, request: tuple[bytes, ...], done: "Callable[[Connection, Answer], None]"
    ) -> None:
        """Send a request; `done` is called with this connection when the response ended."""
        self._done = done
        self._head = b""
        self._body = None
        self._first_byte_s = 0.0
        self._sent_at = time.perf_counter()
        self._transport.writelines(request)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        body = self._body
        if body is None:
            if not self._head:
                self._first_byte_s = time.perf_counter() - self._sent_at
            self._head += data
            head, mark, data = self._head.partition(END_OF_HEAD)
            if not mark:
                return
            self._status = int(head[9:12])
            body = self._body = BodyEnd(head.lower())
        if body.reached(data):
            self._finish(self._status)

    def _finish(self, status: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, Answer(status, self._first_byte_s))
