"""The operators' HTTP/1.1 server: `/metrics`, `/healthz`, `/readyz`, profiles and debug pages."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import httptools
import msgspec

from epp.adapters.telemetry.debug_pages import (
    DebugPage,
    QueryRefused,
    is_local,
    is_rebound,
    read_query,
)
from epp.adapters.telemetry.profiles import Profile
from epp.system.port import listen_arguments
from epp.system.shared_result import SharedResult

if TYPE_CHECKING:  # a class that a start need not make

    class MetricsSource(Protocol):
        """A source of metrics (`epp.adapters.telemetry.metrics.Telemetry`)."""

        def page(self, *, openmetrics: bool = False) -> Iterable[str] | AsyncIterable[str]:
            """Return the pieces of the page, in Prometheus' text format or in OpenMetrics'."""


_MAX_HEAD_BYTES = 32 << 10
_MAX_CONNECTIONS = 256
_IDLE_SECONDS = 75.0
_WRITE_SECONDS = 30.0
_STOP_SECONDS = 1.0
_WRITE_BYTES = 64 << 10
"""Bytes of a body that are written to a connection at once, so that a slow reader holds no more."""
_TLS_HANDSHAKE = b"\x16"
"""What a TLS connection begins with (RFC 8446 §5.1)."""
_PAGE_SECONDS = 1.0
"""The greatest age of a metrics page: scrapes that come together share one."""
_TEXT = "text/plain; charset=utf-8"
_SCHEME = "bearer "
_FOR_BROWSERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
)
"""Headers of every page that a browser may show: own scripts only, no frames, no referrer."""
_REBOUND = b"403 Forbidden: ask by localhost or by an address, not by a name\n"

Review = Callable[[str, str], Awaitable[HTTPStatus]]
"""Returns 200 if the bearer of a token may read a path, else the status to respond with."""


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the port serves, and to whom: `review` authorizes each request of metrics or profiles.

    `profiles` are pages by their paths. `tls`: serve HTTPS. `debug` has more pages, for readers on
    this machine and those that `review` authorizes.
    """

    review: Review | None = None
    profiles: Mapping[bytes, Profile] = {}
    tls: ssl.SSLContext | None = None
    debug: Mapping[bytes, DebugPage] = {}


_EVERYBODY = OperatorSettings()


class _Response(msgspec.Struct, frozen=True):
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    more: str = ""
    """More header fields, as they are sent."""

    def head(self, *, keep: bool) -> bytes:
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
            f"{self.more}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        ).encode()


class _Request:
    """A request's method, path and relevant headers, parsed from its head."""

    def __init__(self, head: bytes) -> None:
        """Parse a head. Raises `HttpParserError` for a malformed one."""
        self.path = b""
        self.query = b""
        self.accept = ""
        self.token = ""
        """Its bearer token."""
        self.host = ""
        self.known_etag = ""
        """The version that its sender has, as `If-None-Match` says."""
        self.keep = False
        """Whether the connection is kept for another one."""
        self.local = False
        """Whether it was sent from this machine."""
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            self.keep = False
        self.method: bytes = self._parser.get_method()

    def on_url(self, url: bytes) -> None:
        self.path, _, self.query = url.partition(b"?")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"accept":
            self.accept = value.decode("latin-1")
        elif name == b"host":
            self.host = value.decode("latin-1")
        elif name == b"if-none-match":
            self.known_etag = value.decode("latin-1").strip().removeprefix("W/")
        elif name == b"authorization":
            # RFC 9110 §11.1: the scheme (RFC 6750: Bearer) is case-insensitive.
            credentials = value.decode("latin-1")
            if credentials[: len(_SCHEME)].lower() == _SCHEME:
                self.token = credentials[len(_SCHEME) :].strip()

    def on_message_complete(self) -> None:
        """Store whether the connection persists; a request with a body never completes here."""
        self.keep = self._parser.should_keep_alive()


