"""A profile: filters in order, weighted scorers, one picker."""

from collections.abc import Sequence

import msgspec

from epp.errors import NoEndpoints
from epp.model.candidate import Candidate
from epp.model.request import Decision, InferenceRequest, Score
from epp.policy.plugins import Draw, Filter, Picker, Scorer


class WeightedScorer(msgspec.Struct, frozen=True):
    """A scorer under its name in the configuration."""

    name: str
    weight: float
    scorer: Scorer


class Profile(msgspec.Struct, frozen=True):
    """How one candidate is chosen among many; `name` is the configuration's."""

    name: str
    filters: tuple[Filter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker

    def run(
        self, request: InferenceRequest, candidates: Sequence[Candidate], draw: Draw
    ) -> Decision:
        """Decide. Raises `NoEndpoints` where the filters leave nothing."""
        for each in self.filters:
            candidates = each.filter(request, candidates)
            if not candidates:
                name = type(each).__name__
                raise NoEndpoints(f"filter {name} left no endpoint", reason="filtered-out")
        scores = [
            Score(each.name, each.weight, each.scorer.score(request, candidates))
            for each in self.scorers
        ]
        totals = _totals(scores, len(candidates))
        picked = [candidates[position] for position in self.picker.pick(candidates, totals, draw)]
        first = picked[0]
        return Decision(
            endpoints=tuple(each.endpoint for each in picked),
            profile=self.name,
            prompt_tokens=first.prompt_tokens,
            predicted_cached_tokens=first.cached_tokens,
            predicted_ttft=first.owed_seconds + first.prefill_seconds + first.decode_seconds,
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
