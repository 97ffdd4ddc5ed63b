"""Polls the metrics page of every endpoint; a slow or dead pod does not delay others."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
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
"""The golden ratio less 1: its multiples modulo 1 stay evenly spread, however many there are."""
_POLLED_TOGETHER = 4
"""Servers that share a phase: more wake the process less often, fewer delay requests less."""
_DEAD_AFTER = 2
"""Failures in a row after which a server is polled less often."""
_FIRST_SPREAD, _MAX_FIRST_SPREAD = 0.001, 0.1
"""Seconds over which the first polls are spread: per server, and for all together."""
_MIN_POLL_NOW_SECONDS = 0.25
"""Least seconds between two polls of a server by `poll_now`."""
_TURN_SECONDS = 0.001
"""How long a page is read in one turn of the event loop; ordinary pages take a tenth of it."""
_PAUSES_PER_TURN = 3
"""How many times as long a page that takes more turns leaves the loop to others between them."""
_BROKEN = (PageLost, ConnectionResetError)
_RETRY_BROKEN_SECONDS = 0.02
"""Seconds after a broken connection until another poll: a server that exits refuses it by then."""
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
"""Without compression: it would cost the pod more time than sending the bytes.

Prometheus text format 0.0.4, "Content-Type": `text/plain; version=0.0.4`.
"""


class ScrapeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, and limits, of polling.

    A server is polled every `interval`, a dead one every `retry` if that is longer. `timeout`
    limits one poll. A page of more than `max_bytes` is a failure. `scheme` is "http" or "https";
    pods' certificates are not verified, as in the incumbent.
    """

    interval: float = 1.0
    retry: float = 2.0
    timeout: float = 1.0
    max_bytes: int = 4 * 2**20
    scheme: str = "http"
    path: str = "/metrics"


class _Server:
    """One metrics page, the endpoints that it reports, and the state between two polls."""

    def __init__(self, url: str, max_bytes: int) -> None:
        self.url = url
        self.client = PageClient(url, _HEADERS, max_bytes)
        self.readers: dict[EndpointId, MetricsReader] = {}
        self.places: dict[bytes, int] = {}
        self.failures = 0
        self.polled = asyncio.Event()
        self.due = asyncio.Event()
        self.polled_now_at = -inf
        self.retry_at = inf
        self.task: asyncio.Task[NoReturn] | None = None


