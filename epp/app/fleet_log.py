"""Metrics of endpoints that are left out, and of corrections to the fleet's books; log lines."""

from collections.abc import Iterator
from typing import Final

from epp.adapters.telemetry.series import FamilyText, counter, expose, gauge
from epp.app.observers import Observer
from epp.model.events import (
    BooksCorrected,
    Ejected,
    EjectionReason,
    Event,
    ReportsFrozen,
    Returned,
)
from epp.model.fleet import Fleet
from epp.system.logs import Log

_log = Log(__name__)

EJECTIONS: Final = counter(
    "warmpick_endpoint_ejections_total",
    "Endpoints that were left out for a while, by reason.",
    "reason",
)
EJECTED: Final = gauge(
    "warmpick_ejected_endpoints", "Endpoints that are left out because they failed or stalled."
)
ASLEEP: Final = gauge(
    "warmpick_asleep_endpoints",
    "Endpoints whose engines sleep, and which get no requests while others are awake.",
)
CORRECTED: Final = counter(
    "warmpick_corrected_requests_total",
    "Requests that were removed from the books because their endpoint kept reporting none: they"
    " were not released when they ended, which is a bug.",
)


class FleetLog:
    """Counts and logs ejections and corrections of a fleet, and counts sleeping engines."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._counts = dict.fromkeys(EjectionReason, 0)
        self._corrected = 0
        kinds = (Ejected, Returned, BooksCorrected, ReportsFrozen)
        fleet.subscribe(kinds, self._on_event, "observer/fleet")

    @property
    def observer(self) -> Observer:
        """The observer that yields the families."""
        return Observer(name="fleet", collect=self.collect)

    def _on_event(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Ejected):
            self._counts[event.reason] += 1
            _log.warning(
                "endpoint.ejected",
                endpoint=event.endpoint_id,
                reason=event.reason.value,
                seconds=event.seconds,
            )
        elif isinstance(event, Returned):
            _log.info("endpoint.returned", endpoint=event.endpoint_id)
        elif isinstance(event, ReportsFrozen):
            _log.warning(
                "endpoint.metrics_frozen", endpoint=event.endpoint_id, seconds=round(event.seconds)
            )
        elif isinstance(event, BooksCorrected):
            self._corrected += len(event.requests)
            _log.error("books.corrected", endpoint=event.endpoint_id, requests=len(event.requests))

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families."""
        counts = [((reason.value,), times) for reason, times in self._counts.items()]
        yield from expose(EJECTIONS, counts)
        pods = self._fleet.pods.values()
        yield from expose(EJECTED, [((), sum(each.outlier.ejected is not None for each in pods))])
        yield from expose(ASLEEP, [((), sum(not each.load.awake for each in pods))])
        yield from expose(CORRECTED, [((), self._corrected)])
