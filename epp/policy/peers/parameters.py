"""Parameters of plug-ins with lower bounds in their annotations.

`block_number: Annotated[int, at_least(1, "blocks, such as 200000")] = 200_000` refuses 0 with
"`blockNumber` is below 1; write blocks, such as 200000".
"""

from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from epp.policy.plugins import PluginParameters


class Bound(msgspec.Struct, frozen=True):
    """The lower bound of a number, exclusive with `above`, and an example of a good value."""

    least: float
    write: str
    above: bool = False

    def check(self, name: str, value: float | None) -> None:
        """Raise `ValueError` for a number that is too small; None stands for no number."""
        if value is not None and not (value > self.least if self.above else value >= self.least):
            fault = "not above" if self.above else "below"
            raise ValueError(f"`{name}` is {fault} {self.least:g}; write {self.write}")


def at_least(least: float, write: str) -> Bound:
    """Annotate a parameter that is `least` or more."""
    return Bound(least, write)


def above_zero(write: str) -> Bound:
    """Annotate a parameter that is more than 0."""
    return Bound(0, write, above=True)


class BoundedParameters(PluginParameters, frozen=True):
    """The parameters of a plug-in. Raises `ValueError` for one below its bound."""

    def __post_init__(self) -> None:
        for field, name, bound in _bounds(type(self)):
            bound.check(name, getattr(self, field))


@cache
def _bounds(kind: type[Any]) -> list[tuple[str, str, Bound]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (field.name, field.encode_name, note)
        for field in msgspec.structs.fields(kind)
        for note in get_args(hints[field.name])
        if isinstance(note, Bound)
    ]
