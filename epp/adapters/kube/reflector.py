"""List, mark complete, watch: keeps up with one resource whatever becomes of the API server."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from http import HTTPStatus
from typing import Generic, NoReturn, TypeVar

import msgspec
import structlog

from epp.adapters.kube.api_connection import ApiConnection, ApiUnreachable
from epp.adapters.kube.kube_settings import ReflectorSettings
from epp.protocol.kube.objects import KubeObject
from epp.protocol.kube.resources import Resource, Selection
from epp.protocol.kube.watch import (
    ApiRefused,
    LineSplitter,
    ObjectDecoder,
    StreamBroken,
    WatchEvent,
)

_log = structlog.get_logger(__name__)

T = TypeVar("T", bound=KubeObject)

_AT_ONCE = 50
"""Events after which others get their turn."""
_SHORT = 1.0
"""Seconds; a watch that is shorter and brings nothing is a failure."""
_VERBS = ("list", "watch")
_STAYS = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS})
"""Refusals after which a watch may go on where it was."""


class Sink(msgspec.Struct, Generic[T], frozen=True):
    """Who is told: of objects as they are, of names that are gone, and of all names there are."""

    put: Callable[[Sequence[T]], None]
    gone: Callable[[Sequence[str]], None]
    listed: Callable[[Collection[str]], None]


class Backoff:
    """Delays in seconds that double from `least` to `most`, each shortened by up to a half.

    `chance` gives numbers in 0..1, so that many replicas do not come back at one time.
    """

    def __init__(
        self, least: float, most: float, chance: Callable[[], float] = random.random
    ) -> None:
        self._least = least
        self._most = most
        self._chance = chance
        self._delay = least

    def next(self) -> float:
        """The delay after one more failure."""
        delay, self._delay = self._delay, min(self._most, self._delay * 2)
        return delay * (1 - self._chance() / 2)

    def reset(self) -> None:
        """Start over: it worked."""
        self._delay = self._least


class Reflector(Generic[T]):
    """Tells `sink` of the objects of a resource that are selected, for as long as it runs.

    Objects are told page by page; `listed` follows when all are, and drops what went unseen.
    `answered` is set once the API has listed them or said why it does not.
    """

    def __init__(
        self,
        connection: ApiConnection,
        resource: Resource[T],
        selection: Selection,
        sink: Sink[T],
        pace: ReflectorSettings,
    ) -> None:
        self.answered = asyncio.Event()
        self._connection = connection
        self._resource = resource
        self._selection = selection
        self._sink = sink
        self._pace = pace
        self._reader = ObjectDecoder(resource.kind)
        self._backoff = Backoff(pace.least, pace.most)
        self._version = ""
        self._verb = "list"
        self._problem = ""
        self._missing = 0
        self._broken = self._strange = False

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            try:
                await self._follow()
            except ApiRefused as refusal:
                delay = self._refused(refusal)
            except (ApiUnreachable, StreamBroken) as error:
                delay = self._lost(error)
            else:
                delay = 0.0
            await asyncio.sleep(delay)

    async def _follow(self) -> None:
        if not self._version:
            self._verb = "list"
            self._version = await self._list()
            self._works()
        self._verb = "watch"
        await self._watch()

    # Listing.

    async def _list(self) -> str:
        """Tell all there is; return the version to watch from."""
        names: set[str] = set()
        limit, token = self._pace.page, ""
        while True:
            try:
                version, following = await self._page(names, limit, token)
            except ApiRefused as refusal:
                if not (refusal.expired and token):
                    raise
                names.clear()  # the list took longer than versions are kept: all in one then
                limit, token = 0, ""
                continue
            if not following:
                self._sink.listed(names)
                return version
            token = following

    async def _page(self, names: set[str], limit: int, token: str) -> tuple[str, str]:
        query = self._selection.query({"limit": limit, "continue": token})
        path = f"{self._resource.path}?{query}"
        body = await self._connection.request("GET", path, seconds=self._pace.request)
        page = self._reader.page(body)
        if page.strange:
            self._left_out()
        names.update(each.metadata.name for each in page.items)
        self._sink.put(page.items)
        return page.metadata.resource_version, page.metadata.continue_token

    # Watching.

    async def _watch(self) -> None:
        """Tell what changes until the server ends the watch."""
        seconds = int(self._pace.watch * random.uniform(1, 2)) or 1  # noqa: S311 (chance, not secrets)
        query = self._selection.query(
            {
                "watch": 1,
                "allowWatchBookmarks": "true",
                "resourceVersion": self._version,
                "timeoutSeconds": seconds,
            }
        )
        path, since = f"{self._resource.path}?{query}", time.monotonic()
        before = self._version
        pace = self._pace
        async with self._connection.stream(path, answer=pace.request, idle=pace.idle) as chunks:
            await self._read(chunks)
        if self._version == before and time.monotonic() - since < _SHORT:
            raise ApiUnreachable("the watch ended as soon as it began")

    async def _read(self, chunks: AsyncIterator[bytes]) -> None:
        lines, handled = LineSplitter(), 0
        async for chunk in chunks:
            for line in lines.feed(chunk):
                event = self._reader.event(line)
                if event is None:
                    self._left_out()
                    continue
                self._tell(event)
                handled += 1
                if handled % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _tell(self, event: WatchEvent[T]) -> None:
        metadata = event.object.metadata
        if event.type == "DELETED":
            self._sink.gone((metadata.name,))
        elif event.type != "BOOKMARK":
            self._sink.put((event.object,))
        self._version = metadata.resource_version or self._version
        self._works()

    # What goes wrong.

    def _works(self) -> None:
        self.answered.set()
        self._backoff.reset()
        self._missing, self._broken = 0, False
        if self._problem:
            self._problem = ""
            _log.info("kube.recovered", resource=self._resource.named)

    def _refused(self, refusal: ApiRefused) -> float:
        """Take note of a refusal; return how long to wait."""
        self.answered.set()
        if self._verb == "watch" and refusal.code not in _STAYS:
            self._version = ""  # what was known cannot be built upon
        if refusal.expired:
            return self._backoff.next()
        if refusal.code == HTTPStatus.FORBIDDEN:
            self._report("kube.forbidden", str(refusal), **self._remedy())
            return self._pace.slow
        if refusal.code == HTTPStatus.NOT_FOUND:
            return self._absent()
        delay = self._failed("kube.refused", str(refusal), code=refusal.code)
        return max(delay, refusal.status.details.retry_after_seconds)

    def _remedy(self) -> dict[str, str]:
        resource = self._resource
        return {
            "group": resource.group,
            "namespace": resource.namespace,
            "missing_rule": resource.rule(_VERBS),
        }

    def _absent(self) -> float:
        """Ask again later for a kind that is not installed; twice in a row, it has no objects.

        Once is not enough: an API server that starts may not know all its kinds yet.
        """
        self._missing += 1
        if self._missing > 1:
            self._sink.listed(())
        if self._problem != "kube.not_installed":
            self._problem = "kube.not_installed"
            _log.info("kube.not_installed", resource=self._resource.named, again_in=self._pace.slow)
        return self._pace.slow

    def _lost(self, error: ApiUnreachable | StreamBroken) -> float:
        """Take note that no more comes; return how long to wait.

        Watches break off whenever an API server restarts: that alone is nothing to be told of.
        """
        if isinstance(error, StreamBroken):
            self._version = ""
        elif self._verb == "watch" and not self._broken:
            self._broken = True
            return self._backoff.next()
        return self._failed("kube.disconnected", str(error))

    def _failed(self, problem: str, error: str, **more: str | int) -> float:
        self._report(problem, error, **more)
        return self._backoff.next()

    def _report(self, problem: str, error: str, **more: str | int) -> None:
        """Log a problem when it begins."""
        if problem != self._problem:
            self._problem = problem
            fields = {"resource": self._resource.named, "verb": self._verb, **more}
            _log.warning(problem, error=error, **fields)

    def _left_out(self) -> None:
        if not self._strange:
            self._strange = True
            _log.warning("kube.object_left_out", resource=self._resource.named, reason="ill-typed")
