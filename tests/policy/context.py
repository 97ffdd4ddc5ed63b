"""What a plug-in is started with, for tests that start one by hand."""

from collections.abc import Callable, Iterable
from typing import Any

from epp.model.events import Event
from epp.model.fleet import Fleet
from epp.model.listeners import Listener


class Context:
    """Draws `share` of what it is asked for; knows one other plug-in; subscribes to a fleet."""

    first_of_its_type = True

    def __init__(self, share: float = 0.0, other: Any = None, fleet: Fleet | None = None) -> None:
        self.share, self.other, self.fleet = share, other, fleet

    @property
    def below(self) -> Callable[[int], int]:
        return lambda n: int(self.share * n)

    def first_of(self, kind: str) -> str:
        return kind

    def plugin(self, name: str, kind: Any, default: Any = None) -> Any:
        return self.other or default

    def subscribe(self, kinds: Iterable[type[Event]], listener: Listener) -> None:
        assert self.fleet is not None
        self.fleet.subscribe(kinds, listener)
