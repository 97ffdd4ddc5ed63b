"""The candidates of a decision in order, best first.

Reads only what later events do not change, so that a decision can be explained long after it was
made, and in another thread.
"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Literal

from epp.model.decision import Decision
from epp.policy.pickers import LeastTtftPicker
from epp.policy.plugins import uses_totals
from epp.policy.profile import Profile

Measure = Literal["cost", "score", "other"]
"""What a profile compares: costs in seconds, sums of scores, or something known to its picker."""


def measures(profiles: Mapping[str, Profile]) -> dict[str, Measure]:
    """Return what each profile compares, by name."""
    return {name: _measure(profile) for name, profile in profiles.items()}


def _measure(profile: Profile) -> Measure:
    if isinstance(profile.picker, LeastTtftPicker):
        return "cost"
    return "score" if profile.scorers and uses_totals(profile.picker) else "other"


def ranked(decision: Decision, measure: Measure, most: int, costs: Sequence[float]) -> list[int]:
    """Return the positions of the best candidates, the winner's first."""
    by: Sequence[float] = costs
    if measure == "score":
        by = [-total for total in decision.totals]
    winner = winner_position(decision)
    best = nsmallest(most, range(len(by)), key=by.__getitem__)
    return [winner, *(each for each in best if each != winner)][:most]


def winner_position(decision: Decision) -> int:
    """Return the position of the picked endpoint among the candidates."""
    picked = decision.endpoint.id
    return next(at for at, each in enumerate(decision.candidates) if each.endpoint.id == picked)


def weight_of(decision: Decision | None) -> int:
    """Return roughly how much memory a decision holds, in units of 100 bytes."""
    if decision is None:
        return 1
    blocks = 0 if decision.predicted_for is None else decision.predicted_for.total_blocks
    return 8 + len(decision.candidates) * (2 + len(decision.stages)) + (blocks >> 2)
