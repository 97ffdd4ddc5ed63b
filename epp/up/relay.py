"""Metrics pages of servers that want TLS or an API key, on loopback for the picker to read."""

import ssl
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import aiohttp
from aiohttp import web

from epp.up.servers import Address, ModelServer

_SECONDS = 5.0
_MOST_BYTES = 4 << 20


class MetricsRelay:
    """Serves `/metrics` of each address on a port of 127.0.0.1.

    A page that cannot be had is answered with 502, and any other status as it came.
    """

    def __init__(
        self, servers: Iterable[ModelServer], context: ssl.SSLContext | None, api_key: str
    ) -> None:
        self._names = {server.authority: server for server in servers}
        self._context = context
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=_SECONDS)
        )
        self._sites: dict[Address, tuple[web.AppRunner, str]] = {}

    async def hosts(self, addresses: Iterable[Address]) -> Mapping[str, str]:
        """Serve these addresses and no others; return where, as `ip:port` by their names."""
        wanted = set(addresses)
        for gone in self._sites.keys() - wanted:
            runner, _ = self._sites.pop(gone)
            await runner.cleanup()
        for added in wanted - self._sites.keys():
            self._sites[added] = await self._serve(added)
        return {address.name: host for address, (_, host) in self._sites.items()}

    async def close(self) -> None:
        """Stop serving."""
        await self.hosts(())
        await self._client.close()

    async def _serve(self, address: Address) -> tuple[web.AppRunner, str]:
        async def answer(_request: web.Request) -> web.Response:
            return await self._page(address)

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"127.0.0.1:{runner.addresses[0][1]}"

    async def _page(self, address: Address) -> web.Response:
        server = self._names[address.server]
        try:
            async with self._client.get(
                f"{server.scheme}://{address.target}/metrics",
                ssl=self._context or True,
                server_hostname=server.tls_name,
                headers={"host": server.authority},
                allow_redirects=False,
            ) as response:
                text = await response.content.read(_MOST_BYTES)
                return web.Response(body=text, status=response.status)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return web.Response(status=HTTPStatus.BAD_GATEWAY)
