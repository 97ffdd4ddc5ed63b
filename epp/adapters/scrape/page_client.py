"""An HTTP/1.1 client that gets one page repeatedly, over one persistent connection."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

import httptools

from epp.errors import WarmpickError

_MAX_HEAD_BYTES = 64 << 10
_RECEIVED_BYTES = 32 << 10
"""Bytes that are parsed at once: of chunks of one byte each, these take a millisecond."""
_MAX_FRAMING = 2
"""How many times as long as the page its chunks may be on the wire."""
_UNACKNOWLEDGED_MS = 3000
"""How long a host may leave what is sent to it unacknowledged; a busy server's does at once."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


class PageRefused(WarmpickError):
    """The server's response is not the page."""


class PageLost(PageRefused):
    """The connection broke before the page was complete: the server may be exiting."""


class NoAnswer(PageLost):
    """It broke before anything was answered, or a proxy answers that it cannot reach the server."""


class _Stale(NoAnswer):
    """An idle connection was closed before a response began: the request may be sent again."""


_OF_PROXIES: Mapping[int, type[Exception]] = {
    HTTPStatus.BAD_GATEWAY: NoAnswer,
    HTTPStatus.GATEWAY_TIMEOUT: TimeoutError,
}
"""What statuses of a proxy say of the server behind it (RFC 9110 §15.6.3, §15.6.5)."""


class PageClient:
    """Gets the page at `url`; one `get` at a time.

    Refuses pages of more than `max_bytes`, and redirects. `tls` returns the context of a
    connection over `https`; by default certificates are not verified. A connection may take
    `connect_seconds`, without TLS: a handshake is answered when the server comes to it.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        max_bytes: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        connect_seconds: float | None = None,
    ) -> None:
        self.url = url
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _DEFAULT_PORTS[parts.scheme]
        self._tls = (tls or unverified) if parts.scheme == "https" else None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        # RFC 9112 §3.2: a request has exactly one Host field.
        self._request = "\r\n".join([*lines, "", ""]).encode()
        self._max_bytes = max_bytes
        self._connect_seconds = None if self._tls else connect_seconds
        self._connection: _Connection | None = None

    async def get(self) -> bytes:
        """Return the page. Raises `PageRefused`, or `OSError` if it cannot connect.

        Raises `TimeoutError` where a proxy says that the server is late.
        A cancelled call aborts the connection, as a response may be in flight on it.
        """
        kept = self._connection
        if kept is not None and kept.open:
            try:
                return await self._request_on(kept)
            # RFC 9112 §9.3.1: a server may close an idle connection at any time; a client may
            # then repeat an idempotent request (RFC 9110 §9.2.2: GET is) on another one.
            except _Stale:
                pass
        return await self._request_on(await self._connect())

    def close(self) -> None:
        """Abort the connection, if there is one; the next `get` opens another."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _connect(self) -> "_Connection":
        self.close()
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._max_bytes),
                    self._host,
                    self._port,
                    ssl=self._tls() if self._tls else None,
                )
        except UnicodeError as error:
            raise NoAnswer(f"not a host name: {error}") from None
        except TimeoutError:
            raise NoAnswer("no connection in time") from None
        self._connection = connection
        connection.bound_silence()
        return connection

    async def _request_on(self, connection: "_Connection") -> bytes:
        complete = False
        try:
            page = await connection.request(self._request)
            complete = True
            return page
        finally:
            if not complete:
                self.close()


class _Connection(asyncio.BufferedProtocol):
    """One connection, and the response that is being read."""

    def __init__(self, max_bytes: int) -> None:
        self.open = True
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport
        self._response: asyncio.Future[bytes] | None = None
        self._used = False
        self._parser: httptools.HttpResponseParser  # while it is connected: the two hold each other
        self._buffer = bytearray()
        self._begin()

    def _begin(self) -> None:
        self._page = bytearray()
        self._received = 0
        self._head = 0
        self._in_body = False
        self._has_length = False

    async def request(self, request: bytes) -> bytes:
        """Send a request; return the body of its response."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._response = response
        self._transport.write(request)
        try:
            return await response
        finally:
            self._response = None
            self._used = True

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
        self._parser = httptools.HttpResponseParser(self)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def get_buffer(self, _sizehint: int) -> bytearray:
        """Return where the next bytes go."""
        self._buffer = bytearray(_RECEIVED_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse a part of the response."""
        data, self._buffer = memoryview(self._buffer)[:nbytes], bytearray()
        if self._response is None or self._response.done():
            self.abort()  # data without a request
            return
        self._received += nbytes
        if not self._in_body:
            self._head += nbytes
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(PageRefused(f"not an HTTP response: {error}"))
        if self._head > _MAX_HEAD_BYTES and not self._in_body:
            self._fail(PageRefused(f"the head is larger than {_MAX_HEAD_BYTES} bytes"))
        # RFC 9112 §7.1: chunk extensions and trailers may have any length.
        if self._received > _MAX_HEAD_BYTES + _MAX_FRAMING * self._max_bytes:
            self._fail(PageRefused("the response is much larger than its page may be"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response: complete if the connection's end delimits it, else failed."""
        self.open = False
        del self._parser
        # RFC 9112 §6.3, rule 8: without Content-Length and Transfer-Encoding the body ends there.
        if exc is None and self._in_body and not self._has_length:
            self._finish()
        began = self._head > 0
        kind = PageLost if began else _Stale if self._used else NoAnswer
        self._fail(kind(f"the connection was lost: {exc or 'closed by the server'}"))

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Abort on a response without a request."""
        if self._response is None or self._response.done():
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record whether a header field delimits the body."""
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Refuse any status but 200."""
        self._in_body = True
        if (status := self._parser.get_status_code()) != HTTPStatus.OK:
            self._fail(_OF_PROXIES.get(status, PageRefused)(f"HTTP status {status}"))

    def on_body(self, data: bytes) -> None:
        """Store a part of the page."""
        if len(self._page) + len(data) > self._max_bytes:
            self._fail(PageRefused(f"the page is larger than {self._max_bytes} bytes"))
        else:
            self._page += data

    def on_message_complete(self) -> None:
        """Finish the response; keep the connection if the server does."""
        keep = self._parser.should_keep_alive()
        self._finish()
        if keep:
            self._begin()
        else:
            self.abort()

    def _finish(self) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(bytes(self._page))
        self._page = bytearray()

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
            self.abort()


@cache
def unverified() -> ssl.SSLContext:
    """Return a context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
