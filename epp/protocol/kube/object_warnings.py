"""Warnings about Kubernetes objects that are not as they should be, each logged once."""

from collections.abc import Mapping

import msgspec


class ObjectWarning(msgspec.Struct, frozen=True):
    """A warning to log: `event` names it; `fields` name the object and the consequence."""

    event: str
    fields: Mapping[str, str]


class ObjectWarnings:
    """Warnings that wait to be logged; an object is warned of once per cause."""

    def __init__(self) -> None:
        self._waiting: list[ObjectWarning] = []
        self._causes: dict[str, tuple[str, str]] = {}

    def add(self, name: str, cause: str, event: str, **fields: str) -> None:
        """Warn of the object `name`, unless its last warning had the same event and cause."""
        if self._causes.get(name) != (event, cause):
            self._causes[name] = event, cause
            self._waiting.append(ObjectWarning(event, {"object": name, **fields}))

    def clear(self, name: str) -> None:
        """Record that an object is valid, or deleted: its next warning is logged."""
        self._causes.pop(name, None)

    def drain(self) -> list[ObjectWarning]:
        """Return and remove the warnings added since the last call."""
        drained, self._waiting = self._waiting, []
        return drained
