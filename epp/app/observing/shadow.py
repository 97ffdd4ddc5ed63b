"""The shadow: a second configuration that decides on the live one's requests, for comparison.

It decides at the same time, from the same state and quote, but its decisions take no effect. The
caches that it sees are those that the live policy has filled; how its own decisions would have
filled them is not known (`epp replay` shows that). Plug-ins that follow the fleet's events see the
live requests; those that keep decisions, such as session affinity, see the shadow's own.
"""

import asyncio
import random
from collections.abc import Iterator
from copy import copy
from math import isfinite
from typing import Final

from epp.adapters.telemetry.series import FamilyText, counter, expose
from epp.app.jobs import error_fields
from epp.app.observers import Observer
from epp.config.file import Settings
from epp.errors import FAULTS, RequestError
from epp.model.decision import Decision
from epp.model.fleet import Fleet
from epp.model.quote import Quote
from epp.model.request import InferenceRequest
from epp.policy.scheduler import Scheduler
from epp.system.logs import Log

_log = Log(__name__)

DECISIONS: Final = counter(
    "warmpick_shadow_decisions_total",
    "Decisions of the shadow: agreed with the live one, differed, refused, or failed, as its"
    " plug-ins that follow events may.",
    "policy",
    "outcome",
)
TTFT: Final = counter(
    "warmpick_shadow_predicted_ttft_seconds_total",
    "Sum of the predicted seconds to the first token at the endpoints that the live policy and"
    " the shadow chose for the same requests.",
    "policy",
    "decision",
)
CACHED: Final = counter(
    "warmpick_shadow_predicted_cached_tokens_total",
    "Sum of the predicted cached tokens at the endpoints that the live policy and the shadow"
    " chose for the same requests.",
    "policy",
    "decision",
)
_REPORT_SECONDS: Final = 60.0


class Tally:
    """The counts so far: decisions by outcome, and predictions of those that can be compared."""

    def __init__(self) -> None:
        self.agreed = self.differed = self.refused = self.failed = 0
        self.live_ttft = self.shadow_ttft = 0.0
        self.live_cached = self.shadow_cached = 0

    @property
    def compared(self) -> int:
        """Decisions of both."""
        return self.agreed + self.differed

    def since(self, before: "Tally") -> "Tally":
        """Return the counts since an earlier state of them."""
        difference = Tally()
        for name, value in vars(self).items():
            setattr(difference, name, value - getattr(before, name))
        return difference


class Shadow:
    """A configuration `name` that decides beside the live one, over the same fleet.

    An error in it or in its plug-ins is counted as `failed`.
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
        """The observer of the live policy's requests."""
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
            now = copy(self.tally)
            self.report(now.since(before))
            before = now

    def report(self, tally: Tally) -> None:
        """Log the counts, if there are any."""
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
