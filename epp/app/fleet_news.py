"""What operators see of what the fleet finds out by itself: metrics, and a log line each time.

That is endpoints that are left out, and books that were corrected.
"""

from collections.abc import Iterator
from typing import Final

import structlog

from epp.adapters.telemetry.series import Family, FamilyText, expose
from epp.app.observers import Observer
from epp.model.events import BooksCorrected, Ejected, EjectionReason, Event, Returned
from epp.model.fleet import Fleet

_log = structlog.get_logger(__name__)

EJECTIONS: Final = Family(
    name="warmpick_endpoint_ejections_total",
    help="Endpoints that were left out for a while, by reason.",
    kind="counter",
    labels=("reason",),
)
EJECTED: Final = Family(
    name="warmpick_ejected_endpoints",
    help="Endpoints that are left out because they failed or stalled.",
    kind="gauge",
)
CORRECTED: Final = Family(
    name="warmpick_corrected_requests_total",
    help="Requests that were taken out of the books because their endpoint kept reporting that"
    " it had none: they had not been released when they ended, which is a bug.",
    kind="counter",
)


class FleetNews:
    """Counts and logs the ejections and corrections of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._counts = dict.fromkeys(EjectionReason, 0)
        self._corrected = 0
        fleet.subscribe((Ejected, Returned, BooksCorrected), self._on_event, "observer/fleet")

    @property
    def observer(self) -> Observer:
        """What yields the families."""
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
        elif isinstance(event, BooksCorrected):
            self._corrected += len(event.requests)
            _log.error("books.corrected", endpoint=event.endpoint_id, requests=len(event.requests))

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families."""
        counts = [((reason.value,), times) for reason, times in self._counts.items()]
        yield from expose(EJECTIONS, counts)
        ejected = sum(pod.outlier.ejected is not None for pod in self._fleet.pods.values())
        yield from expose(EJECTED, [((), ejected)])
        yield from expose(CORRECTED, [((), self._corrected)])
