"""Scorers by load: waiting, running and sent requests, and the predicted first token.

All but `least-ttft-scorer` are llm-d-router's, under its names, with its formulas and parameters.
Load is the current one (`Candidate.waiting`), not the last report's.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated

import msgspec

from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import InFlightLoad, find_producer
from epp.policy.bounds import BoundedParameters, within
from epp.policy.choice import ttft_costs
from epp.policy.effects import without_effect
from epp.policy.plugins import Candidates, PluginContext, PluginParameters

_DEFAULT_WAITING = 128
_DEFAULT_TOKENS = 4_194_304


def lower_is_better(values: Sequence[float]) -> list[float]:
    """Return (highest - own) / (highest - lowest); 1 for all if they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return [1.0] * len(values)
    return normalized(values, high, low)


def normalized(values: Sequence[float], start: float, end: float) -> list[float]:
    """Return where values lie between two others, 0 at `start` and 1 at `end`, not bounded.

    All of them are finite; what lies between may be more than a float can hold.
    """
    span = end - start
    if isfinite(span):
        return [(value - start) / span for value in values]
    start, span = start / 2, end / 2 - start / 2
    return [(value / 2 - start) / span for value in values]


def least_is_best(costs: Sequence[float]) -> list[float]:
    """Return lowest / own of costs that are 0 or more; 1 for all if they are equal."""
    lowest = min(costs, default=0.0)
    return [1.0 if cost <= lowest else lowest / cost for cost in costs]


class LeastTtftScorer(PluginParameters, frozen=True):
    """Prefers the endpoint with the lowest cost of this prompt's first token (`ttft_costs`).

    The score is the lowest cost as a share of this one, not a place between the extremes (as
    `queue-scorer`'s), so it shows how much longer a client would wait: costs of 100 and 101 ms
    score 1 and 0.99 and leave the choice to other scorers, costs of 100 and 200 ms score 1 and 0.5.
    Alone, with `max-score-picker`, it picks the same as `least-ttft-picker`.
    """

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return lowest cost / own; 1 for all if they are equal."""
        return least_is_best(ttft_costs(candidates)) if candidates else []


class QueueScorer(PluginParameters, frozen=True):
    """Prefers the endpoint with the shortest waiting queue, relative to the others."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (longest - own) / (longest - shortest); 1 for all if they are equal."""
        return lower_is_better([each.waiting for each in candidates])


class RunningRequestsScorer(PluginParameters, frozen=True):
    """Prefers the endpoint that runs the fewest requests, relative to the others."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (most - own) / (most - fewest); 1 for all if they are equal."""
        return lower_is_better([each.running for each in candidates])


class KvCacheUtilizationScorer(PluginParameters, frozen=True):
    """Prefers the endpoint with the most room in its KV cache."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 - usage."""
        return [min(1.0, max(0.0, 1.0 - each.kv_usage)) for each in candidates]


class LoadAwareScorer(PluginParameters, frozen=True):
    """Prefers short waiting queues, regardless of those of the other endpoints.

    A `threshold` of 0 or less stands for the default.
    """

    threshold: int = _DEFAULT_WAITING

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 0.5 * (1 - min(waiting, threshold) / threshold)."""
        most = self.threshold if self.threshold > 0 else _DEFAULT_WAITING
        return [0.5 * (1 - min(each.waiting, most) / most) for each in candidates]


class ActiveRequestScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint with the fewest requests of this picker, relative to the fullest.

    An `idle_threshold` of less than 0 counts as 0.
    """

    idle_threshold: int = 0
    max_busy_score: Annotated[float, within(0, 1, "a score, such as 1")] = 1.0
    in_flight_load_producer_name: str = ""
    request_timeout: Annotated[str, without_effect("requests count until they end")] = ""

    def start(self, context: PluginContext) -> "_ByActiveRequests":
        """Return the started plug-in."""
        return _ByActiveRequests(
            self, find_producer(context, self.in_flight_load_producer_name, InFlightLoad)
        )


class _ByActiveRequests(msgspec.Struct, frozen=True):
    parameters: ActiveRequestScorer
    producer: InFlightLoad

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 for idle endpoints, else (most - own) / most * maxBusyScore."""
        active = [each.requests for each in self.producer.in_flight(request, candidates)]
        most, idle = max(active, default=0), max(0, self.parameters.idle_threshold)
        busiest = self.parameters.max_busy_score
        return [1.0 if each <= idle else (most - each) / most * busiest for each in active]


class TokenLoadScorer(PluginParameters, frozen=True):
    """Prefers the endpoint with the fewest tokens to prefill, including this request's.

    A `queue_threshold_tokens` of 0 or less stands for the default.
    """

    queue_threshold_tokens: int = _DEFAULT_TOKENS
    in_flight_load_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByTokens":
        """Return the started plug-in."""
        most = self.queue_threshold_tokens
        producer = find_producer(context, self.in_flight_load_producer_name, InFlightLoad)
        return _ByTokens(most if most > 0 else _DEFAULT_TOKENS, producer)


class _ByTokens(msgspec.Struct, frozen=True):
    most: int
    producer: InFlightLoad

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 - min(tokens, threshold) / threshold."""
        loads = self.producer.in_flight(request, candidates)
        return [
            1 - min(max(0, each.tokens + each.uncached), self.most) / self.most for each in loads
        ]
