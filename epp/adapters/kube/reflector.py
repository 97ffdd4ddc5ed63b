"""Follows one resource by list and watch, through restarts of the API server.

Mirrors client-go `tools/cache/reflector.go`.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from http import HTTPStatus
from typing import Generic, NoReturn, TypeVar

import msgspec

from epp.adapters.kube.api_connection import ApiConnection, ApiUnreachable
from epp.adapters.kube.kube_settings import ReflectorSettings
from epp.adapters.kube.retry_queue import RetryQueue
from epp.protocol.kube.objects import KubeObject
from epp.protocol.kube.resources import Resource, Selection
from epp.protocol.kube.watch import (
    ApiRefused,
    LineSplitter,
    ObjectDecoder,
    StreamBroken,
    Unreadable,
    WatchEvent,
)
from epp.system.logs import Log

_log = Log(__name__)

T = TypeVar("T", bound=KubeObject)

_AT_ONCE, _BYTES_AT_ONCE = 50, 1 << 20
"""Watch events, and their bytes, that are handled before the event loop may run other tasks."""
_MAX_PAGES = 2000
"""Pages of one list, at most: a list that does not end is broken off."""
_CHANGES = ("ADDED", "MODIFIED")
_SHORT_WATCH = 1.0
"""Seconds; a watch that ends sooner and without an event is a failure (client-go: the same)."""
_VERBS = ("list", "watch")
_NO_RIGHTS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_ANSWERS = _NO_RIGHTS | {HTTPStatus.NOT_FOUND}
"""Statuses after which no objects can be expected; after others there may be some."""
_RESUMABLE = _NO_RIGHTS | {HTTPStatus.TOO_MANY_REQUESTS}
"""Statuses after which a watch may go on from the version that it has reached."""


Delay = float | RetryQueue
"""Seconds to wait before the next request, or where to wait for one's turn."""


class Sink(msgspec.Struct, Generic[T], frozen=True):
    """Callbacks: objects added or changed, names deleted, and all names after a full list."""

    upsert: Callable[[Sequence[T]], None]
    remove: Callable[[Sequence[str]], None]
    retain: Callable[[Collection[str]], None]


class Backoff:
    """Delays in seconds that double from `minimum` to `maximum`, each shortened by up to a half.

    `chance` returns numbers in 0..1; it spreads the retries of many replicas.
    """

    def __init__(
        self, minimum: float, maximum: float, chance: Callable[[], float] = random.random
    ) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._chance = chance
        self._delay = minimum

    def next(self) -> float:
        """Return the delay after one more failure."""
        delay, self._delay = self._delay, min(self._maximum, self._delay * 2)
        return delay * (1 - self._chance() / 2)

    def reset(self) -> None:
        """Start again at the minimum, after a success."""
        self._delay = self._minimum


