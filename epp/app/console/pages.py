"""The pages of the console: its files, the state that it shows each second, and hot prefixes."""

import os
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from epp.adapters.telemetry.debug_pages import MAX_NUMBER, DebugPage, Query, only, whole_number
from epp.adapters.telemetry.decisions import Reuse
from epp.app.console.columns import decision_columns, fleet_columns
from epp.app.console.picker_parts import PickerParts
from epp.app.console.prefixes import MAX_DECISIONS, hot_prefixes
from epp.app.console.views import ConsolePage, Totals
from epp.app.observing.decision_ring import DecisionRing
from epp.model.fleet import Fleet
from epp.system.shared_result import SharedResult

_PATH: Final = b"/console"
_FOLDER: Final = Path(__file__).with_name("static")
_START: Final = "console.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
MAX_RECENT: Final = 200
"""Decisions on one page, at most."""
_MAX_ENDED: Final = 600
"""Decisions that have ended, on one page: as many as a browser keeps."""
_FRESH_SECONDS: Final = 0.5
"""The greatest age of the fleet's columns: readers within this time share them."""
_TREE_SECONDS: Final = 2.0
"""The greatest age of the tree of prefixes: readers within this time share it."""
_MILLI: Final = 1e3


class ConsoleSources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the console's data about one picker."""

    pool: str
    ring: DecisionRing
    fleet: Fleet
    clock: Callable[[], float]
    reuse: Callable[[], Reuse]
    parts: PickerParts
    time_of_day: Callable[[], float] = time.time


class Console:
    """The pages of one picker."""

    def __init__(self, sources: ConsoleSources) -> None:
        self._sources: Final = sources
        self._started: Final = os.urandom(8).hex()
        self._columns: Final = SharedResult(self._write_columns, _FRESH_SECONDS, sources.clock)
        self._tree: Final = SharedResult(self._write_tree, _TREE_SECONDS, sources.clock)
        self.pages: Final[Mapping[bytes, DebugPage]] = {
            **static_pages(),
            b"/debug/console": DebugPage(self._state),
            b"/debug/prefixes": DebugPage(self._prefixes),
        }

    async def _state(self, query: Query) -> bytes:
        only(query, "since", "limit", "ended")
        since = whole_number(query, "since", 0, 0, MAX_NUMBER)
        limit = whole_number(query, "limit", MAX_RECENT, 1, MAX_RECENT)
        ended_since = whole_number(query, "ended", MAX_NUMBER, 0, MAX_NUMBER)
        sources = self._sources
        endpoints = await self._columns.get()
        ring, now = sources.ring, sources.clock()
        clock_began = sources.time_of_day() - now
        number, at_ms = ring.number, round(_MILLI * (clock_began + now))
        kept = ring.last(max(0, min(limit, number - since)))
        ended = ring.endings(ended_since, at_ms, _MAX_ENDED)
        recent = await decision_columns(kept, clock_began)
        return msgspec.json.encode(
            ConsolePage(
                pool=sources.pool,
                started=self._started,
                at_ms=at_ms,
                decisions=number,
                endpoints=endpoints,
                totals=self._totals(),
                recent=recent,
                ended=await decision_columns(ended, clock_began),
                waiting=sources.parts.waiting_view(),
                replicas=sources.parts.replicas_view(now),
                shadow=sources.parts.shadow_view(),
            )
        )

    async def _write_columns(self) -> msgspec.Raw:
        sources = self._sources
        pods, tallies = list(sources.fleet.pods.values()), sources.ring.tallies
        return await fleet_columns(pods, tallies, sources.clock(), sources.parts.room_used)

    def _totals(self) -> Totals:
        tally, reuse = self._sources.ring.total(), self._sources.reuse()
        return Totals(
            responses=tally.requests,
            prompt=tally.prompt_tokens,
            cached=tally.cached_tokens,
            predicted=tally.predicted_tokens,
            error=tally.absolute_error,
            reuse_prompt=reuse.prompt,
            available=reuse.available,
            captured=reuse.captured,
            delivered=reuse.delivered,
        )

    async def _prefixes(self, query: Query) -> bytes:
        only(query)
        return await self._tree.get()

    async def _write_tree(self) -> bytes:
        kept = self._sources.ring.last(MAX_DECISIONS)
        return msgspec.json.encode(await hot_prefixes(kept, self._sources.clock()))


def static_pages() -> dict[bytes, DebugPage]:
    """Return the pages by their paths. They are read now, so a request reads no file."""
    pages = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            at = _PATH if path.name == _START else _PATH + b"/" + path.name.encode("ascii")
            pages[at] = _page(path.read_bytes(), _TYPES[path.suffix])
    return pages


def _page(data: bytes, content_type: str) -> DebugPage:
    async def answer(query: Query) -> bytes:
        only(query)
        return data

    etag = f'"{sha256(data).hexdigest()[:16]}"'
    return DebugPage(answer, content_type=content_type, etag=etag)
