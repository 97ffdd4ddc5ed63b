"""Bounds of parameters, as annotations.

`block_number: Annotated[int, at_least(1, "blocks, such as 200000")] = 200_000` refuses 0 with
"`blockNumber` is 0, below 1; write blocks, such as 200000".
"""

from functools import cache
from math import inf
from typing import Any, get_args

import msgspec

from epp.policy.plugins import PluginParameters


class Bound(msgspec.Struct, frozen=True):
    """Bounds of a parameter, and what to write instead; with `above`, `least` is out of bounds."""

    least: float
    write: str
    above: bool = False
    most: float = inf

    def check(self, name: str, value: float | None) -> None:
        """Raise `ValueError` for a number out of bounds; None stands for no number."""
        if value is None:
            return
        fault = ""
        if value > self.most:
            fault = f"above {self.most:g}"
        elif not (value > self.least if self.above else value >= self.least):
            fault = f"{'not above' if self.above else 'below'} {self.least:g}"
        if fault:
            raise ValueError(f"`{name}` is {value:.15g}, {fault}; write {self.write}")


def at_least(least: float, write: str) -> Bound:
    """Annotate a parameter that is `least` or more."""
    return Bound(least, write)


def above_zero(write: str) -> Bound:
    """Annotate a parameter that is more than 0."""
    return Bound(0, write, above=True)


def within(least: float, most: float, write: str) -> Bound:
    """Annotate a parameter that is `least` to `most`."""
    return Bound(least, write, most=most)


class BoundedParameters(PluginParameters, frozen=True):
    """The parameters of a plug-in. Raises `ValueError` for one that is out of its bounds."""

    def __post_init__(self) -> None:
        for field, name, bound in _bounds(type(self)):
            bound.check(name, getattr(self, field))


@cache
def _bounds(kind: type[Any]) -> list[tuple[str, str, Bound]]:
    hints: dict[str, Any] = {}  # `get_type_hints` is slow, and this runs at each start
    for base in reversed(kind.__mro__):
        hints |= getattr(base, "__annotations__", {})
    return [
        (field, name, note)
        for field, name in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        for note in get_args(hints[field])
        if isinstance(note, Bound)
    ]