class Reflector(Generic[T]):
    """Keeps `sink` up to date with the selected objects of a resource, while it runs.

    A list is passed on page by page; `Sink.retain` follows the last page, with all names, so that
    objects deleted while no watch was open are removed. `answered` is set once the API has listed
    the resource, has said that it is not installed or not allowed, or has failed to for
    `refused_delay` seconds.
    """

    def __init__(
        self,
        connection: ApiConnection,
        resource: Resource[T],
        selection: Selection,
        sink: Sink[T],
        settings: ReflectorSettings,
    ) -> None:
        self.answered = asyncio.Event()
        self._connection = connection
        self._resource = resource
        self._selection = selection
        self._sink = sink
        self._settings = settings
        self._decoder = ObjectDecoder(resource.kind)
        self._backoff = Backoff(settings.min_backoff, settings.max_backoff)
        self._patience = Backoff(settings.probe_delay, settings.refused_delay)
        self._names: set[str] = set()
        self._version = self._token = self._verb = ""
        self._problem = self._failing = ""  # the one logged last, and its verb
        self._missing = self._left_out = 0
        self._broken = self._listed = self._refused = False

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            try:
                await self._follow()
            except ApiRefused as refusal:
                delay = self._on_refusal(refusal)
            except (ApiUnreachable, StreamBroken) as error:
                delay = self._on_disconnect(error)
            else:
                delay = 0.0
            if isinstance(delay, RetryQueue):
                await delay.wait(self._settings.probe_delay)
            else:
                await asyncio.sleep(delay)

    async def _follow(self) -> None:
        if not self._version:
            self._verb = "list"
            self._version = await self._list()
            self._listed = True
            self._on_success()
        self._verb, since = "watch", time.monotonic()
        try:
            await self._watch()
        finally:
            if time.monotonic() - since >= self._settings.max_backoff:
                self._backoff.reset()

    # Listing.

    async def _list(self) -> str:
        """List all objects; return the resource version to watch from.

        Continues with the page at which an earlier call was refused with 429, or lost the
        connection: a list that began anew might never end while the API server is overloaded.
        """
        limit = self._settings.page_size
        for _ in range(_MAX_PAGES):
            try:
                version, following = await self._list_page(limit)
            except ApiRefused as refusal:
                if not (refusal.expired and self._token):
                    raise
                # API concepts, "Retrieving large results sets in chunks": etcd compacts versions
                # after 5 minutes, and a continue token of a compacted one gets 410. client-go
                # (`tools/pager`) then lists everything in one page, and so does this.
                self._begin_list()
                limit = 0
                continue
            if not following:
                self._sink.retain(self._names)
                self._begin_list()
                return version
            self._token = following
        raise StreamBroken(f"a list of more than {_MAX_PAGES} pages")

    def _begin_list(self) -> None:
        """Let the next page be the first one."""
        self._names, self._token = set(), ""

    async def _list_page(self, limit: int) -> tuple[str, str]:
        query = self._selection.query({"limit": limit, "continue": self._token})
        path = f"{self._resource.path}?{query}"
        body = await self._connection.request("GET", path, seconds=self._settings.request_timeout)
        page = self._decoder.page(body)
        for unreadable in page.unreadable:
            self._leave_out(unreadable.name, unreadable.why)
        self._names.update(each.metadata.name for each in page.items)
        self._upsert(page.items)
        return page.metadata.resource_version, page.metadata.continue_token

    # Watching.

    async def _watch(self) -> None:
        """Pass on events until the server ends the watch."""
        # As client-go does: a random duration, so that watches do not all end at once.
        seconds = int(self._settings.watch_timeout * random.uniform(1, 2)) or 1  # noqa: S311 (chance, not secrets)
        query = self._selection.query(
            {
                "watch": 1,
                # Bookmarks advance the version even when no selected object changes.
                "allowWatchBookmarks": "true",
                "resourceVersion": self._version,
                "timeoutSeconds": seconds,
            }
        )
        path, since = f"{self._resource.path}?{query}", time.monotonic()
        before = self._version
        settings = self._settings
        async with self._connection.stream(
            path, response_timeout=settings.request_timeout, idle_timeout=settings.idle_timeout
        ) as chunks:
            self._on_rights()
            await self._read_events(chunks)
        if self._version == before and time.monotonic() - since < _SHORT_WATCH:
            raise ApiUnreachable("the watch ended as soon as it began")

    async def _read_events(self, chunks: AsyncIterator[bytes]) -> None:
        lines, handled, size = LineSplitter(), 0, 0
        async for chunk in chunks:
            for line in lines.feed(chunk):
                self._pass_on(self._decoder.event(line))
                handled, size = handled + 1, size + len(line)
                if handled >= _AT_ONCE or size >= _BYTES_AT_ONCE:
                    handled = size = 0
                    await asyncio.sleep(0)

    def _pass_on(self, event: WatchEvent[T] | Unreadable) -> None:
        if isinstance(event, Unreadable):
            self._leave_out(event.name, event.why)
            self._sink.remove((event.name,))
            version = event.resource_version
        else:
            self._handle(event)
            version = event.object.metadata.resource_version
        # The version of any event, bookmarks included, is the one to resume the watch from.
        self._version = version or self._version
        self._backoff.reset()
        self._on_success()

    def _handle(self, event: WatchEvent[T]) -> None:
        # client-go too passes over types that it does not know, and BOOKMARK has no object.
        if event.type == "DELETED":
            self._sink.remove((event.object.metadata.name,))
        elif event.type in _CHANGES:
            self._upsert((event.object,))

    def _upsert(self, objects: Sequence[T]) -> None:
        """Pass on objects; one that the sink rejects costs only itself."""
        try:
            self._sink.upsert(objects)
        except Exception as error:  # noqa: BLE001 (whatever is in an object)
            if len(objects) > 1:
                for each in objects:
                    self._upsert((each,))
                return
            name = objects[0].metadata.name
            self._leave_out(name, repr(error))
            self._sink.remove((name,))

    # Failures.

    def _on_rights(self) -> None:
        """Let the others that were refused ask at once, after a refusal has ended."""
        if self._refused:
            self._refused = False
            self._connection.refused.release()

    def _on_success(self) -> None:
        self.answered.set()
        self._patience.reset()
        self._missing, self._broken = 0, False
        # A list says nothing of a watch that fails after each one.
        if self._problem and self._verb in {"watch", self._failing}:
            self._problem = ""
            _log.info("kube.recovered", resource=self._resource.named)

    def _on_refusal(self, refusal: ApiRefused) -> Delay:
        """Handle a refusal; return how long to wait."""
        self._missing = self._missing + 1 if refusal.code == HTTPStatus.NOT_FOUND else 0
        if refusal.code in _ANSWERS:
            self.answered.set()
        self._answer_in_time()
        if refusal.code != HTTPStatus.TOO_MANY_REQUESTS:
            self._begin_list()
        if self._verb == "watch" and refusal.code not in _RESUMABLE:
            # 410 Gone: the version was compacted, and only a list gives another. After other
            # refusals the version may be invalid, too.
            self._version = ""
        if refusal.expired:
            return self._backoff.next()
        if refusal.code in _NO_RIGHTS:
            return self._on_no_rights(refusal)
        if refusal.code == HTTPStatus.NOT_FOUND:
            return self._on_missing()
        delay = self._on_failure("kube.refused", str(refusal), code=refusal.code)
        # RFC 9110 §10.2.3, and API priority and fairness with 429: not before Retry-After.
        return max(delay, refusal.retry_after)

    def _on_no_rights(self, refusal: ApiRefused) -> Delay:
        """Handle 401 and 403. Rights that were there once may be back soon."""
        if refusal.code == HTTPStatus.FORBIDDEN:
            group, namespace = self._resource.group, self._resource.namespace
            remedy = {"namespace": namespace, "missing_rule": self._resource.rule(_VERBS)}
            self._report("kube.forbidden", str(refusal), group=group, **remedy)
        else:
            self._report("kube.refused", str(refusal), code=refusal.code)
        self._refused = True
        return self._connection.refused if self._listed else self._patience.next()

    def _on_missing(self) -> float:
        """Handle 404: the kind is not installed. Returns the seconds to wait.

        The second 404 in a row removes all objects. One is not enough: an API server that starts
        serves custom resources some time after its own.
        """
        if self._missing > 1:
            self._sink.retain(())
        if self._is_new("kube.not_installed"):
            _log.info(
                "kube.not_installed",
                resource=self._resource.named,
                again_in=self._settings.refused_delay,
            )
        return self._settings.refused_delay

    def _on_disconnect(self, error: ApiUnreachable | StreamBroken) -> Delay:
        """Handle a broken request; return how long to wait.

        The first broken watch is not logged: each restart of an API server breaks all watches. Nor
        is an absent server, which the connection logs for all.
        """
        self._missing = 0
        if isinstance(error, ApiUnreachable) and error.absent:
            return self._connection.absent
        self._answer_in_time()
        if isinstance(error, StreamBroken):
            self._version = ""
            self._begin_list()
        elif self._verb == "watch" and not self._broken:
            self._broken = True
            return self._backoff.next()
        return self._on_failure("kube.disconnected", str(error))

    def _answer_in_time(self) -> None:
        """After a failure, bound the wait for a list, which may always fail."""
        loop = asyncio.get_running_loop()
        loop.call_later(self._settings.refused_delay, self.answered.set)

    def _on_failure(self, problem: str, error: str, **more: str | int) -> float:
        self._report(problem, error, **more)
        return self._backoff.next()

    def _report(self, problem: str, error: str, **more: str | int) -> None:
        """Log a problem, unless it is the one logged last."""
        if self._is_new(problem):
            fields = {"resource": self._resource.named, "verb": self._verb, **more}
            _log.warning(problem, error=error, **fields)

    def _is_new(self, problem: str) -> bool:
        """Return whether a problem is not the one logged last, which it is from now on."""
        if problem == self._problem:
            return False
        self._problem, self._failing = problem, self._verb
        return True

    def _leave_out(self, name: str, why: str) -> None:
        """Log an object that cannot be read: the first, second, fourth, eighth... with its name."""
        self._left_out += 1
        if self._left_out.bit_count() == 1:
            resource, count = self._resource.named, self._left_out
            _log.warning(
                "kube.object_left_out", resource=resource, object=name, why=why[:300], count=count
            )
