"""Gets one page again and again, over one connection that is kept. It reads no page."""

import asyncio
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

import httptools

from epp.errors import WarmpickError

_MAX_HEAD_BYTES = 64 << 10
_DEFAULT_PORTS = {"http": 80, "https": 443}


class PageRefused(WarmpickError):
    """The server answered with something that is not the page."""


class PageLost(PageRefused):
    """The connection broke before the page was whole: the server may be on its way out."""


class _Stale(PageLost):
    """A connection that had been kept was closed before an answer began: worth another try."""


class PageClient:
    """Gets the page at `url`; one `get` at a time.

    A page of more than `max_bytes` is refused. Certificates are not verified; redirects are not
    followed.
    """

    def __init__(self, url: str, headers: Mapping[str, str], max_bytes: int) -> None:
        self.url = url
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _DEFAULT_PORTS[parts.scheme]
        self._tls = _unverified() if parts.scheme == "https" else None
        lines = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._request = "\r\n".join([*lines, "", ""]).encode()
        self._max_bytes = max_bytes
        self._connection: _Connection | None = None

    async def get(self) -> bytes:
        """Give the page. Raises `PageRefused`, or `OSError` where there is no connection.

        Whoever cancels it breaks the connection off, for an answer may be under way.
        """
        kept = self._connection
        if kept is not None and kept.open:
            try:
                return await self._ask(kept)
            except _Stale:
                pass
        return await self._ask(await self._connect())

    def close(self) -> None:
        """Break the connection off, if there is one; another `get` opens the next."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _connect(self) -> "_Connection":
        self.close()
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._max_bytes), self._host, self._port, ssl=self._tls
            )
        except UnicodeError as error:
            raise PageRefused(f"no name of a host: {error}") from None
        self._connection = made
        return made

    async def _ask(self, connection: "_Connection") -> bytes:
        answered = False
        try:
            page = await connection.ask(self._request)
            answered = True
            return page
        finally:
            if not answered:
                self.close()


class _Connection(asyncio.Protocol):
    """One connection, and the answer that is being read."""

    def __init__(self, max_bytes: int) -> None:
        self.open = True
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[bytes] | None = None
        self._asked_before = False
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._head = 0
        self._in_body = False
        self._has_length = False

    async def ask(self, request: bytes) -> bytes:
        """Send a request; give the page that answers it."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._transport.write(request)
        try:
            return await answer
        finally:
            self._answer = None
            self._asked_before = True

    def abort(self) -> None:
        """Break it off."""
        self.open = False
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Read a part of the answer."""
        if self._answer is None or self._answer.done():
            self.abort()  # nothing was asked
            return
        if not self._in_body:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(PageRefused(f"not an HTTP answer: {error}"))
        if self._head > _MAX_HEAD_BYTES and not self._in_body:
            self._fail(PageRefused(f"the head is larger than {_MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer, which is whole where only the connection's end says how long it is."""
        self.open = False
        if exc is None and self._in_body and not self._has_length:
            self._done()
        began = self._head > 0
        kind = _Stale if self._asked_before and not began else PageLost
        self._fail(kind(f"the connection was lost: {exc or 'closed by the server'}"))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Take no answer that was not asked for."""
        if self._answer is None or self._answer.done():
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the answer says where it ends."""
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Refuse what is not the page."""
        self._in_body = True
        if (status := self._parser.get_status_code()) != HTTPStatus.OK:
            self._fail(PageRefused(f"HTTP status {status}"))

    def on_body(self, data: bytes) -> None:
        """Keep a part of the page."""
        self._size += len(data)
        if self._size > self._max_bytes:
            self._fail(PageRefused(f"the page is larger than {self._max_bytes} bytes"))
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Answer, and make ready for the next one."""
        keep = self._parser.should_keep_alive()
        self._done()
        if keep:
            self._begin()
        else:
            self.abort()

    def _done(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"".join(self._pieces))
        self._pieces = []

    def _fail(self, error: PageRefused) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self.abort()


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
