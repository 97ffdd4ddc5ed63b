"""What a plug-in is: a frozen struct whose fields are its parameters, with one method.

Users add theirs as classes of these shapes under the entry point group `warmpick.plugins`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest


class PickContext(msgspec.Struct, frozen=True):
    """Chance and order, for those who need them.

    `below(n)` is a random number in 0..n-1; `turn` counts the decisions made before this one.
    """

    below: Callable[[int], int]
    turn: int


@runtime_checkable
class Filter(Protocol):
    """Drops candidates that must not be picked."""

    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return those that remain, in their order."""


@runtime_checkable
class Scorer(Protocol):
    """Says how good each candidate is."""

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> Sequence[float]:
        """Return one value in 0..1 a candidate, in their order; more is better."""


@runtime_checkable
class Picker(Protocol):
    """Chooses among scored candidates."""

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: PickContext
    ) -> Sequence[int]:
        """Return positions in the order of preference, at least one."""


Plugin = Filter | Scorer | Picker
