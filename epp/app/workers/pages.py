"""The operators' pages of several workers as those of one picker.

The workers are asked on demand, and one that does not answer is left out. If all workers believe
the same, the first one's answer counts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

import msgspec

from epp.adapters.telemetry.debug_pages import (
    MAX_NUMBER,
    DebugPage,
    Query,
    QueryRefused,
    only,
    whole_number,
)
from epp.adapters.telemetry.profiles import PROFILES, Profile
from epp.adapters.telemetry.profiles import Page as ProfilePage
from epp.adapters.telemetry.series import process_text
from epp.adapters.workers.asking import Asker
from epp.app.console.pages import MAX_RECENT, static_pages
from epp.app.console.views import ConsolePage
from epp.app.observing.fleet_view import EndpointsPage
from epp.app.observing.pages import MAX_SHOWN
from epp.app.observing.views import DecisionsPage
from epp.app.workers import views
from epp.app.workers.exposition import (
    Page,
    counts_of,
    drop_unseen,
    keep_counts,
    keep_forgotten,
    merged,
    read_page,
    written,
)
from epp.app.workers.supervisor import WorkerProcess

T = TypeVar("T")

_METRICS, _OPENMETRICS = b"/metrics", "application/openmetrics-text; version=1.0.0"
_ENDPOINTS, _DECISIONS = b"/debug/endpoints", b"/debug/decisions"
_CONSOLE, _PREFIXES = b"/debug/console", b"/debug/prefixes"
_PLUGINS: Final = b"/debug/plugins/state"
_MORE: Final = 25
"""How many more decisions are requested than wanted, as new ones come meanwhile."""
_SECONDS, _SILENT_SECONDS = 5.0, 1.0
"""How long a worker may take to answer, and one that is silent: readers wait for what may hang."""
_PROFILE_SECONDS: Final = 75.0
_WORKER: Final = b"worker="
_MILLI: Final = 1e3


class _NoWorkerAnswers(QueryRefused):
    status = HTTPStatus.SERVICE_UNAVAILABLE


class _Answer(NamedTuple):
    start: int
    asked: int
    page: Page


class _Source:
    """One worker's pages, and the counts from before it was started again."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker: Final = worker
        self._asker: Final = Asker(worker.pages)
        self._metrics: dict[bool, _Answer | None] = {False: None, True: None}  # the last, by format
        self._asked = 0
        self.shown: dict[bool, Page | None] = {False: None, True: None}  # of its metrics, by format
        self._kept = {False: -1, True: -1}  # the last start whose counts are in `ended`
        self._start = 0
        self._decisions = self._decisions_before = 0
        self.close = self._asker.close
        self.ask = self._asker.ask

    @property
    def _patience(self) -> float:
        return _SECONDS if self.worker.responsive else _SILENT_SECONDS

    async def show_metrics(self, ended: Page, forgotten: Page, *, openmetrics: bool) -> None:
        """Set `shown` to its metrics page, or to its last counts if it does not answer.

        Counts from before it was restarted go into `ended`, and counts that it has forgotten since
        into `forgotten`. Both change in the same step, so every reader gets consistent pages.
        """
        self._asked += 1
        worker, start, ask = self.worker, self.worker.starts, self._asked
        accept = _OPENMETRICS if openmetrics else "text/plain"
        seconds = self._patience
        answer = await self.ask(_METRICS, seconds, accept=accept) if worker.running else None
        last, new = self._metrics[openmetrics], None
        # It may have been started again since it was asked, or be in `ended` by now.
        counts = start == worker.starts and start > self._kept[openmetrics]
        if answer is not None and answer[0] is HTTPStatus.OK and counts:
            new = _Answer(start, ask, read_page(answer[1].decode()))
        if new is not None and last is not None and new.start == last.start:
            if new.asked < last.asked:
                new = last  # a later question was answered before
            else:
                keep_forgotten(forgotten, last.page, new.page)
        elif last is not None and (last.start != worker.starts or not worker.running):
            keep_counts(ended, last.page)
            self._kept[openmetrics], last = last.start, None
        self._metrics[openmetrics] = current = new or last
        self.shown[openmetrics] = None
        if current is not None:
            whole = new is not None and worker.running
            self.shown[openmetrics] = current.page if whole else counts_of(current.page)

    async def read(self, path: bytes, kind: type[T], **query: str | int) -> T | None:
        """Return a page, read; None if the worker does not answer."""
        if not self.worker.running:
            return None
        answer = await self.ask(path, self._patience, query)
        if answer is None or answer[0] is not HTTPStatus.OK:
            return None
        return msgspec.json.decode(answer[1], type=kind)

    def made_before(self, decisions: int) -> int:
        """Return how many decisions it had made before it was started again.

        `decisions` is how many it has made since.
        """
        if self._start != self.worker.starts:
            self._start = self.worker.starts
            self._decisions_before += self._decisions
        self._decisions = decisions
        return self._decisions_before

    @property
    def made_in_all(self) -> int:
        """How many decisions it had made when it was last asked."""
        return self._decisions_before + self._decisions


