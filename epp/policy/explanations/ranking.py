"""The candidates of a decision in order, best first.

Reads what no later event changes, so that a decision can be looked at long after it was
made, and from another thread.
"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Final, Literal

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.policy.pickers import LeastTtftPicker
from epp.policy.profile import Profile

Measure = Literal["cost", "score", "other"]
"""What a profile compares: costs in seconds, sums of scores, or what its picker alone knows."""

TERMS: Final = (
    "queued_prefill",
    "prefill",
    "class_prefill",
    "decode",
    "generation",
    "crowding",
    "slot",
)
"""What `ttft_costs` adds up, named as in `Candidate`."""


def terms_of(candidate: Candidate) -> dict[str, float]:
    """Return what a pick costs at a candidate by its terms, in seconds."""
    return {name: getattr(candidate, f"{name}_seconds") for name in TERMS}


def measures(profiles: Mapping[str, Profile]) -> dict[str, Measure]:
    """Return what each profile compares, by name."""
    return {name: _measure(profile) for name, profile in profiles.items()}


def _measure(profile: Profile) -> Measure:
    if isinstance(profile.picker, LeastTtftPicker):
        return "cost"
    uses_totals = getattr(profile.picker, "uses_totals", True)
    return "score" if profile.scorers and uses_totals else "other"


def ranked(decision: Decision, measure: Measure, most: int, costs: Sequence[float]) -> list[int]:
    """Return the positions of the best candidates, the winner's first."""
    by: Sequence[float] = costs
    if measure == "score":
        by = [-total for total in decision.totals]
    winner = winner_position(decision)
    best = nsmallest(most, range(len(by)), key=by.__getitem__)
    return [winner, *(each for each in best if each != winner)][:most]


def winner_position(decision: Decision) -> int:
    """Return where the endpoint that was picked is among the candidates."""
    picked = decision.endpoint.id
    return next(at for at, each in enumerate(decision.candidates) if each.endpoint.id == picked)


def weight_of(decision: Decision | None) -> int:
    """Return what a decision holds in memory, in units of some 100 bytes, about."""
    if decision is None:
        return 1
    blocks = 0 if decision.predicted_for is None else decision.predicted_for.total_blocks
    return 8 + len(decision.candidates) * (2 + len(decision.stages)) + (blocks >> 2)
