"""Envoy's admin interface, on a socket that only this user can reach."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import aiohttp

from epp.up.figures import ProxyPage, proxy_page
from epp.up.proxy import ADMIN_SOCKET, PICKS

_SECONDS = 2.0
_POLL_SECONDS = 0.05
_STATS = "/stats?filter=^http\\.gateway\\.downstream_rq_(active|total)$"


class EnvoyAdmin:
    """A client of the admin interface in a folder; each call takes `_SECONDS` at most.

    `picking` is whether Envoy asks the picker; None while that is not known.
    """

    def __init__(self, folder: Path) -> None:
        self.picking: bool | None = None
        self._setting = asyncio.Lock()
        self._session = aiohttp.ClientSession(
            "http://envoy",
            connector=aiohttp.UnixConnector(str(folder / ADMIN_SOCKET)),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
        )

    async def ready(self) -> None:
        """Return as soon as Envoy takes requests."""
        while await self._ask("GET", "/ready") is None:  # noqa: ASYNC110 (another process's)
            await asyncio.sleep(_POLL_SECONDS)

    async def requests(self) -> ProxyPage | None:
        """Return the counts of requests; None if Envoy does not answer."""
        text = await self._ask("GET", _STATS)
        return None if text is None else proxy_page(text)

    def started(self) -> None:
        """Record that Envoy has just started, and asks the picker for all requests."""
        self.picking = True

    async def set_picking(self, wanted: Callable[[], bool]) -> None:
        """Make Envoy ask the picker for all requests, or for none.

        A change that Envoy has not confirmed is repeated by the next call.
        """
        async with self._setting:
            picking = wanted()
            if self.picking is not picking:
                self.picking = None
                path = f"/runtime_modify?{PICKS}={100 * picking}"
                if await self._ask("POST", path) is not None:
                    self.picking = picking

    async def drain(self) -> bool:
        """Accept no new connections, and close each open one after its answer.

        Returns whether Envoy has confirmed that.
        """
        paths = "/healthcheck/fail", "/drain_listeners"
        return None not in [await self._ask("POST", path) for path in paths]

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _ask(self, method: str, path: str) -> str | None:
        """Return Envoy's answer; None if there is none, or it is an error."""
        try:
            async with self._session.request(method, path) as response:
                return await response.text() if response.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
