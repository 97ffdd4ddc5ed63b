"""Metrics pages of servers that want TLS or an API key, on loopback for the picker to read."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus

import aiohttp
from aiohttp import web

from epp.up.pages import MOST_METRICS_BYTES, ServerPages
from epp.up.servers import Address

RELAY_SECONDS = 5.0


class MetricsRelay:
    """Serves `/metrics` of each address on a port of 127.0.0.1; closes `pages` in the end.

    A page that cannot be had whole is answered with 502, one that is late with 504, and any other
    status as it came.
    """

    def __init__(self, pages: ServerPages) -> None:
        self._pages = pages
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
        await self._pages.close()

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
        try:
            status, page = await self._pages.get(address, "/metrics", MOST_METRICS_BYTES)
        except TimeoutError:
            return web.Response(status=HTTPStatus.GATEWAY_TIMEOUT)
        except (aiohttp.ClientError, OSError):
            return web.Response(status=HTTPStatus.BAD_GATEWAY)
        return web.Response(body=page, status=status)
