"""Errors that do not affect requests: counted, and the first of each source is logged.

They are bugs, of the picker or of a user's plug-in. What raised them is what learns from requests,
or is only notified of them, so that the requests go on.
"""

from collections.abc import Iterator
from typing import Final

import structlog

from epp.adapters.telemetry.series import Family, FamilyText, expose
from epp.app.jobs import error_fields

_log = structlog.get_logger(__name__)

FAULTS: Final = Family(
    name="warmpick_faults_total",
    help="Errors in what observes requests or learns from them, by what raised them; the"
    " requests themselves were served.",
    kind="counter",
    labels=("source",),
)


class Faults:
    """Counts errors by their source, and logs the first of each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def __call__(self, source: str, error: BaseException) -> None:
        """Take in an error (`OnFault`)."""
        times = self.counts[source] = self.counts.get(source, 0) + 1
        if times == 1:
            _log.error("fault", source=source, **error_fields(error))

    def collect(self) -> Iterator[FamilyText]:
        """Yield the family, once there was an error."""
        yield from expose(FAULTS, [((source,), times) for source, times in self.counts.items()])
