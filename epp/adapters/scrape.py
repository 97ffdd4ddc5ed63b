"""Polls the metrics page of every endpoint; one slow or dead pod never delays another."""

import asyncio
import itertools
from collections.abc import Callable
from http import HTTPStatus
from typing import NoReturn

import aiohttp
import msgspec
import structlog

from epp.errors import WarmpickError
from epp.model.endpoint import UNREPORTED, Endpoint, EndpointId, Load
from epp.model.events import Event, LoadReported, ScrapeFailed
from epp.protocol.vllm import Engine, engine_of, parse_metrics

_log = structlog.get_logger(__name__)

_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, stay evenly spread whatever their number."""
_DEAD = 2
"""Failures in a row after which a pod is polled less often."""
_KEEP_IDLE = 15.0
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


class PageRefused(WarmpickError):
    """The endpoint answered with something that is not a metrics page."""


class _Pod:
    """One watched endpoint, and what is known of it between two polls."""

    def __init__(self, endpoint: Endpoint, url: str) -> None:
        self.endpoint = endpoint
        self.url = url
        self.load: Load = UNREPORTED
        self.engine: Engine | None = None
        self.failures = 0
        self.unreadable = False
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
        self._pods: dict[EndpointId, _Pod] = {}
        self._phases = itertools.count()
        self._start: Callable[[_Pod], None] | None = None

    def watch(self, endpoint: Endpoint) -> None:
        """Poll this endpoint from now on; the same id at another address starts afresh."""
        pod = self._pods.get(endpoint.id)
        if pod and (pod.endpoint.target, pod.endpoint.uid) == (endpoint.target, endpoint.uid):
            pod.endpoint, pod.engine = endpoint, None
            return
        self.forget(endpoint.id)
        url = f"{self._settings.scheme}://{endpoint.target}{self._settings.path}"
        pod = self._pods[endpoint.id] = _Pod(endpoint, url)
        if self._start:
            self._start(pod)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Stop polling an endpoint; nothing is told of it any more."""
        pod = self._pods.pop(endpoint_id, None)
        if pod and pod.task:
            pod.task.cancel()

    async def run(self) -> None:
        """Poll until cancelled; never returns."""
        async with self._session() as session, asyncio.TaskGroup() as tasks:

            def start(pod: _Pod) -> None:
                name = f"scrape {pod.endpoint.id}"
                pod.task = tasks.create_task(self._poll(pod, session), name=name)

            for pod in self._pods.values():
                start(pod)
            self._start = start
            try:
                await asyncio.Event().wait()
            finally:
                self._start = None

    def _session(self) -> aiohttp.ClientSession:
        """Open a session that keeps one idle connection a pod for longer than an interval."""
        keep = _KEEP_IDLE + 2 * self._settings.interval
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keep, ssl=False),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def _poll(self, pod: _Pod, session: aiohttp.ClientSession) -> NoReturn:
        """Poll one pod at its own phase of the interval, less often while it is dead."""
        loop = asyncio.get_running_loop()
        interval = self._settings.interval
        due = loop.time() + interval * (next(self._phases) * _GOLDEN % 1)
        while True:
            await asyncio.sleep(due - loop.time())
            await self._scrape(pod, session)
            pause = interval if pod.failures < _DEAD else max(interval, self._settings.retry)
            due = max(due + pause, loop.time())

    async def _scrape(self, pod: _Pod, session: aiohttp.ClientSession) -> None:
        try:
            page = await self._get(pod.url, session)
        except (aiohttp.ClientError, TimeoutError, OSError, PageRefused) as error:
            self._failed(pod, error)
        else:
            self._answered(pod, page)

    async def _get(self, url: str, session: aiohttp.ClientSession) -> bytes:
        limit = self._settings.max_bytes
        async with session.get(url, allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                raise PageRefused(f"HTTP status {response.status}")
            page = bytearray()
            async for chunk in response.content.iter_any():
                page += chunk
                if len(page) > limit:
                    raise PageRefused(f"the page is larger than {limit} bytes")
            return bytes(page)

    def _answered(self, pod: _Pod, page: bytes) -> None:
        pod.engine = pod.engine or engine_of(pod.endpoint.labels, page)
        pod.load = parse_metrics(page, self._clock(), pod.load, pod.engine)
        recovered, pod.failures = pod.failures > 0, 0
        unreadable, pod.unreadable = pod.unreadable, pod.engine is None
        self._apply(LoadReported(pod.endpoint.id, pod.load))
        if recovered:
            _log.info("endpoint.recovered", endpoint=pod.endpoint.id, target=pod.endpoint.target)
        if pod.unreadable and not unreadable:
            _log.warning("endpoint.metrics_unknown", endpoint=pod.endpoint.id, url=pod.url)

    def _failed(self, pod: _Pod, error: Exception) -> None:
        pod.failures += 1
        pod.engine = None
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        refused = isinstance(cause, ConnectionRefusedError)
        self._apply(ScrapeFailed(pod.endpoint.id, refused))
        if pod.failures == 1:
            reason = str(cause) or type(cause).__name__
            _log.warning("endpoint.unreachable", endpoint=pod.endpoint.id, error=reason)
