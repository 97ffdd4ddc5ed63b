"""The scorer of predicted latencies: llm-d-router's `latency-scorer`, with its formulas."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import (
    LatencyPrediction,
    LatencyPredictionInfo,
    PrefixMatchInfo,
    find_producer,
)
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.plugins import Candidates, PluginContext

_EPSILON = 1e-9
"""Milliseconds within which headrooms count as equal."""

_WEIGHT = at_least(0, "a weight, such as 0.8")
_Known = tuple[int, LatencyPrediction]
"""A candidate's position and predictions."""


class LatencyScorer(BoundedParameters, frozen=True):
    """Prefers endpoints that are predicted to keep a request's objectives.

    Without any prediction it weighs room in the KV cache, the queue and the prefix. An empty
    `headroom_selection_strategy` stands for the default.
    """

    ttft_weight: Annotated[float, _WEIGHT] = 0.8
    tpot_weight: Annotated[float, _WEIGHT] = 0.2
    headroom_selection_strategy: Literal["least", "most", ""] = "least"
    composite_kv_weight: float = msgspec.field(default=1.0, name="compositeKVWeight")
    composite_queue_weight: float = 1.0
    composite_prefix_weight: float = 1.0
    latency_prediction_info_producer_name: str = ""
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByLatency":
        """Return the started plug-in."""
        return _ByLatency(
            self,
            find_producer(
                context, self.latency_prediction_info_producer_name, LatencyPredictionInfo
            ),
            find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo),
        )


class PredictedLatencyScorer(LatencyScorer, frozen=True):
    """The same as GIE had it, up to 1.5, with the older names of the weights."""

    ttft_weight: Annotated[float, _WEIGHT] = msgspec.field(default=0.8, name="headroomTTFTWeight")
    tpot_weight: Annotated[float, _WEIGHT] = msgspec.field(default=0.2, name="headroomTPOTWeight")


class _ByLatency(msgspec.Struct, frozen=True):
    parameters: LatencyScorer
    predictor: LatencyPredictionInfo
    prefixes: PrefixMatchInfo

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Score the best group of endpoints by their headrooms; 0 for all others."""
        predictions = self.predictor.latencies(request, candidates)
        if not any(predictions):
            return self._composite(request, candidates)
        known = [(at, each or _UNKNOWN) for at, each in enumerate(predictions)]
        in_time = [each for each in known if not _is_late(each[1])]
        group = in_time or _least_late(known)
        most = bool(in_time) and self.parameters.headroom_selection_strategy == "most"
        scores = [0.0] * len(candidates)
        for (at, _), score in zip(group, self._headrooms(group, most=most), strict=True):
            scores[at] = score
        return scores

    def _headrooms(self, group: Sequence[_Known], *, most: bool) -> list[float]:
        """Return ((int of 100 * c) + 1) / 100, at most 1, of the weighted distance c to the SLOs.

        `most` prefers large distances, else 1 - c counts. A dimension in which all are equal has
        no weight; if all are in both, c is 0.5.
        """
        ttft, tpot = self.parameters.ttft_weight, self.parameters.tpot_weight
        total = ttft + tpot
        alpha, beta = (ttft / total, tpot / total) if total > 0 else (1.0, 0.0)
        by_ttft = _normalized([abs(each.ttft_headroom) for _, each in group])
        by_tpot = _normalized([abs(each.tpot_headroom) for _, each in group])
        if by_ttft is None or by_tpot is None:
            combined = by_ttft or by_tpot or [0.5] * len(group)
        else:
            pairs = zip(by_ttft, by_tpot, strict=True)
            combined = [alpha * first + beta * second for first, second in pairs]
        shares = combined if most else [1 - each for each in combined]
        return [min(1.0, (int(each * 100) + 1) / 100) for each in shares]

    def _composite(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return kv * (1 - usage) + queue * (longest - own) / longest + prefix * match, in 1/100.

        The weights are made to add up to 1; if they are 0 or less, usage alone counts.
        """
        kv, queue = self.parameters.composite_kv_weight, self.parameters.composite_queue_weight
        prefix = self.parameters.composite_prefix_weight
        total = kv + queue + prefix
        if total <= 0:
            kv, queue, prefix, total = 1.0, 0.0, 0.0, 1.0
        longest = max((each.waiting for each in candidates), default=0.0)
        scores = []
        matches = self.prefixes.prefix_matches(request, candidates)
        for each, match in zip(candidates, matches, strict=True):
            room = (longest - each.waiting) / longest if longest > 0 else 1.0
            score = (kv * (1 - each.kv_usage) + queue * room + prefix * match.ratio) / total
            scores.append(min(1.0, max(0.0, int(score * 100 + 0.5) / 100)))
        return scores


_UNKNOWN = LatencyPrediction(0.0, 0.0, 0.0, 0.0)
"""An endpoint without a prediction, among others that have one, counts as just in time."""


def _is_late(prediction: LatencyPrediction) -> bool:
    return min(prediction.ttft_headroom, prediction.tpot_headroom) < 0


def _least_late(late: Sequence[_Known]) -> Sequence[_Known]:
    """Return the idle endpoints, else those that miss the TPOT alone, the TTFT alone, or both."""
    groups: list[list[_Known]] = [[], [], [], []]
    for each in late:
        prediction = each[1]
        if not prediction.dispatched:
            groups[0].append(each)
        ttft_late, tpot_late = prediction.ttft_headroom < 0, prediction.tpot_headroom < 0
        groups[3 if ttft_late and tpot_late else 2 if ttft_late else 1].append(each)
    return next(group for group in groups if group)


def _normalized(values: Sequence[float]) -> list[float] | None:
    """Return the places of values between the lowest and the highest, in 0..1; None: all equal."""
    low, span = min(values), max(values) - min(values)
    return [(value - low) / span for value in values] if span > _EPSILON else None
