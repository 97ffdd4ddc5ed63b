"""Listeners to the events of a fleet, isolated from each other's errors."""

from collections.abc import Callable, Iterable
from typing import Final

from epp.errors import FAULTS
from epp.model.events import Event

Listener = Callable[[Event, float, bool], None]
"""Called with an event, the time at which it took effect, and whether the fleet guessed it."""

OnFault = Callable[[str, BaseException], None]
"""Called with the name of what raised an error that must not stop others, and the error."""


def reraise(_source: str, error: BaseException) -> None:
    """Contain nothing: raise the error (`OnFault`)."""
    raise error


class Listeners:
    """The listeners to each kind of event, in the order in which they were added."""

    def __init__(self) -> None:
        self._by_kind: Final[dict[type[Event], tuple[tuple[Listener, str, OnFault], ...]]] = {}

    def add(
        self, kinds: Iterable[type[Event]], listener: Listener, name: str, on_fault: OnFault
    ) -> None:
        """Add a listener; its errors are passed to `on_fault` with its name."""
        for kind in kinds:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), (listener, name, on_fault))

    def remove(self, name: str) -> None:
        """Remove the listeners of a name."""
        for kind, listeners in self._by_kind.items():
            self._by_kind[kind] = tuple([each for each in listeners if each[1] != name])

    def notify(self, event: Event, now: float, *, guessed: bool) -> None:
        """Call the listeners to an event that took effect."""
        for listener, name, on_fault in self._by_kind.get(type(event), ()):
            try:
                listener(event, now, guessed)
            except FAULTS as error:  # whatever it is, the others are called
                on_fault(name, error)