class MergedPages:
    """The metrics page (`page`) of all workers, their `debug` pages, and `profiles` of each."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self._sources: Final = [_Source(each) for each in workers]
        self.profiles: Final[Mapping[bytes, Profile]] = {
            path: partial(self._profile, path) for path in PROFILES
        }
        self._ended: dict[bool, Page] = {False: {}, True: {}}
        self._forgotten: dict[bool, Page] = {False: {}, True: {}}
        self.debug: Final[Mapping[bytes, DebugPage]] = {
            **static_pages(),
            _DECISIONS: DebugPage(self._show_decisions),
            _ENDPOINTS: DebugPage(self._show_endpoints),
            _CONSOLE: DebugPage(self._show_console),
            _PREFIXES: DebugPage(partial(self._first, _PREFIXES)),
            _PLUGINS: DebugPage(partial(self._first, _PLUGINS), local=True),
        }

    async def page(self, *, openmetrics: bool = False) -> AsyncIterator[str]:
        """Yield the metrics page of all workers, and of this process."""
        from prometheus_client.utils import floatToGoString  # noqa: PLC0415 (slow)

        gone = ended, forgotten = self._ended[openmetrics], self._forgotten[openmetrics]
        sources = self._ready_first()
        await asyncio.gather(
            *(each.show_metrics(*gone, openmetrics=openmetrics) for each in sources)
        )
        pages = [page for each in sources if (page := each.shown[openmetrics]) is not None]
        drop_unseen(forgotten, [*pages, ended])
        own = read_page(process_text(openmetrics=openmetrics))
        whole = merged([*pages, own], *gone)
        for piece in written(whole, floatToGoString):
            yield piece
        if openmetrics:
            yield "# EOF\n"

    def _ready_first(self) -> list[_Source]:
        return sorted(self._sources, key=lambda each: not each.worker.state.ready)

    async def _all(
        self, path: bytes, kind: type[T], **query: str | int
    ) -> tuple[list[_Source], list[T]]:
        """Return the pages of all that answer, the ready ones first. Raises `QueryRefused`."""
        sources = self._ready_first()
        asked = (each.read(path, kind, **query) for each in sources)
        found = [
            (source, page)
            for source, page in zip(sources, await asyncio.gather(*asked), strict=True)
            if page is not None
        ]
        if not found:
            raise _NoWorkerAnswers("no worker answers")
        return [source for source, _ in found], [page for _, page in found]

    def _made(self, sources: Sequence[_Source], each: Sequence[int]) -> views.Made:
        """Return how many decisions all workers made, given the numbers of these."""
        before = sum(map(_Source.made_before, sources, each))
        silent = sum(source.made_in_all for source in self._sources if source not in sources)
        return views.Made(each, before + silent)

    async def _first(self, path: bytes, query: Query) -> bytes:
        """Return the first worker's answer, for facts that all workers share."""
        only(query)
        _, pages = await self._all(path, msgspec.Raw)
        return bytes(pages[0])

    async def _show_decisions(self, query: Query) -> bytes:
        only(query, "request", "since", "limit")
        limit = asked = whole_number(query, "limit", 20, 1, MAX_SHOWN)
        since = whole_number(query, "since", 0, 0, MAX_NUMBER) if "since" in query else None
        if "request" in query:
            if since is not None:
                raise QueryRefused("give `request` or `since`, not both")
            _, pages = await self._all(
                _DECISIONS, DecisionsPage, request=query["request"], limit=limit
            )
            return msgspec.json.encode(views.decisions_on(pages, limit))
        until = datetime.now(UTC).isoformat(timespec="milliseconds")
        if since is not None:  # how many are new is asked before: most often few are
            sources, pages = await self._all(_DECISIONS, DecisionsPage, limit=1)
            made = self._made(sources, [page.last for page in pages])
            asked = max(1, made.before + sum(made.each) - since)
        asked = min(asked + _MORE, MAX_SHOWN)
        sources, pages = await self._all(_DECISIONS, DecisionsPage, limit=asked)
        made = self._made(sources, [page.last for page in pages])
        return msgspec.json.encode(views.merged_decisions(pages, made, until, since, limit))

    async def _show_endpoints(self, query: Query) -> bytes:
        only(query)
        sources, pages = await self._all(_ENDPOINTS, EndpointsPage)
        made = self._made(sources, [page.decisions for page in pages])
        return msgspec.json.encode(views.merged_endpoints(pages, made.before + sum(made.each)))

    async def _show_console(self, query: Query) -> bytes:
        only(query, "since", "limit", "ended")
        since = whole_number(query, "since", 0, 0, MAX_NUMBER)
        limit = whole_number(query, "limit", MAX_RECENT, 1, MAX_RECENT)
        until = int(_MILLI * time.time())
        asked: dict[str, str | int] = {"limit": min(limit + _MORE, MAX_RECENT)}
        if "ended" in query:
            asked["ended"] = whole_number(query, "ended", 0, 0, MAX_NUMBER)
        sources, pages = await self._all(_CONSOLE, ConsolePage, **asked)
        made = self._made(sources, [page.decisions for page in pages])
        return msgspec.json.encode(views.merged_console(pages, made, until, since, limit))

    async def _profile(self, path: bytes, query: bytes) -> ProfilePage:
        """Return a profile of one worker: the first, or the one that the query names.

        400 for an unknown worker, 503 for one that does not answer.
        """
        words = [each for each in query.split(b"&") if each]
        named = [each[len(_WORKER) :] for each in words if each.startswith(_WORKER)] or [b"0"]
        source = {b"%d" % each.worker.number: each for each in self._sources}.get(named[0])
        if source is None:
            last = len(self._sources) - 1
            return HTTPStatus.BAD_REQUEST, f"worker: a number from 0 to {last}\n".encode()
        rest = b"&".join(each for each in words if not each.startswith(_WORKER))
        answer = await source.ask(path, _PROFILE_SECONDS, rest)
        return answer or (HTTPStatus.SERVICE_UNAVAILABLE, b"the worker does not answer\n")

    async def close(self) -> None:
        """Stop asking."""
        for each in self._sources:
            await each.close()
