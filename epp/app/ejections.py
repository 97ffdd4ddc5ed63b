"""What operators see of endpoints that are left out: two metrics, and a log line each time."""

from collections.abc import Iterator
from typing import Final

import structlog

from epp.adapters.telemetry.series import Family, FamilyText, expose
from epp.model.events import Ejected, EjectionReason, Event, Returned
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


class Ejections:
    """Counts and logs the ejections of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._counts = dict.fromkeys(EjectionReason, 0)
        fleet.subscribe((Ejected, Returned), self._hear)

    def _hear(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
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

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families."""
        counts = [((reason.value,), times) for reason, times in self._counts.items()]
        yield from expose(EJECTIONS, counts)
        ejected = sum(pod.outlier.ejected is not None for pod in self._fleet.pods.values())
        yield from expose(EJECTED, [((), ejected)])
