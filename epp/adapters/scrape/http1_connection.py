"""A connection to a server that speaks HTTP/1.1."""

import asyncio
from http import HTTPStatus

import httptools

from epp.adapters.scrape.page_connection import PageConnection, PageRefused, PageRequest, refusal

_MAX_HEAD_BYTES = 64 << 10
_MAX_FRAMING = 2
"""How many times as long as the page its chunks may be on the wire."""


class Http1Connection(PageConnection):
    """Gets a page over HTTP/1.1, with or without TLS; `request` is what is written for it."""

    buffer = bytearray(32 << 10)
    """Bytes that are parsed at once: in chunks of one byte each, these take a millisecond."""

    def __init__(self, request: bytes, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._request = request
        self._parser: httptools.HttpResponseParser  # while it is connected: the two hold each other
        self._begin()

    def _begin(self) -> None:
        self._received = 0
        self._in_body = False
        self._has_length = False

    def _send(self) -> None:
        self._transport.write(self._request)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start parsing."""
        super().connection_made(transport)
        self._parser = httptools.HttpResponseParser(self)

    def buffer_updated(self, nbytes: int) -> None:
        """Parse a part of the response."""
        if self._response is None or self._response.done():
            self.abort()  # data without a request
            return
        self._received += nbytes
        try:
            self._parser.feed_data(memoryview(self.buffer)[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(PageRefused(f"not an HTTP response: {error}"))
        if self._received > _MAX_HEAD_BYTES and not self._in_body:
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
        self._lost(exc, began=self._received > 0)

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
            self._fail(refusal(status))

    def on_message_complete(self) -> None:
        """Finish the response; keep the connection if the server does."""
        keep = self._parser.should_keep_alive()
        self._finish()
        if keep:
            self._begin()
        else:
            self.abort()


def encoded(request: PageRequest) -> bytes:
    """Return a request as HTTP/1.1 writes it."""
    lines = [f"GET {request.target} HTTP/1.1", f"Host: {request.authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    # RFC 9112 §3.2: a request has exactly one Host field.
    return "\r\n".join([*lines, "", ""]).encode()