class Scraper:
    """Polls watched endpoints and passes an event of each poll to `apply`.

    A poll that succeeds is a `LoadReported` at the time of `clock`, one that fails a
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
        self._long_page = asyncio.Lock()
        self._start: Callable[[_Server], None] | None = None

    def watch(self, endpoint: Endpoint) -> None:
        """Poll an endpoint; another engine under the same id starts without a previous load."""
        known = self._by_endpoint.get(endpoint.id)
        if known and known.readers[endpoint.id].endpoint.engine == endpoint.engine:
            known.readers[endpoint.id].relabel(endpoint)
            return
        self.unwatch(endpoint.id)
        server = self._server_at(f"{self._settings.scheme}://{endpoint.target}")
        server.readers[endpoint.id] = MetricsReader(endpoint)
        self._by_endpoint[endpoint.id] = server

    def _server_at(self, base: str) -> _Server:
        """Return the server of a URL: its page is polled once, however many endpoints it has."""
        url = base + self._settings.path
        if url not in self._servers:
            server = self._servers[url] = _Server(url, self._settings.max_bytes)
            if self._start:
                self._start(server)
        return self._servers[url]

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Stop polling an endpoint; no event of it follows."""
        server = self._by_endpoint.pop(endpoint_id, None)
        if server is None:
            return
        del server.readers[endpoint_id]
        if not server.readers:
            del self._servers[server.url]
            if server.task:
                server.task.cancel()

    def poll_now(self, endpoint_id: EndpointId) -> None:
        """Poll an endpoint that may be gone at once, but not more often than every 0.25 s."""
        server, now = self._by_endpoint.get(endpoint_id), self._clock()
        if server is not None and now - server.polled_now_at >= _MIN_POLL_NOW_SECONDS:
            server.polled_now_at = now
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
        """Wait until every server watched at the call was polled, for at most `seconds`."""
        polls = [asyncio.ensure_future(each.polled.wait()) for each in self._servers.values()]
        if polls:
            _, late = await asyncio.wait(polls, timeout=seconds)
            for poll in late:
                poll.cancel()

    async def _poll(self, server: _Server) -> NoReturn:
        """Poll a server at once, then at its phase of the interval, less often while dead."""
        loop = asyncio.get_running_loop()
        interval, phase = (
            self._settings.interval,
            next(self._phases) // _POLLED_TOGETHER * _GOLDEN % 1,
        )
        due = loop.time() + interval * phase
        await asyncio.sleep(
            min(interval, _MAX_FIRST_SPREAD, _FIRST_SPREAD * len(self._servers)) * phase
        )
        try:
            await self._scrape(server)
            server.polled.set()
            while True:
                server.due.clear()
                timer = loop.call_at(min(due, server.retry_at), server.due.set)
                await server.due.wait()
                timer.cancel()
                await self._scrape(server)
                if loop.time() >= due:  # else it was polled out of turn
                    dead = server.failures >= _DEAD_AFTER
                    pause = max(interval, self._settings.retry) if dead else interval
                    due = max(due + pause, loop.time())
        finally:
            server.client.close()

    async def _scrape(self, server: _Server) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout):
                text = await server.client.get()
            await self._in_turns(self._read(server, text))
        except (OSError, PageRefused) as error:  # TimeoutError is one
            self._on_failure(server, error)
        except Exception as error:  # noqa: BLE001 (what one server sends must not end other polls)
            if not server.failures:
                _log.exception("scrape.fault", url=server.url)
            self._on_failure(server, error)

    async def _in_turns(self, steps: Iterator[None]) -> None:
        """Take the steps, in turns of a millisecond; of all that need several, one at a time."""
        if _one_turn(steps):
            return
        async with self._long_page:
            ended = False
            while not ended:
                await asyncio.sleep(_PAUSES_PER_TURN * _TURN_SECONDS)
                ended = _one_turn(steps)

    def _read(self, server: _Server, text: bytes) -> Iterator[None]:
        """Pass on what a page reports of each endpoint, in steps."""
        page, at = Page(text, server.places), self._clock()
        recovered, server.failures, server.retry_at = server.failures > 0, 0, inf
        for reader in tuple(server.readers.values()):
            endpoint, unknown = reader.endpoint, reader.unknown
            reading = yield from reader.steps(page, at)
            if server.readers.get(endpoint.id) is not reader:
                continue  # unwatched between two steps
            self._apply(LoadReported(endpoint.id, reading.load))
            if recovered:
                _log.info("endpoint.recovered", endpoint=endpoint.id, target=endpoint.target)
            if reader.unknown and not unknown:
                _log.warning("endpoint.metrics_unknown", endpoint=endpoint.id, url=server.url)
            for warning in reading.warnings:
                _log.warning("endpoint.metrics_doubted", endpoint=endpoint.id, doubt=warning)
            yield

    def _on_failure(self, server: _Server, error: Exception) -> None:
        server.failures += 1
        broken = isinstance(error, _BROKEN) and server.failures <= _DEAD_AFTER
        server.retry_at = (
            asyncio.get_running_loop().time() + _RETRY_BROKEN_SECONDS if broken else inf
        )
        refused = isinstance(error, ConnectionRefusedError)
        for reader in tuple(server.readers.values()):
            reader.reset_engine()
            self._apply(ScrapeFailed(reader.endpoint.id, refused))
            if server.failures == 1:
                reason = str(error) or type(error).__name__
                _log.warning("endpoint.unreachable", endpoint=reader.endpoint.id, error=reason)


def _one_turn(steps: Iterator[None]) -> bool:
    """Take steps for `_TURN_SECONDS`; return whether they have ended."""
    end = time.perf_counter() + _TURN_SECONDS
    return all(time.perf_counter() < end for _ in steps)
