"""Observers of requests, such as a recording or a shadow, which do not influence them.

To add one (a span exporter, a feed to peers, a console), write a function that returns an
`Observer` and list it in `epp.app.core`. An error in one is counted under its name (`Faults`)
and affects neither requests nor other observers.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from epp.adapters.telemetry.series import FamilyText, counter, expose
from epp.app.jobs import error_fields
from epp.policy.scheduler import OnCommit, OnQuote
from epp.protocol.extproc.record import RequestRecord
from epp.system.logs import Log

OnEnd = Callable[[RequestRecord], None]
T = TypeVar("T")
_log = Log(__name__)

FAULTS: Final = counter(
    "warmpick_faults_total",
    "Errors in code that observes requests or learns from them, by its name; the requests"
    " themselves were served.",
    "source",
)


class Observer(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that one observer wants; None for each that it does not.

    All run on the event loop, and must not block it.
    """

    name: str
    quoted: OnQuote | None = None
    """Called with each quote."""
    committing: OnCommit | None = None
    """Called with each decision, before it takes effect."""
    ended: OnEnd | None = None
    """Called with the record of each exchange that is over."""
    start: Callable[[], None] | None = None
    """Called once, when the picker starts."""
    run: Callable[[], Awaitable[None]] | None = None
    """Runs as long as the picker."""
    collect: Callable[[], Iterator[FamilyText]] | None = None
    """Yields metric families."""
    stop: Callable[[], Awaitable[None]] | None = None
    """Awaited when the picker has stopped."""


class Observers:
    """The observers of one picker, in their order.

    `quoted` and `committing` are for its scheduler, `ended` for its director: the calls that are
    wanted, with the names of their observers.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.quoted = _wanted((each.name, each.quoted) for each in observers)
        self.committing = _wanted((each.name, each.committing) for each in observers)
        self.ended = _wanted((each.name, each.ended) for each in observers)

    def start(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Start all observers; return those that run as long as the picker, by name."""
        for each in self._observers:
            if each.start is not None:
                each.start()
        return [(each.name, each.run) for each in self._observers if each.run is not None]

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families of all observers."""
        for each in self._observers:
            if each.collect is not None:
                yield from each.collect()

    def stops(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """Yield awaitables for the end, by name."""
        for each in self._observers:
            if each.stop is not None:
                yield each.name, each.stop()


def _wanted(calls: Iterator[tuple[str, T | None]]) -> tuple[tuple[str, T], ...]:
    return tuple((f"observer/{name}", call) for name, call in calls if call is not None)


class Faults:
    """Counts errors in observers, listeners and plug-ins by their source; logs the first of each.

    They are bugs, of the picker or of a user's plug-in, and do not affect requests.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def __call__(self, source: str, error: BaseException) -> None:
        """Count an error (`OnFault`)."""
        times = self.counts[source] = self.counts.get(source, 0) + 1
        if times == 1:
            _log.error("fault", source=source, **error_fields(error))

    def collect(self) -> Iterator[FamilyText]:
        """Yield the family, once there was an error."""
        yield from expose(FAULTS, [((source,), times) for source, times in self.counts.items()])
