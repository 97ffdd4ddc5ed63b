"""Observers of requests, which have no say in them: a recording, a shadow, and what is to come.

To add one (a span exporter, a feed to peers, a console) is to write a function that returns an
`Observer`, and to list it in `epp.app.picker`. Each is apart: what one raises is counted under its
name (`epp.app.faults`) and hurts neither requests nor other observers.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from epp.adapters.telemetry.series import FamilyText
from epp.policy.scheduler import OnCommit, OnQuote
from epp.protocol.extproc.record import RequestRecord

OnEnd = Callable[[RequestRecord], None]
T = TypeVar("T")


class Observer(msgspec.Struct, frozen=True, kw_only=True):
    """One observer; None if it does not want to be called.

    They are called on the event loop, and wait for nothing.
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

    `quoted` and `committing` are for its scheduler, `ended` for its director: those that want to
    be called, with the names of their observers.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.quoted = _wanted((each.name, each.quoted) for each in observers)
        self.committing = _wanted((each.name, each.committing) for each in observers)
        self.ended = _wanted((each.name, each.ended) for each in observers)

    def jobs(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Start all; yield what is to run as long as the picker, by name."""
        for each in self._observers:
            if each.start is not None:
                each.start()
        for each in self._observers:
            if each.run is not None:
                yield each.name, each.run

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families of all."""
        for each in self._observers:
            if each.collect is not None:
                yield from each.collect()

    def stops(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """Yield what is to be awaited at the end, by name."""
        for each in self._observers:
            if each.stop is not None:
                yield each.name, each.stop()


def _wanted(calls: Iterator[tuple[str, T | None]]) -> tuple[tuple[str, T], ...]:
    return tuple((f"observer/{name}", call) for name, call in calls if call is not None)
