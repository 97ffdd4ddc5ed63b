"""Servers on real sockets with pages that say anything, and sources that poll them."""

import asyncio
import contextlib
import time

from aiohttp import web

from epp.app.data_sources import DataSources
from epp.config.file import load
from epp.model.endpoint import Endpoint
from tests.adapters.scraped_pods import Told
from tests.tasks import running, until

PLAIN = "plugins: [{type: random-picker}, %s]\ndataLayer: {sources: [%s], injectDefaults: %s}"


class Pages:
    """A server on a real socket with a page under each path."""

    def __init__(self, **pages):
        self.pages = {f"/{path}": body for path, body in pages.items()}
        self.status = 200
        self.requests = 0
        self.port = 0

    async def answer(self, request):
        self.requests += 1
        if self.status == 0:
            await asyncio.Event().wait()
        body = self.pages.get(request.path)
        return web.Response(body=body, status=self.status if body is not None else 404)

    async def asked_again(self, times):
        """Wait for as many more requests."""
        asked = self.requests
        await until(lambda: self.requests >= asked + times)

    @contextlib.asynccontextmanager
    async def serving(self, tls=None):
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    def endpoint(self, name="a", **more):
        return Endpoint("default", name, "127.0.0.1", self.port, **more)


def samples_of(sources, family):
    """Give what `sources` has counted in a family, by its labels."""
    found = [each.samples for each in sources.collect() if each.family is family]
    return {labels: value for samples in found for labels, value in samples}


def settings(*plugins, inject=False):
    """Return the settings of sources, each given with its parameters and its extractor."""
    listed, sources = [], []
    for kind, parameters, extractor in plugins:
        listed.append(f"{{type: {kind}, parameters: {parameters}}}, {{type: {extractor}}}")
        sources.append(f"{{pluginRef: {kind}, extractors: [{{pluginRef: {extractor}}}]}}")
    return load(PLAIN % (", ".join(listed), ", ".join(sources), str(inject).lower())).data_layer


@contextlib.asynccontextmanager
async def polling(layer, *endpoints, interval=0.02):
    told = Told()
    sources = DataSources(layer, interval, told, time.monotonic, retry=interval)
    for endpoint in endpoints:
        sources.watch(endpoint)
    async with running(sources.run()):
        yield told, sources


async def first(told, kind, name="a", count=1):
    await told.until(lambda: len(told.of(kind, name)) >= count)
    return told.of(kind, name)[-1]
