"""Explains a decision: its candidates side by side, with every term of their costs."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.policy.choice import cost_weights, ttft_costs
from epp.policy.explanations.ranking import Measure, ranked

_MILLI: Final = 1e3


class ExplainedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate of a decision. Times are in milliseconds, rounded for readers."""

    endpoint: EndpointId
    """Its id."""
    target: str
    """Its `ip:port`."""
    cached_tokens: int
    """Tokens of the prompt that its cache is predicted to serve."""
    trust: float
    """How well recent predictions for its cache held, from 0 to 1."""
    requests: int
    """Requests that the picker sent there and had not seen end."""
    predicted_ttft_ms: float
    """The predicted time to the first token there."""
    cost_ms: float
    """The weighted sum of the terms: what `least-ttft` compares."""
    terms_ms: dict[str, float]
    """The terms before they are weighted."""
    score: float | None = None
    """The weighted sum of its scores; None if the profile has no scorers."""
    scores: dict[str, float | None] = {}
    """The scores before they are weighted, by scorer; None for NaN and infinity."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of one profile."""

    profile: str
    """The profile's name."""
    measure: Measure
    """What its picker compares."""
    considered: int
    """Endpoints that there were before the filters."""
    passed: int
    """Those that passed them: the candidates."""
    prompt_tokens: int
    """The prompt's length, as estimated."""
    weights: dict[str, float]
    """What the terms of a cost are multiplied by; the others count once."""
    winner: EndpointId
    """Where it sends the request."""
    runner_up: EndpointId | None = None
    """The best of the others; None if there were none."""
    margin: float | None = None
    """By how much the winner was better: milliseconds of cost, or score.

    None without a runner-up, or if the picker compares something else. Negative if the picker did
    not take the best, as a random one may not.
    """
    candidates: tuple[ExplainedCandidate, ...]
    """The best ones, the winner first."""


def explain(decision: Decision, measure: Measure, most: int) -> Explanation:
    """Explain a decision that has candidates, by the best `most` (2 or more) of them."""
    candidates = decision.candidates
    costs = ttft_costs(decision.candidates)
    positions = ranked(decision, measure, most, costs)
    alpha, decoding, slot = cost_weights(decision.candidates)
    winner, *others = positions
    return Explanation(
        profile=decision.profile,
        measure=measure,
        considered=len(decision.considered),
        passed=len(decision.candidates),
        prompt_tokens=decision.prompt_tokens,
        weights={
            "class_prefill": round(alpha, 3),
            "generation": round(decoding, 4),
            "crowding": round(decoding, 4),
            "slot": slot,
        },
        winner=candidates[winner].endpoint.id,
        runner_up=candidates[others[0]].endpoint.id if others else None,
        margin=_margin(decision, measure, costs, positions) if others else None,
        candidates=tuple(_row(decision, costs, at) for at in positions),
    )


def _margin(
    decision: Decision, measure: Measure, costs: Sequence[float], positions: Sequence[int]
) -> float | None:
    winner, second = positions[:2]
    if measure == "cost":
        return round(_MILLI * (costs[second] - costs[winner]), 3)
    if measure == "score":
        return round(float(decision.totals[winner] - decision.totals[second]), 6)
    return None


def _row(decision: Decision, costs: Sequence[float], at: int) -> ExplainedCandidate:
    candidate = decision.candidates[at]
    endpoint, terms = candidate.endpoint, candidate.cost_seconds()
    return ExplainedCandidate(
        endpoint=endpoint.id,
        target=endpoint.target,
        cached_tokens=candidate.cached_tokens,
        trust=round(candidate.trust, 3),
        requests=candidate.requests,
        predicted_ttft_ms=round(_MILLI * candidate.predicted_ttft, 3),
        cost_ms=round(_MILLI * costs[at], 3),
        terms_ms={name: round(_MILLI * value, 3) for name, value in terms.items()},
        score=round(float(decision.totals[at]), 6) if decision.scores else None,
        scores={each.plugin: _score(each.values[at]) for each in decision.scores},
    )


def _score(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
