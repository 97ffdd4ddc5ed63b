"""Polls a page of every endpoint; a slow or dead pod does not delay others.

A server has one poll at a time. While its page is late, that is reported at each interval; the poll
continues, because asking a busy server again does not help.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import NoReturn

from epp.adapters.scrape.failures import BROKEN, EVENTS, failure_of, is_absent
from epp.adapters.scrape.page_client import PageClient
from epp.adapters.scrape.page_connection import PageRefused
from epp.adapters.scrape.page_readers import PageReader
from epp.adapters.scrape.page_source import PageSource
from epp.adapters.scrape.poll_turns import PollTurns
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import Event, ScrapeFailed, ScrapeFailure
from epp.protocol.metrics.page import Page, PageBefore
from epp.system.logs import Log

_log = Log(__name__)

_GOLDEN = 0.6180339887498949
"""The golden ratio less 1: its multiples modulo 1 stay evenly spread, however many there are."""
_POLLED_TOGETHER = 4
"""Servers that share a phase: more wake the process less often, fewer delay requests less."""
_DEAD_AFTER = 2
"""Failures in a row after which a server is polled less often."""
_EARLY_SECONDS = 0.001
"""How much too early a timer may be: uvloop counts in whole milliseconds."""
_FIRST_SPREAD, _MAX_FIRST_SPREAD = 0.001, 0.1
"""Seconds over which the first polls are spread: per server, and for all together."""
_MIN_POLL_NOW_SECONDS = 0.25
"""Least seconds between two polls of a server by `poll_now`."""
_TURN_SECONDS = 0.001
"""How long a page is read in one turn of the event loop; ordinary pages take a tenth of it."""
_PAUSES_PER_TURN = 3
"""Between turns, a long page leaves the loop to others for this many times as long as a turn."""
_RETRY_BROKEN_SECONDS = 0.02
"""Seconds after a broken connection until another poll: a server that exits refuses it by then."""


class _Server:
    """One page, the endpoints that it reports, and the state between two polls."""

    def __init__(self, url: str, source: PageSource) -> None:
        self.url = url
        # Without compression: it would cost the pod more time than sending the bytes.
        headers = {"Accept": source.accept, "Accept-Encoding": "identity"}
        self.client = PageClient(
            url, headers, source.settings.max_bytes, source.tls, source.settings.late
        )
        self.readers: dict[EndpointId, PageReader] = {}
        self.page_before = PageBefore()
        self.unknown: set[EndpointId] = set()
        """The endpoints for which the page has no known metric."""
        self.failures = 0
        """How many polls in a row failed."""
        self.faulty = False
        """Whether a reader raised since a page was read."""
        self.logged: dict[EndpointId, str] = {}
        """The event that was logged when an endpoint failed, by endpoint."""
        self.late: asyncio.TimerHandle
        """Reports that the poll under way takes long."""
        self.polled = asyncio.Event()
        """Set once it was polled, or is no longer polled."""
        self.due: asyncio.Future[None] | None = None
        """Done once the next poll may begin; None while one is under way."""
        self.polled_now_at = -inf
        """When it was last polled before its time because somebody asked."""
        self.retry_at = inf
        """When it is polled again before its time because its connection broke."""
        self.task: asyncio.Task[NoReturn] | None = None


class Scraper:
    """Polls watched endpoints and passes the events of each poll to `apply`.

    A poll of a metrics page that succeeds is a `LoadReported` at the time of `clock`; a page
    without any known metric reports what is kept of the previous load. A poll of a vital source
    that fails, or is late, is a `ScrapeFailed`. Only changes of state are logged. `errors` counts
    failed polls of endpoints, `unknown` counts pages without any known metric.
    """

    def __init__(
        self,
        apply: Callable[[Event], None],
        clock: Callable[[], float],
        source: PageSource,
    ) -> None:
        self._apply = apply
        self._clock = clock
        self.source = source
        self.errors = 0
        self.unknown = 0
        self._settings = self.source.settings
        self._servers: dict[str, _Server] = {}
        self._by_endpoint: dict[EndpointId, _Server] = {}
        self._unanswered: dict[EndpointId, asyncio.Event] = {}
        self._phases = itertools.count()
        self._long_page = asyncio.Lock()
        self._turns = PollTurns()
        self._tasks: asyncio.TaskGroup | None = None

    def watch(self, endpoint: Endpoint) -> None:
        """Poll an endpoint; another engine under the same id starts without a previous load."""
        known, url = self._by_endpoint.get(endpoint.id), self._settings.url(endpoint)
        if known and known.url == url:
            reader = known.readers[endpoint.id]
            if reader.endpoint.engine == endpoint.engine:
                reader.relabel(endpoint)
                return
        self.unwatch(endpoint.id)
        server = self._server_at(url)
        server.readers[endpoint.id] = self.source.read(endpoint)
        self._by_endpoint[endpoint.id] = server
        self._unanswered[endpoint.id] = asyncio.Event()

    def _server_at(self, url: str) -> _Server:
        """Return the server of a URL: its page is polled once, however many endpoints it has."""
        if url not in self._servers:
            server = self._servers[url] = _Server(url, self.source)
            if self._tasks is not None:
                self._begin_polls(server, self._tasks)
        return self._servers[url]

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Stop polling an endpoint; no event of it follows."""
        server = self._by_endpoint.pop(endpoint_id, None)
        if server is None:
            return
        self._on_answer(endpoint_id)
        del server.readers[endpoint_id]
        server.unknown.discard(endpoint_id)
        server.logged.pop(endpoint_id, None)
        if not server.readers:
            del self._servers[server.url]
            server.polled.set()
            if server.task:
                server.task.cancel()
                server.task = None  # whose last error would hold the server

    def poll_now(self, endpoint_id: EndpointId) -> None:
        """Poll an endpoint that may be gone at once, but not more often than every 0.25 s."""
        server, now = self._by_endpoint.get(endpoint_id), self._clock()
        if server is not None and now - server.polled_now_at >= _MIN_POLL_NOW_SECONDS:
            server.polled_now_at = now
            if server.due is not None:
                _begin(server.due)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Poll in a group of tasks, until `stop`."""
        self._tasks = tasks
        for server in self._servers.values():
            self._begin_polls(server, tasks)

    def stop(self) -> None:
        """Begin to poll no server any more; the group cancels the polls."""
        self._tasks = None

    def _begin_polls(self, server: _Server, tasks: asyncio.TaskGroup) -> None:
        server.task = tasks.create_task(self._poll(server), name=f"scrape {server.url}")

    async def polled_once(self, seconds: float) -> None:
        """Wait until every server watched at the call was polled, for at most `seconds`."""
        polls = [asyncio.ensure_future(each.polled.wait()) for each in self._servers.values()]
        if polls:
            _, late = await asyncio.wait(polls, timeout=seconds)
            for poll in late:
                poll.cancel()

    async def answered(self, endpoint_id: EndpointId) -> None:
        """Wait until an endpoint's page was read, or fails although the endpoint is there."""
        while (event := self._unanswered.get(endpoint_id)) is not None:
            await event.wait()

    def _on_answer(self, endpoint_id: EndpointId) -> None:
        event = self._unanswered.pop(endpoint_id, None)
        if event is not None:
            event.set()

    async def _poll(self, server: _Server) -> NoReturn:
        """Poll a server at once, then at its phase of the interval, less often while dead."""
        loop = asyncio.get_running_loop()
        interval = self._settings.interval
        phase = next(self._phases) // _POLLED_TOGETHER * _GOLDEN % 1
        due = loop.time() + interval * (phase or 1.0)
        await asyncio.sleep(
            min(interval, _MAX_FIRST_SPREAD, _FIRST_SPREAD * len(self._servers)) * phase
        )
        try:
            await self._scrape(server)
            server.polled.set()
            while True:
                server.due = loop.create_future()
                timer = loop.call_at(min(due, server.retry_at), _begin, server.due)
                try:
                    await server.due
                finally:
                    timer.cancel()
                    server.due = None
                await self._scrape(server)
                now = loop.time() + _EARLY_SECONDS
                if now >= due:  # else it was polled out of turn
                    dead = server.failures >= _DEAD_AFTER
                    pause = max(interval, self._settings.retry) if dead else interval
                    due = next_due(due, pause, now)
        finally:
            server.client.close()

    async def _scrape(self, server: _Server) -> None:
        place = self._turns.take()
        if place is not None:
            await place
        try:
            steps = self._read(server, await self._get(server))
            if not _one_turn(steps):
                await self._read_on(steps)
        except (OSError, PageRefused) as error:  # TimeoutError is one
            self._on_failure(server, error)
        except Exception as error:  # noqa: BLE001 (what one server sends must not end other polls)
            if not server.faulty:
                _log.exception("scrape.fault", url=server.url)
            server.faulty = True
            self._on_failure(server, error)

    async def _get(self, server: _Server) -> bytes:
        """Return a page; raises `TimeoutError` for one that is given up."""
        settings, loop = self._settings, asyncio.get_running_loop()
        end = loop.time() + settings.timeout
        first = min(settings.late, settings.timeout)
        server.late = loop.call_later(first, self._on_late, server, end)
        try:
            return await server.client.get()
        finally:
            server.late.cancel()

    def _on_late(self, server: _Server, end: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= end:
            server.client.give_up()
            return
        again = min(end, now + max(self._settings.late, self._settings.interval))
        server.late = loop.call_at(again, self._on_late, server, end)
        for endpoint_id in tuple(server.readers) if self.source.vital else ():
            self._apply(ScrapeFailed(endpoint_id, ScrapeFailure.LATE))

    async def _read_on(self, steps: Iterator[None]) -> None:
        """Take further steps in turns of a millisecond, of one long page at a time."""
        async with self._long_page:
            ended = False
            while not ended:
                await asyncio.sleep(_PAUSES_PER_TURN * _TURN_SECONDS)
                ended = _one_turn(steps)

    def _read(self, server: _Server, text: bytes) -> Iterator[None]:
        """Pass on what a page reports of each endpoint, in steps."""
        page, at = Page(text, server.page_before, self.source.engines), self._clock()
        for reader in tuple(server.readers.values()):
            endpoint = reader.endpoint
            found = yield from reader.steps(page, at)
            if server.readers.get(endpoint.id) is not reader:
                continue  # unwatched between two steps
            if self._unanswered:
                self._on_answer(endpoint.id)
            for event in found.events:
                self._apply(event)
            if found.unknown and endpoint.id not in server.unknown:
                _log.warning("endpoint.metrics_unknown", endpoint=endpoint.id, url=server.url)
            (server.unknown.add if found.unknown else server.unknown.discard)(endpoint.id)
            self.unknown += found.unknown
            for warning in found.warnings:
                _log.warning("endpoint.metrics_doubted", endpoint=endpoint.id, doubt=warning)
            yield
        if server.failures:
            self._log_recovery(server)
        server.failures, server.retry_at, server.faulty = 0, inf, False
        server.logged.clear()

    def _log_recovery(self, server: _Server) -> None:
        if not self.source.vital:
            _log.info("source.recovered", source=self.source.name, url=server.url)
            return
        for reader in server.readers.values():
            endpoint = reader.endpoint
            _log.info("endpoint.recovered", endpoint=endpoint.id, target=endpoint.target)

    def _on_failure(self, server: _Server, error: Exception) -> None:
        server.failures += 1
        self.errors += len(server.readers)
        broken = isinstance(error, BROKEN) and server.failures <= _DEAD_AFTER
        server.retry_at = (
            asyncio.get_running_loop().time() + _RETRY_BROKEN_SECONDS if broken else inf
        )
        unsaid = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        text = str(error) or unsaid
        if server.failures == 1 and not self.source.vital:
            _log.warning("source.failed", source=self.source.name, url=server.url, error=text)
        for reader in tuple(server.readers.values()):
            reader.reset()
            endpoint = reader.endpoint
            reason = failure_of(endpoint, server.url, error)
            if not is_absent(endpoint, server.url, reason):
                self._on_answer(endpoint.id)
            if self.source.vital:
                self._apply(ScrapeFailed(endpoint.id, reason))
                if server.logged.get(endpoint.id) != EVENTS[reason]:
                    server.logged[endpoint.id] = EVENTS[reason]
                    _log.warning(EVENTS[reason], endpoint=endpoint.id, error=text, url=server.url)


def next_due(due: float, pause: float, now: float) -> float:
    """Return when a poll that was due is due again: one or more times `pause` seconds later."""
    return due + pause * (1 + (now - due) // pause)


def _one_turn(steps: Iterator[None]) -> bool:
    """Take steps for `_TURN_SECONDS`; return whether they have ended."""
    end = time.perf_counter() + _TURN_SECONDS
    return all(time.perf_counter() < end for _ in steps)


def _begin(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)