class OperatorServer:
    """Serves from `start` to `stop` at `port`; once started that is the bound port.

    `/healthz` responds with 200 while the event loop runs; `/readyz` with 200 or 503, by `ready`;
    `/metrics` with the page in the format of the request's `Accept`, at most a second old. Requests
    with a body are not served. An address that begins with a slash is a Unix socket's: its readers
    are on this machine, and get a new metrics page each time. If there are more connections than
    `_MAX_CONNECTIONS`, the one without a request for the longest time is closed.
    """

    head_seconds = 10.0
    """How long a head may take from its first byte on."""

    def __init__(
        self,
        telemetry: "MetricsSource",
        ready: Callable[[], bool],
        address: str,
        port: int,
        settings: OperatorSettings = _EVERYBODY,
    ) -> None:
        self.port = port
        self._settings = settings
        self._telemetry = telemetry
        self._ready = ready
        self._address = address
        self._on_machine = address.startswith("/")
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        # Connections by the tasks that read from them, in the order in which they became idle.
        self._idle: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._metrics_pages = {
            openmetrics: SharedResult(
                partial(self._written, openmetrics=openmetrics), _PAGE_SECONDS, time.monotonic
            )
            for openmetrics in (False, True)
        }
        self._pages: dict[bytes, Callable[[_Request], Awaitable[_Response]]] = {
            b"/metrics": self._metrics,
            b"/healthz": self._healthz,
            b"/readyz": self._readyz,
        }
        self._pages |= dict.fromkeys(settings.debug, self._debug)
        self._pages |= dict.fromkeys(settings.profiles, self._profile)

    async def start(self) -> None:
        """Bind the port and serve. Raises `OSError` if it cannot be bound."""
        if self._on_machine:
            self._server = await asyncio.start_unix_server(
                self._serve, self._address, limit=_MAX_HEAD_BYTES
            )
            return
        self._server = await asyncio.start_server(
            self._serve,
            limit=_MAX_HEAD_BYTES,
            ssl=self._settings.tls,
            ssl_handshake_timeout=None if self._settings.tls is None else self.head_seconds,
            **listen_arguments(self._address, self.port),
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port; responses in progress get a second to finish."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._idle.values():
            writer.close()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_STOP_SECONDS)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        task = cast(asyncio.Task[None], asyncio.current_task())
        self._serving.add(task)
        try:
            keep = self._make_room()
            while keep and self._server is not None and self._server.is_serving():
                self._idle[task] = writer
                request = await self._read(reader)
                self._idle.pop(task, None)
                keep = request is not None and request.keep
                if request is not None:
                    peer = writer.get_extra_info("peername")
                    request.local = self._on_machine or is_local(peer)
                await self._respond(writer, request)
        except (OSError, EOFError):  # TimeoutError is the first, IncompleteReadError the second
            pass
        finally:
            self._idle.pop(task, None)
            try:
                await _close(writer)
            finally:
                self._serving.discard(task)

    def _make_room(self) -> bool:
        """Return whether there is room for one more connection, or some was made."""
        if len(self._serving) <= _MAX_CONNECTIONS:
            return True
        if not self._idle:
            return False
        self._idle.pop(next(iter(self._idle))).close()
        return True

    async def _read(self, reader: asyncio.StreamReader) -> _Request | None:
        """Read one request; None for a malformed one."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                first = await reader.readexactly(1)
            if first == _TLS_HANDSHAKE:  # its sender waits for an answer, and so would the port
                return None
            async with asyncio.timeout(self.head_seconds):
                return _Request(first + await reader.readuntil(b"\r\n\r\n"))
        except (asyncio.LimitOverrunError, httptools.HttpParserError):
            return None

    async def _respond(self, writer: asyncio.StreamWriter, request: _Request | None) -> None:
        response = await self._response(request) if request else _plain(HTTPStatus.BAD_REQUEST)
        if writer.is_closing():  # uvloop's raises `RuntimeError` for what is written then
            return
        writer.write(response.head(keep=request is not None and request.keep))
        # RFC 9110 §9.3.2 and §15.4.5: these have no content, and the length that it would have.
        bare = response.status is HTTPStatus.NOT_MODIFIED
        bare = bare or (request is not None and request.method == b"HEAD")
        body = memoryview(b"" if bare else response.body)
        async with asyncio.timeout(_WRITE_SECONDS):
            for at in range(0, len(body), _WRITE_BYTES):
                writer.write(body[at : at + _WRITE_BYTES])
                await writer.drain()  # raises if the connection is lost
            await writer.drain()  # without a body, too: the client may not read

    async def _response(self, request: _Request) -> _Response:
        page = self._pages.get(request.path)
        if page is None:
            return _plain(HTTPStatus.NOT_FOUND)
        if request.method not in {b"GET", b"HEAD"}:
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        return await page(request)

    async def _refusal(self, request: _Request) -> _Response | None:
        """Return the response to a reader who may not read the path."""
        if self._settings.review is None:
            return None
        status = await self._settings.review(request.token, request.path.decode())
        return None if status is HTTPStatus.OK else _plain(status)

    async def _profile(self, request: _Request) -> _Response:
        if refusal := await self._refusal(request):
            return refusal
        return _Response(*await self._settings.profiles[request.path](request.query))

    async def _debug(self, request: _Request) -> _Response:
        page = self._settings.debug[request.path]
        trusted = request.local and not is_rebound(request.host)
        if not trusted and (page.local or self._settings.review is None):
            rebound = _Response(HTTPStatus.FORBIDDEN, _REBOUND)
            return rebound if request.local else _plain(HTTPStatus.FORBIDDEN)
        if not trusted and (refusal := await self._refusal(request)):
            return refusal
        try:
            body = await page.answer(read_query(request.query))
        except QueryRefused as error:
            return _Response(error.status, f"{error}\n".encode(), more=_FOR_BROWSERS)
        known = page.etag and request.known_etag == page.etag
        status = HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK
        return _Response(status, body, page.content_type, _kept(page))

    async def _metrics(self, request: _Request) -> _Response:
        if refusal := await self._refusal(request):
            return refusal
        # Imported at the first request, in a thread: it takes long, and is not needed to start.
        exposition = await asyncio.to_thread(import_module, "prometheus_client.exposition")
        try:
            _, content_type = exposition.choose_encoder(request.accept)
        except (TypeError, ValueError):  # "version=x" is compared with numbers
            _, content_type = exposition.choose_encoder("")
        openmetrics = content_type.startswith("application/openmetrics-text")
        if self._on_machine:
            page = await self._written(openmetrics=openmetrics)
        else:
            page = await self._metrics_pages[openmetrics].get()
        return _Response(HTTPStatus.OK, page, content_type)

    async def _written(self, *, openmetrics: bool) -> bytes:
        """Write the metrics page, a piece at a time: the exchanges of requests go first."""
        pieces, written = self._telemetry.page(openmetrics=openmetrics), []
        if isinstance(pieces, AsyncIterable):
            return b"".join([piece.encode() async for piece in pieces])
        for piece in pieces:
            written.append(piece.encode())
            await asyncio.sleep(0)
        return b"".join(written)

    async def _healthz(self, _: _Request) -> _Response:
        return _Response(HTTPStatus.OK, b"ok\n")

    async def _readyz(self, _: _Request) -> _Response:
        if self._ready():
            return _Response(HTTPStatus.OK, b"ready\n")
        return _Response(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n")


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait for its end, since asyncio logs an error otherwise."""
    writer.close()
    with suppress(OSError):  # TimeoutError is one
        async with asyncio.timeout(_STOP_SECONDS):
            await writer.wait_closed()


def _kept(page: DebugPage) -> str:
    """Return the headers of a page that control caching and what a browser may do with it."""
    if not page.etag:
        return f"Cache-Control: no-store\r\n{_FOR_BROWSERS}"
    return f"Cache-Control: no-cache\r\nETag: {page.etag}\r\n{_FOR_BROWSERS}"


def _plain(status: HTTPStatus) -> _Response:
    return _Response(status, f"{status.value} {status.phrase}\n".encode())
