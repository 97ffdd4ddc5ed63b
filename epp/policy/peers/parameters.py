"""What the plug-ins here have in common: bounds of parameters, and choices written as scores.

`block_number: Annotated[int, at_least(1, "blocks, such as 200000")] = 200_000` refuses 0 with
"`blockNumber` is below 1; write blocks, such as 200000".
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from functools import cache
from math import inf
from typing import Any, get_args, get_type_hints

import msgspec

from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.plugins import PluginParameters


class Bound(msgspec.Struct, frozen=True):
    """Bounds of a number, the lower one exclusive with `above`, and an example of a good value."""

    least: float
    write: str
    above: bool = False
    most: float = inf

    def check(self, name: str, value: float | None) -> None:
        """Raise `ValueError` for a number out of bounds; None stands for no number."""
        if value is None:
            return
        if self.most < inf and not self.least <= value <= self.most:
            raise ValueError(f"`{name}` is not {self.least:g} to {self.most:g}; write {self.write}")
        if not (value > self.least if self.above else value >= self.least):
            fault = "not above" if self.above else "below"
            raise ValueError(f"`{name}` is {fault} {self.least:g}; write {self.write}")


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
    hints = get_type_hints(kind, include_extras=True)
    return [
        (field.name, field.encode_name, note)
        for field in msgspec.structs.fields(kind)
        for note in get_args(hints[field.name])
        if isinstance(note, Bound)
    ]


class Chooser(ABC):
    """A started scorer that chooses: its choice scores 1, others 0; of several, chance decides."""

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 for the candidates to choose from, 0 for others."""
        if not candidates:
            return []
        chosen = self._choose(request, candidates)
        return [1.0 if each.endpoint.id in chosen else 0.0 for each in candidates]

    @abstractmethod
    def _choose(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Container[EndpointId]:
        """Return the endpoints to choose from, of one candidate at least."""
