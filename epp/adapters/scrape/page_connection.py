"""What the connections of all versions of HTTP share: the response awaited, and its errors."""

import asyncio
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar, cast

import msgspec

from epp.errors import WarmpickError

_UNACKNOWLEDGED_MS = 3000
"""How long a host may leave what is sent to it unacknowledged; a busy server's does at once."""


class PageRefused(WarmpickError):
    """The server's response is not the page."""


class PageLost(PageRefused):
    """The connection broke before the page was complete: the server may be exiting."""


class NoAnswer(PageLost):
    """It broke before anything was answered, or a proxy answers that it cannot reach the server."""


class Stale(NoAnswer):
    """An idle connection was closed before a response began: the request may be sent again."""


_OF_PROXIES: Mapping[int, type[Exception]] = {
    HTTPStatus.BAD_GATEWAY: NoAnswer,
    HTTPStatus.GATEWAY_TIMEOUT: TimeoutError,
}
"""What statuses of a proxy say of the server behind it (RFC 9110 §15.6.3, §15.6.5)."""


def refusal(status: int) -> Exception:
    """Return the error of a response with a status other than 200."""
    return _OF_PROXIES.get(status, PageRefused)(f"HTTP status {status}")


class PageRequest(msgspec.Struct, frozen=True):
    """A GET of `target` (path and query) at `authority` (host and port)."""

    authority: str
    target: str
    headers: Mapping[str, str]


class PageConnection(asyncio.BufferedProtocol):
    """One connection, and the response that is being read; one `get` at a time.

    `open`: another `get` may follow.
    """

    received_bytes: ClassVar[int]
    """Bytes that are parsed at once."""

    def __init__(self, max_bytes: int) -> None:
        self.open = True
        self._max_bytes = max_bytes
        self._page = bytearray()
        self._transport: asyncio.Transport
        self._response: asyncio.Future[bytes] | None = None
        self._used = False
        self._buffer = bytearray()

    async def get(self) -> bytes:
        """Send the request; return the body of its response."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._response = response
        try:
            self._send()
            return await response
        finally:
            self._response = None
            self._used = True

    def _send(self) -> None:
        """Write the request."""
        raise NotImplementedError

    def bound_silence(self) -> None:
        """Break when a request is not acknowledged, as by a host that is gone (tcp(7), Linux)."""
        bound = getattr(socket, "TCP_USER_TIMEOUT", None)
        if bound is not None:
            own = self._transport.get_extra_info("socket")
            own.setsockopt(socket.IPPROTO_TCP, bound, _UNACKNOWLEDGED_MS)

    def abort(self) -> None:
        """Close the connection at once."""
        self.open = False
        self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def get_buffer(self, _sizehint: int) -> bytearray:
        """Return where the next bytes go."""
        self._buffer = bytearray(self.received_bytes)
        return self._buffer

    # For the readers of each version of HTTP.

    def on_body(self, data: bytes) -> None:
        """Store a part of the page."""
        if len(self._page) + len(data) > self._max_bytes:
            self._fail(PageRefused(f"the page is larger than {self._max_bytes} bytes"))
        else:
            self._page += data

    def _finish(self) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(bytes(self._page))
        self._page = bytearray()

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
            self.abort()

    def _lost(self, error: Exception | None, *, began: bool) -> None:
        """Fail at the connection's end; `began`: a part of the response was received."""
        kind = PageLost if began else Stale if self._used else NoAnswer
        self._fail(kind(f"the connection was lost: {error or 'closed by the server'}"))
