"""Readiness and liveness over HTTP, on a port of their own.

    /ready   200 when requests are answered and no end is in sight, else 503
    /live    200 unless the engine is up and does not answer `/health`
    /status  200, and as JSON what the launch is at and how the LoRA adapters are

vLLM's own `/health` cannot be used for readiness: it still answers 200 while vLLM drains and
answers every new request with 500.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from model_server.client import Client, Unanswered
from model_server.standing import Phase, Standing

SHUTDOWN_SECONDS = 1.0


class Probes:
    """The probes of one server, which ask the engine each time.

    `served` is the model that must be listed; `client` is None on a node that answers no requests.
    """

    def __init__(self, standing: Standing, served: str, client: Client | None) -> None:
        self._standing = standing
        self._served = served
        self._client = client

    def application(self) -> web.Application:
        """Return the routes."""
        app = web.Application()
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/live", self._live)
        app.router.add_get("/status", self._status)
        return app

    async def _ready(self, _: web.Request) -> web.Response:
        if self._standing.phase is not Phase.SERVING:
            return _said(f"the server is {self._standing.phase}")
        return _said(await self._trouble(listed=True))

    async def _live(self, _: web.Request) -> web.Response:
        if self._standing.phase is not Phase.SERVING:
            return _said("")  # loading and ending have bounds of their own
        return _said(await self._trouble(listed=False))

    async def _status(self, _: web.Request) -> web.Response:
        return web.Response(body=self._standing.status(), content_type="application/json")

    async def _trouble(self, *, listed: bool) -> str:
        """Return what is wrong with the engine; nothing if all is well."""
        if self._client is None:
            return ""
        try:
            await self._client.health()
            if listed and self._served not in (await self._client.models()).bases:
                return f"the engine does not list {self._served}"
        except Unanswered as error:
            return str(error)
        return ""


def _said(trouble: str) -> web.Response:
    body = {"ok": not trouble} | ({"reason": trouble} if trouble else {})
    status = 503 if trouble else 200
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )


@asynccontextmanager
async def answering(probes: Probes, host: str, port: int | None) -> AsyncIterator[int | None]:
    """Answer probes while the context is open; yield the port. None: do nothing.

    Raises OSError when the port is taken.
    """
    if port is None:
        yield None
        return
    runner = web.AppRunner(probes.application(), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
