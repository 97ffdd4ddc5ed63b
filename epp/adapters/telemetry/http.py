"""The operators' port: `/metrics`, `/healthz`, `/readyz`."""

import asyncio
from collections.abc import Callable

from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from epp.adapters.telemetry.metrics import Telemetry


class OperatorServer:
    """Serves over HTTP, from `start` to `stop`, at `port` (once started, the one bound).

    `/healthz` answers 200 as long as the event loop turns, `/readyz` 200 or 503 as `ready`
    says, `/metrics` in the format that the client's `Accept` asks for.
    """

    def __init__(
        self, telemetry: Telemetry, ready: Callable[[], bool], address: str, port: int
    ) -> None:
        self.port = port
        self._telemetry = telemetry
        self._ready = ready
        self._address = address
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Bind and serve; raises `OSError` where the port cannot be had."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port; answers under way get a second to leave."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        _, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        openmetrics = content_type.startswith("application/openmetrics-text")
        pieces = []
        for piece in self._telemetry.page(openmetrics=openmetrics):
            pieces.append(piece)
            await asyncio.sleep(0)  # requests go first
        body = "".join(pieces).encode()
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(
            text="ready\n" if ready else "not ready\n", status=200 if ready else 503
        )
