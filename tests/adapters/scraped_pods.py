"""Model servers' metrics pages on real sockets, and a scraper that reads them."""

import asyncio
import contextlib
import time

from aiohttp import web

from epp.adapters.scrape.page_source import PageSource, ScrapeSettings
from epp.adapters.scrape.scraper import Scraper
from epp.model.endpoint import Endpoint
from epp.model.events import LoadReported, ScrapeFailed
from tests.adapters.vllm_page import vllm_page
from tests.held_port import held_port
from tests.tasks import Changed, running

DEADLINE = 10
FAST = ScrapeSettings(interval=0.02, retry=0.02, timeout=DEADLINE, max_bytes=200_000)
SLOW = ScrapeSettings(interval=60.0, timeout=DEADLINE)
HASTY = ScrapeSettings(interval=0.02, retry=0.02, timeout=0.3)


class Told(Changed):
    """Collects events; waits for what they are to show."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __call__(self, event):
        self.events.append(event)
        super().__call__()

    def of(self, kind, name):
        id_ = f"default/{name}"
        return [one for one in self.events if isinstance(one, kind) and one.endpoint_id == id_]

    async def loads(self, name, count=1):
        """Wait for `count` loads of one pod; give the last."""
        await self.until(lambda: len(self.of(LoadReported, name)) >= count)
        return self.of(LoadReported, name)[-1].load

    async def waiting(self, name, count):
        """Wait for a load with that many waiting requests."""
        await self.until(lambda: self.of(LoadReported, name)[-1:] and self.last(name) == count)
        return self.of(LoadReported, name)[-1].load

    def last(self, name):
        return self.of(LoadReported, name)[-1].load.waiting

    async def failure(self, name, count=1):
        await self.until(lambda: len(self.of(ScrapeFailed, name)) >= count)
        return self.of(ScrapeFailed, name)[-1]


class Pod:
    """A model server's metrics page on a real socket, and what was seen of its readers."""

    def __init__(self, port):
        self.page = vllm_page()
        self.status = 200
        self.hang = False
        self.woken = asyncio.Event()
        self.breaks = 0
        self.dying = False
        self.requests = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.connections = set()
        self.headers = {}
        self.runner = web.AppRunner(web.Application())
        self.port = port

    async def answer(self, request):
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.connections.add(request.transport.get_extra_info("peername"))
        self.headers = request.headers
        try:
            if self.hang:
                await self.woken.wait()
            if self.dying:
                await self.site.stop()
            if self.breaks:
                self.breaks -= 1
                request.transport.abort()
            return web.Response(body=self.page, status=self.status, headers={"Location": "/other"})
        finally:
            self.in_flight -= 1

    def wake(self):
        self.hang = False
        self.woken.set()

    async def start(self):
        app = web.Application()
        app.router.add_get("/metrics", self.answer)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self.runner.setup()
        self.site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await self.site.start()

    async def stop(self):
        await self.runner.cleanup()

    def endpoint(self, name, **more):
        return Endpoint("default", name, "127.0.0.1", self.port, **more)


@contextlib.asynccontextmanager
async def pods(count):
    with contextlib.ExitStack() as ports:
        started = [Pod(ports.enter_context(held_port())) for _ in range(count)]
        try:
            for pod in started:
                await pod.start()
            yield started
        finally:
            for pod in started:
                await pod.stop()


@contextlib.asynccontextmanager
async def scraping(*endpoints, settings=FAST, clock=time.monotonic, **source):
    told = Told()
    scraper = Scraper(told, clock, PageSource(settings=settings, **source))
    for endpoint in endpoints:
        scraper.watch(endpoint)
    async with running(polls_of(scraper)):
        yield scraper, told


async def polls_of(scraper):
    """Poll until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        scraper.start(tasks)
        try:
            await asyncio.Event().wait()
        finally:
            scraper.stop()
