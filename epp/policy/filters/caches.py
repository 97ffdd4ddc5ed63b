"""Filters by cached prefixes, and by predicted latencies against objectives."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Annotated, Literal

import msgspec

from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import (
    InFlightLoad,
    LatencyPredictionInfo,
    PrefixMatchInfo,
    find_producer,
)
from epp.policy.bounds import BoundedParameters, at_least, within
from epp.policy.plugins import Candidates, PluginContext, uniform

_Costs = Callable[[InferenceRequest, Candidates], Sequence[float]]


class PrefixCacheAffinityFilter(BoundedParameters, frozen=True):
    """Keeps the endpoints that have the prompt cached, until they are too busy.

    A penalty of 0 takes its condition away.
    """

    affinity_threshold: Annotated[float, within(-inf, 1, "a share, such as 0.8")] = 0.8
    """The share of the prompt that counts as cached; at 0 or less nothing is dropped."""
    exploration_probability: Annotated[float, within(0, 1, "a chance, such as 0.01")] = 0.0
    """The chance that nothing is dropped."""
    max_ttft_penalty_ms: Annotated[float, at_least(0, "milliseconds, such as 18000")] = (
        msgspec.field(default=18_000.0, name="maxTTFTPenaltyMs")
    )
    """They are too busy if the soonest of them is this much later than the soonest other."""
    max_tokens_in_flight_penalty: Annotated[int, at_least(0, "tokens, or 0 for none")] = 0
    """They are too busy if the least of their tokens in flight is this much more."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    """With `prefillThroughput` a TTFT is tokens in flight over `peak_prefill_throughput`."""
    peak_prefill_throughput: Annotated[float, at_least(0, "a rate, such as 15928")] = 15_928.0
    """Tokens per second."""
    prefix_match_info_producer_name: str = ""
    """The producer of prefix matches; empty: the default."""
    latency_prediction_info_producer_name: str = ""
    """The producer of predictions; empty: the default."""
    in_flight_load_producer_name: str = ""
    """The producer of loads in flight; empty: the default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        by_tokens = self.ttft_source == "prefillThroughput" and self.max_ttft_penalty_ms > 0
        if by_tokens and not self.peak_prefill_throughput:
            raise ValueError(
                "`peakPrefillThroughput` must be above 0 if TTFTs are computed from it"
            )

    def start(self, context: PluginContext) -> "UntilSaturated":
        """Return the started plug-in."""
        prefixes = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        gates = [(self._times(context), self.max_ttft_penalty_ms)]
        if self.max_tokens_in_flight_penalty:
            load = find_producer(context, self.in_flight_load_producer_name, InFlightLoad)
            gates.append((_of_tokens(load, 1, 1), self.max_tokens_in_flight_penalty))
        used = tuple(gate for gate in gates if gate[1])
        return UntilSaturated(self, prefixes, used, context.below)

    def _times(self, context: PluginContext) -> _Costs:
        if self.ttft_source == "latencyPredictor":
            predictor = find_producer(
                context, self.latency_prediction_info_producer_name, LatencyPredictionInfo
            )
            return _predicted(predictor)
        load = find_producer(context, self.in_flight_load_producer_name, InFlightLoad)
        return _of_tokens(load, self.peak_prefill_throughput, 1000)


def _predicted(predictor: LatencyPredictionInfo) -> _Costs:
    def times(request: InferenceRequest, candidates: Candidates) -> list[float]:
        found = predictor.latencies(request, candidates)
        return [inf if each is None else each.ttft for each in found]

    return times


def _of_tokens(load: InFlightLoad, throughput: float, unit: float) -> _Costs:
    def costs(request: InferenceRequest, candidates: Candidates) -> list[float]:
        loads = load.in_flight(request, candidates)
        return [each.tokens / throughput * unit for each in loads]

    return costs


class UntilSaturated(msgspec.Struct, frozen=True, eq=False):
    """The filter, started; counts how it ended, in llm-d-router's words."""

    parameters: PrefixCacheAffinityFilter
    prefixes: PrefixMatchInfo
    gates: tuple[tuple[_Costs, float], ...]
    below: Callable[[int], int]
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those that have the prompt cached; all if none has, or they are too busy."""
        outcome, kept = self._decide(request, candidates)
        self.outcomes[outcome] += 1
        return kept

    def _decide(self, request: InferenceRequest, candidates: Candidates) -> tuple[str, Candidates]:
        threshold = self.parameters.affinity_threshold
        explored = self.parameters.exploration_probability
        if len(candidates) <= 1 or threshold <= 0:
            return "not_applicable", candidates
        if explored and uniform(self.below) < explored:
            return "exploration", candidates
        matches = self.prefixes.prefix_matches(request, candidates)
        sticky = [each.ratio >= threshold for each in matches]
        if not any(sticky):
            return "no_match", candidates
        if all(sticky):
            return "sticky", candidates
        if any(_later(costs(request, candidates), sticky, most) for costs, most in self.gates):
            return "load_override", candidates
        return "sticky", [each for each, held in zip(candidates, sticky, strict=True) if held]


def _later(costs: Sequence[float], sticky: Sequence[bool], most: float) -> bool:
    """Return whether the least value of the sticky ones exceeds that of the others by `most`."""
    least = {True: inf, False: inf}
    for held, cost in zip(sticky, costs, strict=True):
        least[held] = min(least[held], cost)
    return least[True] - least[False] > most  # inf - inf is not a number, so not more


class SloHeadroomTierFilter(BoundedParameters, frozen=True):
    """Keeps the endpoints that are predicted to meet the request's objectives.

    With probability `epsilon_explore_neg` it keeps the others instead.
    """

    epsilon_explore_neg: Annotated[float, within(0, 1, "a chance, such as 0.01")] = 0.01
    latency_prediction_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByHeadroom":
        """Return the started plug-in."""
        name = self.latency_prediction_info_producer_name
        predictor = find_producer(context, name, LatencyPredictionInfo)
        return _ByHeadroom(self.epsilon_explore_neg, predictor, context.below)


class _ByHeadroom(msgspec.Struct, frozen=True):
    explored: float
    predictor: LatencyPredictionInfo
    below: Callable[[int], int]

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return one tier: both headrooms 0 or more, or not, or unknown; all if none is known."""
        if len(candidates) <= 1:
            return candidates
        predictions = self.predictor.latencies(request, candidates)
        kept = [
            each is not None and each.ttft_headroom >= 0 and each.tpot_headroom >= 0
            for each in predictions
        ]
        if not any(kept) or all(kept):  # one tier, or no predictions
            return candidates
        wanted = not (self.explored and uniform(self.below) < self.explored)
        return [each for each, met in zip(candidates, kept, strict=True) if met is wanted]
