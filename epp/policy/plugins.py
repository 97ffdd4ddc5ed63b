"""The three kinds of plug-in of a profile: filters, scorers, pickers.

A plug-in is a frozen `msgspec.Struct` with one method; its fields are its parameters. Users add
theirs as classes of these shapes under the entry point group `warmpick.plugins`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest


class PickContext(msgspec.Struct, frozen=True):
    """Randomness and order, for pickers that need them.

    `below(n)` returns a random number in 0..n-1; `turn` counts the decisions before this one.
    """

    below: Callable[[int], int]
    turn: int


@runtime_checkable
class Filter(Protocol):
    """Drops candidates that must not be picked."""

    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return those that remain, in their order; where none does the client gets status 503."""


@runtime_checkable
class Scorer(Protocol):
    """Rates candidates."""

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> Sequence[float]:
        """Return one value in 0..1 for each candidate, in their order; more is better."""


@runtime_checkable
class Picker(Protocol):
    """Chooses among candidates.

    A picker that compares no totals has `uses_totals: ClassVar[bool] = False`. A profile that
    gives it scorers is refused, for their scores would have no effect.
    """

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return positions in `candidates` in the order of preference, at least one."""


Plugin = Filter | Scorer | Picker


def uses_totals(picker: Picker) -> bool:
    """Return whether a picker compares totals; true by default."""
    return getattr(picker, "uses_totals", True)
