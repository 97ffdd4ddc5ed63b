"""The pages of the operators' port that show decisions, endpoints and plug-ins.

Each is put together a piece at a time, so that requests go first.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from epp.adapters.telemetry.debug_pages import (
    MAX_NUMBER,
    DebugPage,
    Query,
    QueryRefused,
    only,
    whole_number,
)
from epp.app.observing.decision_ring import DecisionRing, KeptDecision
from epp.app.observing.fleet_view import EndpointsPage, endpoint_view
from epp.app.observing.views import DecisionsPage, decision_view
from epp.errors import FAULTS
from epp.model.fleet import Fleet
from epp.policy.plugins import StateDumper
from epp.policy.profile import Scheduling

MAX_SHOWN: Final = 100
"""Decisions on one page, at most."""
_AT_ONCE: Final = 20
"""Endpoints that are looked at between two turns of the event loop."""
_UNSUPPORTED: Final = "plugin does not support state collection"


class DebugPages:
    """The pages of one picker: its `ring` of decisions, its fleet and its plug-ins."""

    def __init__(
        self,
        pool: str,
        ring: DecisionRing,
        fleet: Fleet,
        scheduling: Scheduling,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._fleet = fleet
        self._plugins = scheduling.plugins
        self._clock = clock
        self.pages: Mapping[bytes, DebugPage] = {
            b"/debug/decisions": DebugPage(self._decisions),
            b"/debug/endpoints": DebugPage(self._endpoints),
            b"/debug/plugins/state": DebugPage(self._plugin_states, local=True),
        }

    async def _decisions(self, query: Query) -> bytes:
        only(query, "request", "since", "limit")
        limit = whole_number(query, "limit", 20, 1, MAX_SHOWN)
        ring = self._ring
        kept: Sequence[KeptDecision]
        if "request" in query:
            if "since" in query:
                raise QueryRefused("give `request` or `since`, not both")
            kept = ring.find(query["request"])[:limit]
        elif "since" in query:
            kept = ring.since(whole_number(query, "since", 0, 0, MAX_NUMBER), limit)
        else:
            kept = ring.last(limit)
        clock_began = time.time() - self._clock()
        last = kept[-1].number if kept else ring.number
        views = []
        for each in kept:
            views.append(decision_view(each, each.explain(ring.measures), clock_began))
            await asyncio.sleep(0)
        return msgspec.json.encode(DecisionsPage(last=last, decisions=tuple(views)))

    async def _endpoints(self, query: Query) -> bytes:
        only(query)
        now, views = self._clock(), []
        for at, pod in enumerate(list(self._fleet.pods.values())):
            views.append(endpoint_view(pod, self._ring.tallies, now))
            if at % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        page = EndpointsPage(
            pool=self._pool, at=now, decisions=self._ring.number, endpoints=tuple(views)
        )
        return msgspec.json.encode(page)

    async def _plugin_states(self, query: Query) -> bytes:
        only(query)
        states = {}
        for name, (kind, plugin) in self._plugins.items():
            states[name] = {"name": name, "type": kind, **_state(plugin)}
            await asyncio.sleep(0)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return msgspec.json.encode({"timestamp": at, "plugins": states})


def _state(plugin: object) -> dict[str, object]:
    if not isinstance(plugin, StateDumper):
        return {"message": _UNSUPPORTED}
    try:
        return {"state": msgspec.Raw(msgspec.json.encode(plugin.dump_state()))}
    except FAULTS as error:  # whatever a plug-in does: the others are shown
        return {"message": f"{type(error).__name__}: {error}"[:200]}
