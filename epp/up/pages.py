"""Pages of model servers, read as their URLs say, and relayed to the picker."""

import errno
import os
import ssl
from collections.abc import Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Self

import aiohttp
import msgspec
from aiohttp import web

from epp.errors import reason
from epp.up.servers import Address, ModelServer

MAX_METRICS_BYTES, MAX_MODELS_BYTES = 4 << 20, 1 << 20
RELAY_SECONDS = 5.0
_PAGES = {"/metrics": MAX_METRICS_BYTES, "/v1/models": MAX_MODELS_BYTES}
"""What is relayed, and how long it may be."""


class ServerPages:
    """Gets pages of addresses, with an API key if there is one, each within `seconds`.

    The addresses of `servers` are asked as their URLs say, others in plain HTTP.
    """

    def __init__(
        self,
        servers: Iterable[ModelServer],
        context: ssl.SSLContext | None,
        api_key: str,
        seconds: float,
    ) -> None:
        self._servers = {server.authority: server for server in servers}
        self._context = context
        # Compressed pages are not asked for, and not unpacked: a few bytes may become any number.
        headers = {"accept-encoding": "identity"}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=seconds),
            headers=headers | ({"authorization": f"Bearer {api_key}"} if api_key else {}),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
        )

    async def get(
        self, address: Address, path: str, most: int, authorization: str = ""
    ) -> tuple[int, bytes]:
        """Return the status and the whole page. Raises `aiohttp.ClientError` or `OSError`.

        A page that breaks off, or has more than `most` bytes, is a `ClientError` too.
        `authorization`, if not empty, is sent in place of the API key.
        """
        server = self._servers.get(address.server)
        headers = {"host": address.server or address.target}
        if authorization:
            headers["authorization"] = authorization
        async with self._session.get(
            f"{server.scheme if server else 'http'}://{address.target}{path}",
            ssl=self._context or True,
            server_hostname=server.tls_name if server else None,
            headers=headers,
            allow_redirects=False,
        ) as response:
            page = bytearray()
            # `StreamReader.read` of aiohttp returns what has come so far.
            async for piece in response.content.iter_any():
                page += piece
                if len(page) > most:
                    raise aiohttp.ClientPayloadError(f"{path} has more than {most} bytes")
            return response.status, bytes(page)

    def url(self, address: Address) -> str:
        """Return the URL of an address as users know it: that of its server."""
        server = self._servers.get(address.server)
        return f"{server.scheme}://{server.authority}" if server else f"http://{address.target}"

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


class Relayed(msgspec.Struct, frozen=True):
    """What only the relay knows, for the picker's log.

    `problems` are the last problems of servers, by the names of addresses. `servers` maps each URL
    of the relay to the URL and the name of the address behind it, all without a path.
    """

    problems: Mapping[str, str] = {}
    servers: Mapping[str, tuple[str, str]] = {}


class PageRelay:
    """Serves `_PAGES` of each address on a port of 127.0.0.1; closes `pages` in the end.

    An incomplete page is answered with 502, a late one with 504, and any other status as it came.
    `relayed` is what it knows about servers now.
    """

    def __init__(self, pages: ServerPages) -> None:
        self._pages = pages
        self._sites: dict[Address, tuple[web.AppRunner, str]] = {}
        self._problems: dict[str, str] = {}
        self.relayed = Relayed()

    async def hosts(self, addresses: Iterable[Address]) -> Mapping[str, str]:
        """Serve these addresses and no others; return where, as `ip:port` by their names."""
        wanted = set(addresses)
        for gone in self._sites.keys() - wanted:
            runner, _ = self._sites.pop(gone)
            self._problems.pop(gone.name, None)
            await runner.cleanup()
        for added in wanted - self._sites.keys():
            self._sites[added] = await self._serve(added)
        servers = {
            f"http://{host}": (self._pages.url(address), address.name)
            for address, (_, host) in self._sites.items()
        }
        self.relayed = Relayed(self._problems, servers)
        return {address.name: host for address, (_, host) in self._sites.items()}

    async def close(self) -> None:
        """Stop serving."""
        await self.hosts(())
        await self._pages.close()

    async def _serve(self, address: Address) -> tuple[web.AppRunner, str]:
        app = web.Application()
        for path in _PAGES:
            app.router.add_get(path, partial(self._page, address))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"127.0.0.1:{runner.addresses[0][1]}"

    async def _page(self, address: Address, request: web.Request) -> web.Response:
        try:
            status, page = await self._pages.get(address, request.path, _PAGES[request.path])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._problems[address.name] = problem_of(error, RELAY_SECONDS)
            late = isinstance(error, TimeoutError)
            return web.Response(
                status=HTTPStatus.GATEWAY_TIMEOUT if late else HTTPStatus.BAD_GATEWAY
            )
        self._problems.pop(address.name, None)
        return web.Response(body=page, status=status)


def problem_of(error: Exception, seconds: float) -> str:
    """Return, for people, what is wrong with a server whose page was not read in time."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = reason(error.certificate_error).removeprefix("certificate verify failed: ")
        return f"has a certificate that is not accepted ({why.rstrip('.')})"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"does not speak TLS ({reason(error.os_error)}); is it http://?"
    if isinstance(error, aiohttp.ServerDisconnectedError) or _is_reset(error):
        return "closes connections without an answer; is it https://?"
    return f"does not answer ({_why(error, seconds)})"


def _is_reset(error: Exception) -> bool:
    """Return whether an open connection was reset before an answer."""
    made = not isinstance(error, aiohttp.ClientConnectorError)
    return made and isinstance(error, OSError) and error.errno == errno.ECONNRESET


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {seconds:g} s"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # aiohttp's own text repeats the address
        return os.strerror(number)
    return reason(error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error)
