"""A client that gets one page repeatedly, over one persistent connection."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import cache, partial
from urllib.parse import urlsplit

from epp.adapters.scrape.http1_connection import Http1Connection, encoded
from epp.adapters.scrape.page_connection import NoAnswer, PageConnection, PageRequest, Stale
from epp.system.tls import unverified_tls

H2C = "h2c"
"""The scheme of pages over HTTP/2 in plain text, which no URL outside has."""
_DEFAULT_PORTS = {"http": 80, "https": 443, H2C: 80}


class PageClient:
    """Gets the page at `url` over HTTP/1.1, or HTTP/2 where its scheme is h2c; one `get` at a time.

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
        request = PageRequest(parts.netloc, target, headers)
        self._made = _made(parts.scheme, request, max_bytes)
        self._connect_seconds = None if self._tls else connect_seconds
        self._connection: PageConnection | None = None
        self._connecting: asyncio.Timeout | None = None  # while that is under way
        self._given_up = False

    async def get(self) -> bytes:
        """Return the page. Raises `PageRefused`, or `OSError` if it cannot connect.

        Raises `TimeoutError` if it is given up, or a proxy says that the server is late.
        A cancelled call aborts the connection, as a response may be in flight on it.
        """
        kept = self._connection
        if kept is not None and kept.open:
            try:
                return await self._get_on(kept)
            # RFC 9112 §9.3.1: a server may close an idle connection at any time; a client may
            # then repeat an idempotent request (RFC 9110 §9.2.2: GET is) on another one.
            except Stale:
                pass
        return await self._get_on(await self._connect())

    def give_up(self) -> None:
        """Make a `get` that is under way raise `TimeoutError`."""
        if self._connecting is not None:
            if not self._connecting.expired():  # else it fails in this turn, and cannot be changed
                self._given_up = True
                self._connecting.reschedule(asyncio.get_running_loop().time())
        elif self._connection is not None:
            self._connection.give_up()

    def close(self) -> None:
        """Abort the connection, if there is one; the next `get` opens another."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _connect(self) -> PageConnection:
        self._given_up = False
        try:
            async with asyncio.timeout(self._connect_seconds) as self._connecting:
                _, connection = await asyncio.get_running_loop().create_connection(
                    self._made,
                    self._host,
                    self._port,
                    ssl=self._tls() if self._tls else None,
                )
        except UnicodeError as error:
            raise NoAnswer(f"not a host name: {error}") from None
        except TimeoutError:
            if self._given_up:
                raise
            raise NoAnswer("no connection in time") from None
        finally:
            self._connecting = None
        self._connection = connection
        connection.bound_silence()
        return connection

    async def _get_on(self, connection: PageConnection) -> bytes:
        try:
            return await connection.get()
        except BaseException:
            self.close()
            raise


def _made(scheme: str, request: PageRequest, max_bytes: int) -> Callable[[], PageConnection]:
    """Return what makes the connections of a scheme."""
    if scheme != H2C:
        return partial(Http1Connection, encoded(request), max_bytes)
    from epp.adapters.scrape.http2_connection import (  # noqa: PLC0415 (few pools need h2)
        Http2Connection,
        fields_of,
    )

    return partial(Http2Connection, fields_of(request), max_bytes)


@cache
def unverified() -> ssl.SSLContext:
    """Return the context of all connections that accept any certificate."""
    return unverified_tls()
