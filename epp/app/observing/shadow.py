"""The shadow: a second configuration decides on what the live one decided, and is compared with it.

It decides by the same state at the same time, with the same quote, and is never committed to: the
caches that it sees are those that the live policy has filled, so that what it would have made of
them over time remains unseen (`epp replay` shows that). Plug-ins that follow the fleet's events
see the live requests; those that keep decisions (sessions, say) see the shadow's own.
"""

import asyncio
import random
from collections.abc import Iterator
from math import isfinite
from typing import Final

import structlog

from epp.adapters.telemetry.series import Family, FamilyText, expose
from epp.app.jobs import error_fields
from epp.app.observers import Observer
from epp.config.file import Settings
from epp.errors import FAULTS, RequestError
from epp.model.decision import Decision
from epp.model.fleet import Fleet
from epp.model.quote import Quote
from epp.model.request import InferenceRequest
from epp.policy.scheduler import Scheduler

_log = structlog.get_logger(__name__)

DECISIONS: Final = Family(
    name="warmpick_shadow_decisions_total",
    help="Decisions of the shadow: agreed with the live one, differed, refused, or failed, as its"
    " plug-ins that follow events may.",
    kind="counter",
    labels=("policy", "outcome"),
)
TTFT: Final = Family(
    name="warmpick_shadow_predicted_ttft_seconds_total",
    help="Predicted seconds to the first token, added up, where the live policy and the shadow"
    " would send the same requests.",
    kind="counter",
    labels=("policy", "decision"),
)
CACHED: Final = Family(
    name="warmpick_shadow_predicted_cached_tokens_total",
    help="Predicted cached tokens, added up, where the live policy and the shadow would send the"
    " same requests.",
    kind="counter",
    labels=("policy", "decision"),
)
_REPORT_SECONDS: Final = 60.0


class Tally:
    """What was counted so far: decisions by outcome, and predictions of those that compare."""

    def __init__(self) -> None:
        self.agreed = self.differed = self.refused = self.failed = 0
        self.live_ttft = self.shadow_ttft = 0.0
        self.live_cached = self.shadow_cached = 0

    @property
    def compared(self) -> int:
        """Decisions of both."""
        return self.agreed + self.differed

    def since(self, before: "Tally") -> "Tally":
        """Return what was counted since."""
        difference = Tally()
        for name, value in vars(self).items():
            setattr(difference, name, value - getattr(before, name))
        return difference


class Shadow:
    """A configuration `name` that decides beside the live one, over the same fleet.

    Whatever it or its plug-ins raise counts as a failure of its own.
    """

    def __init__(self, name: str, settings: Settings, fleet: Fleet) -> None:
        self.tally = Tally()
        self.name = name
        chance = random.Random()  # noqa: S311 (chance, not secrets)
        self._scheduler = Scheduler(
            fleet, settings.scheduling, chance.randrange, on_fault=self._failed
        )
        self._observers = settings.scheduling.commit_observers
        for warning in settings.warnings:
            _log.warning("shadow.warning", policy=name, warning=warning)

    @property
    def observer(self) -> Observer:
        """What observes the live policy's requests."""
        return Observer(
            name="shadow", committing=self.committing, run=self.run, collect=self.collect
        )

    def _failed(self, _source: str, error: BaseException) -> None:
        """Count a failure, and log the first (`OnFault`)."""
        if not self.tally.failed:
            _log.error("shadow.failed", policy=self.name, **error_fields(error))
        self.tally.failed += 1

    def committing(
        self, request: InferenceRequest, quote: Quote, live: Decision, now: float
    ) -> None:
        """Decide on a request that was decided on, and compare."""
        tally = self.tally
        try:
            decision = self._scheduler.decide(request, quote, now)
            for observer in self._observers:
                observer.committed(request, decision, now)
        except RequestError:
            tally.refused += 1
            return
        except FAULTS as error:  # whatever a plug-in does: the live decision holds
            self._failed("decision", error)
            return
        if _destination(decision) == _destination(live):
            tally.agreed += 1
        else:
            tally.differed += 1
        live_ttft, ttft = live.predicted_ttft, decision.predicted_ttft
        if live_ttft is not None and ttft is not None and isfinite(live_ttft) and isfinite(ttft):
            tally.live_ttft += live_ttft
            tally.shadow_ttft += ttft
        tally.live_cached += live.predicted_cached_tokens
        tally.shadow_cached += decision.predicted_cached_tokens

    async def run(self) -> None:
        """Log a line a minute, if there were decisions."""
        before = Tally()
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            now = self.tally.since(Tally())
            self.report(now.since(before))
            before = now

    def report(self, tally: Tally) -> None:
        """Log what was counted, if anything was."""
        compared = tally.compared
        if not compared + tally.refused + tally.failed:
            return
        each = max(1, compared)
        _log.info(
            "shadow",
            policy=self.name,
            compared=compared,
            agreed=round(tally.agreed / each, 3),
            refused=tally.refused,
            failed=tally.failed,
            predicted_ttft_gain=round((tally.live_ttft - tally.shadow_ttft) / each, 6),
            predicted_cached_tokens_gain=round((tally.shadow_cached - tally.live_cached) / each, 1),
        )

    def collect(self) -> Iterator[FamilyText]:
        """Yield the shadow's families."""
        tally, name = self.tally, self.name
        outcomes = ("agreed", "differed", "refused", "failed")
        yield from expose(DECISIONS, [((name, each), getattr(tally, each)) for each in outcomes])
        for family, live, shadow in (
            (TTFT, tally.live_ttft, tally.shadow_ttft),
            (CACHED, tally.live_cached, tally.shadow_cached),
        ):
            yield from expose(family, [((name, "live"), live), ((name, "shadow"), shadow)])


def _destination(decision: Decision) -> tuple[str, str]:
    prefill = decision.prefill
    return decision.endpoint.id, "" if prefill is None else prefill.id
