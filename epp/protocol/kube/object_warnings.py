"""What an operator should hear of objects that are not as they should be, said once each."""

from collections.abc import Mapping

import msgspec


class ObjectWarning(msgspec.Struct, frozen=True):
    """Something to log as a warning: `event` names it, `fields` say of what and what follows."""

    event: str
    fields: Mapping[str, str]


class ObjectWarnings:
    """Notes that wait to be taken. One is made once for as long as its cause stays the same."""

    def __init__(self) -> None:
        self._waiting: list[ObjectWarning] = []
        self._causes: dict[str, tuple[str, str]] = {}

    def add(self, of: str, cause: str, event: str, **fields: str) -> None:
        """Note what is wrong with an object, named by `of`, unless that was said before."""
        if self._causes.get(of) != (event, cause):
            self._causes[of] = event, cause
            self._waiting.append(ObjectWarning(event, {"object": of, **fields}))

    def settle(self, of: str) -> None:
        """Forget an object: it is as it should be, or gone."""
        self._causes.pop(of, None)

    def take(self) -> list[ObjectWarning]:
        """Hand over what was noted since the last time."""
        taken, self._waiting = self._waiting, []
        return taken
