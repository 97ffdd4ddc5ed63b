"""How a profile chooses among candidates, and what most pickers do of it."""

from collections.abc import Sequence
from operator import index
from typing import Final, SupportsIndex

from epp.errors import NoEndpoints
from epp.model.candidate import Candidate
from epp.model.candidates import Candidates
from epp.model.request import Decision, InferenceRequest, Score
from epp.policy.plugins import PickContext
from epp.policy.profile import Profile

_MOST_PENALTY: Final = 8.0


def choose(
    profile: Profile, request: InferenceRequest, candidates: Sequence[Candidate], draw: PickContext
) -> Decision:
    """Decide. Raises `NoEndpoints` where the filters leave nothing.

    Plug-ins may give numbers of other makes, such as NumPy's, and arrays of them.
    """
    for each in profile.filters:
        candidates = each.filter(request, candidates)
        if not candidates:
            name = type(each).__name__
            raise NoEndpoints(f"filter {name} left no endpoint", reason="filtered-out")
    scores = [
        Score(each.name, each.weight, each.scorer.score(request, candidates))
        for each in profile.scorers
    ]
    totals = _totals(scores, len(candidates))
    positions: Sequence[SupportsIndex] = profile.picker.pick(candidates, totals, draw)
    picked = [candidates[index(position)] for position in positions]
    first = picked[0]
    return Decision(
        endpoints=tuple([each.endpoint for each in picked]),
        profile=profile.name,
        prompt_tokens=first.prompt_tokens,
        predicted_cached_tokens=first.cached_tokens,
        predicted_ttft=first.queued_prefill_seconds + first.prefill_seconds + first.decode_seconds,
        candidates=candidates,
        scores=scores,
        totals=totals,
    )


def _totals(scores: Sequence[Score], count: int) -> list[float]:
    """Add up weighted values, each clamped to 0..1 first."""
    totals = [0.0] * count
    for score in scores:
        weight = score.weight
        for position, value in enumerate(score.values):
            totals[position] += weight * min(1.0, max(0.0, value))
    return totals


def ttft_costs(candidates: Sequence[Candidate]) -> list[float]:
    """Seconds until this prompt's first token, recomputation at its price for the fleet.

    `owed + (1 + alpha) * prefill + decode`, alpha = min(8, 2b / (1 - b)) of the busy share b,
    which is the fleet's and so the same for all candidates.
    """
    if type(candidates) is Candidates:  # what is compiled knows no subclass of a `Sequence`
        return candidates.seconds(_price(candidates.busy_share))
    price = _price(candidates[0].busy_share)
    return [
        each.queued_prefill_seconds + price * each.prefill_seconds + each.decode_seconds
        for each in candidates
    ]


def _price(busy: float) -> float:
    """Return what a second of prefill counts for in a fleet that is so busy."""
    return 1 + (min(_MOST_PENALTY, 2 * busy / (1 - busy)) if busy < 1 else _MOST_PENALTY)


def best(costs: Sequence[float], count: int, draw: PickContext) -> Sequence[int]:
    """Return the positions of the `count` lowest costs, equal ones in random order."""
    if count == 1:
        lowest = min(costs)
        ties = [position for position, cost in enumerate(costs) if cost == lowest]
        return (ties[draw.below(len(ties))] if len(ties) > 1 else ties[0],)
    left = list(range(len(costs)))
    shuffled = [left.pop(draw.below(len(left))) for _ in costs]
    return sorted(shuffled, key=costs.__getitem__)[: max(1, count)]
