"""Polls the metrics page of every endpoint; one slow or dead pod never delays another."""

import asyncio
import itertools
from collections.abc import Callable
from math import inf
from typing import NoReturn

import msgspec
import structlog

from epp.adapters.scrape.page_client import PageClient, PageLost, PageRefused
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import Event, LoadReported, ScrapeFailed
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page

_log = structlog.get_logger(__name__)

_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, stay evenly spread whatever their number."""
_TOGETHER = 4
"""Servers that are polled at one time: each time wakes the process up, each page keeps it busy."""
_DEAD = 2
"""Failures in a row after which a pod is polled less often."""
_APART, _AT_ONCE = 0.001, 0.1
"""Seconds by which the first polls of endpoints are spread: for each, and at most for all."""
_BETWEEN_LOOKS = 0.25
"""Seconds at least between two polls of a server that nobody's turn calls for."""
_BROKEN = (PageLost, ConnectionResetError)
_SOON = 0.02
"""Seconds until a server is polled again that broke a connection off: dying ones refuse by then."""
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
"""Compressing a page would cost the pod more than sending it."""


class ScrapeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How endpoints are polled.

    `interval` (seconds) is what each endpoint is polled at, `retry` (seconds) the same for one
    that is dead, where longer, and `timeout` (seconds) what one poll may take in all. A page of
    more than `max_bytes` counts as a failure. `scheme` is "http" or "https"; certificates of
    pods are not verified, as in the incumbent.
    """

    interval: float = 1.0
    retry: float = 2.0
    timeout: float = 1.0
    max_bytes: int = 4 * 2**20
    scheme: str = "http"
    path: str = "/metrics"


class _Server:
    """One metrics page, the endpoints that it tells of, and what is known between two polls."""

    def __init__(self, url: str, max_bytes: int) -> None:
        self.url = url
        self.client = PageClient(url, _HEADERS, max_bytes)
        self.readers: dict[EndpointId, MetricsReader] = {}
        self.places: dict[bytes, int] = {}
        self.failures = 0
        self.polled = asyncio.Event()
        self.due = asyncio.Event()
        self.looked_at = -inf
        self.again_at = inf
        self.task: asyncio.Task[NoReturn] | None = None


class Scraper:
    """Polls what it is told to watch, and tells each outcome through `apply`.

    `clock` gives the `at` of a load. A poll that succeeds is a `LoadReported`, one that fails a
    `ScrapeFailed`; a page without any known metric reports the previous load. Only changes of
    state are logged.
    """

    def __init__(
        self,
        apply: Callable[[Event], None],
        clock: Callable[[], float],
        settings: ScrapeSettings | None = None,
    ) -> None:
        self._apply = apply
        self._clock = clock
        self._settings = settings or ScrapeSettings()
        self._servers: dict[str, _Server] = {}
        self._by_endpoint: dict[EndpointId, _Server] = {}
        self._phases = itertools.count()
        self._start: Callable[[_Server], None] | None = None

    def watch(self, endpoint: Endpoint) -> None:
        """Poll this endpoint from now on; another engine under the same id starts afresh."""
        known = self._by_endpoint.get(endpoint.id)
        if known and known.readers[endpoint.id].endpoint.engine == endpoint.engine:
            known.readers[endpoint.id].relabel(endpoint)
            return
        self.forget(endpoint.id)
        server = self._server_at(f"{self._settings.scheme}://{endpoint.target}")
        server.readers[endpoint.id] = MetricsReader(endpoint)
        self._by_endpoint[endpoint.id] = server

    def _server_at(self, base: str) -> _Server:
        """Give the server at a URL; its page is polled once, however many endpoints it has."""
        url = base + self._settings.path
        if url not in self._servers:
            server = self._servers[url] = _Server(url, self._settings.max_bytes)
            if self._start:
                self._start(server)
        return self._servers[url]

    def forget(self, endpoint_id: EndpointId) -> None:
        """Stop polling an endpoint; nothing is told of it any more."""
        server = self._by_endpoint.pop(endpoint_id, None)
        if server is None:
            return
        del server.readers[endpoint_id]
        if not server.readers:
            del self._servers[server.url]
            if server.task:
                server.task.cancel()

    def look(self, endpoint_id: EndpointId) -> None:
        """Poll an endpoint now, where something says that it may be gone; not at every word."""
        server, now = self._by_endpoint.get(endpoint_id), self._clock()
        if server is not None and now - server.looked_at >= _BETWEEN_LOOKS:
            server.looked_at = now
            server.due.set()

    async def run(self) -> None:
        """Poll until cancelled; never returns."""
        async with asyncio.TaskGroup() as tasks:

            def start(server: _Server) -> None:
                poll = self._poll(server)
                server.task = tasks.create_task(poll, name=f"scrape {server.url}")

            for server in self._servers.values():
                start(server)
            self._start = start
            try:
                await asyncio.Event().wait()
            finally:
                self._start = None

    async def polled_once(self, seconds: float) -> None:
        """Wait until everything that is watched now was polled, but no longer than `seconds`."""
        polls = [asyncio.ensure_future(each.polled.wait()) for each in self._servers.values()]
        if polls:
            _, late = await asyncio.wait(polls, timeout=seconds)
            for poll in late:
                poll.cancel()

    async def _poll(self, server: _Server) -> NoReturn:
        """Poll one server at once, then at its own phase of the interval, dead ones less often."""
        loop = asyncio.get_running_loop()
        interval, phase = self._settings.interval, next(self._phases) // _TOGETHER * _GOLDEN % 1
        due = loop.time() + interval * phase
        await asyncio.sleep(min(interval, _AT_ONCE, _APART * len(self._servers)) * phase)
        try:
            await self._scrape(server)
            server.polled.set()
            while True:
                server.due.clear()
                timer = loop.call_at(min(due, server.again_at), server.due.set)
                await server.due.wait()
                timer.cancel()
                await self._scrape(server)
                if loop.time() >= due:  # else it was looked at out of turn
                    dead = server.failures >= _DEAD
                    pause = max(interval, self._settings.retry) if dead else interval
                    due = max(due + pause, loop.time())
        finally:
            server.client.close()

    async def _scrape(self, server: _Server) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout):
                text = await server.client.get()
        except (OSError, PageRefused) as error:  # TimeoutError is one
            self._failed(server, error)
        else:
            self._answered(server, text)

    def _answered(self, server: _Server, text: bytes) -> None:
        page, at = Page(text, server.places), self._clock()
        recovered, server.failures, server.again_at = server.failures > 0, 0, inf
        for reader in tuple(server.readers.values()):
            endpoint, unknown = reader.endpoint, reader.unknown
            reading = reader.read(page, at)
            self._apply(LoadReported(endpoint.id, reading.load))
            if recovered:
                _log.info("endpoint.recovered", endpoint=endpoint.id, target=endpoint.target)
            if reader.unknown and not unknown:
                _log.warning("endpoint.metrics_unknown", endpoint=endpoint.id, url=server.url)
            for doubt in reading.doubts:
                _log.warning("endpoint.metrics_doubted", endpoint=endpoint.id, doubt=doubt)

    def _failed(self, server: _Server, error: Exception) -> None:
        server.failures += 1
        broken = isinstance(error, _BROKEN) and server.failures <= _DEAD
        server.again_at = asyncio.get_running_loop().time() + _SOON if broken else inf
        refused = isinstance(error, ConnectionRefusedError)
        for reader in tuple(server.readers.values()):
            reader.lost()
            self._apply(ScrapeFailed(reader.endpoint.id, refused))
            if server.failures == 1:
                reason = str(error) or type(error).__name__
                _log.warning("endpoint.unreachable", endpoint=reader.endpoint.id, error=reason)
