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

_SMALL_BYTES = 1 << 10
"""Parts of a page that are shorter are joined as they come; longer ones are not copied."""


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

    buffer: ClassVar[bytearray]
    """Where all connections receive: what one has received is parsed before the next one does."""

    def __init__(self, max_bytes: int) -> None:
        self.open = True
        self._max_bytes = max_bytes
        self._page: list[bytes | bytearray] = []
        self._page_bytes = 0
        self._transport: asyncio.Transport
        self._response: asyncio.Future[bytes] | None = None
        self._used = False

    def get(self) -> asyncio.Future[bytes]:
        """Send the request; return what will be the body of its response."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._response = response
        try:
            self._send()
        except PageRefused as error:
            self._fail(error)
        return response

    def _send(self) -> None:
        """Write the request."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Make a response that is awaited raise `TimeoutError`."""
        self._fail(TimeoutError())

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
        return self.buffer

    # For the readers of each version of HTTP.

    def on_body(self, data: bytes) -> None:
        """Store a part of the page."""
        self._page_bytes += len(data)
        if self._page_bytes > self._max_bytes:
            self._fail(PageRefused(f"the page is larger than {self._max_bytes} bytes"))
        elif len(data) >= _SMALL_BYTES or not self._page:
            self._page.append(data)
        elif isinstance(self._page[-1], bytearray):
            self._page[-1] += data
        else:
            self._page.append(bytearray(data))

    def _finish(self) -> None:
        if (response := self._taken()) is not None:
            response.set_result(b"".join(self._page))
        self._page, self._page_bytes = [], 0

    def _fail(self, error: Exception) -> None:
        if (response := self._taken()) is not None:
            response.set_exception(error)
            self.abort()

    def _taken(self) -> asyncio.Future[bytes] | None:
        """Take out the response that is awaited; None if none is."""
        response, self._response = self._response, None
        if response is None or response.done():
            return None
        self._used = True
        return response

    def _lost(self, error: Exception | None, *, began: bool) -> None:
        """Fail at the connection's end; `began`: a part of the response was received."""
        kind = PageLost if began else Stale if self._used else NoAnswer
        self._fail(kind(f"the connection was lost: {error or 'closed by the server'}"))
