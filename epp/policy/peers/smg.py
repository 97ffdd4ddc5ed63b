"""SMG, the continuation of SGLang's router: affinity that spills, a ring of prefixes, loads, pairs.

Source: smg 1.13.0 (`model_gateway/src/policies`, the help of `smg launch`), of lightseekorg/smg.
"""

from collections.abc import Sequence
from math import ceil, inf, sqrt
from typing import Annotated, ClassVar, Literal

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest
from epp.policy.bounds import BoundedParameters, above_zero, at_least
from epp.policy.peers.chooser import Choice, Chooser, loads_of
from epp.policy.peers.hash_ring import HashRing, prefix_key
from epp.policy.peers.sglang import CacheAware, CacheAwareSettings
from epp.policy.plugins import Candidates, PickContext, PluginContext

_RING_POINTS = 150
"""`worker/hash_ring.rs` VIRTUAL_NODES_PER_WORKER."""
_MIN_MARGIN = 4
_FULLEST = 0.999


class SmgCacheAwareScorer(CacheAwareSettings, frozen=True):
    """Prefers an endpoint that the prompt's longest known prefix was sent to, till it spills.

    1. If a match in the tree of prompts that were sent before counts (`PrefixTree`), the least
       loaded endpoint of those that have it is chosen.
    2. Unless that has more than `spill_rel_threshold` times the mean of requests in flight, and
       more than `margin` above it: then, as without a match, the least loaded of all. `margin` is
       `spill_abs_threshold`, at most two standard deviations of a count with that mean, rounded
       up, which count as 4 or more.

    Chance decides between equally loaded ones. Loads are this picker's own requests in flight.
    `max_tree_size` is for the prompts of all endpoints together; here each has its share of it.
    SMG's share of misses for workers that warm up is left out.
    """

    spill_abs_threshold: Annotated[int, at_least(0, "a number of requests")] = 64
    spill_rel_threshold: Annotated[float, at_least(1, "a multiple, such as 1.5")] = 1.5

    def start(self, context: PluginContext) -> "_Spilling":
        """Return the started plug-in."""
        return _Spilling(self, context)


class _Spilling(CacheAware):
    def __init__(self, settings: SmgCacheAwareScorer, context: PluginContext) -> None:
        super().__init__(settings, context, shared=True)
        self._settings = settings

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = loads_of(candidates)
        match = self._match(candidates)
        known = () if match is None else match.endpoints
        there = [each for each in loads if each in known]
        least = min((loads[each] for each in there), default=inf)
        if self._spills(least, sum(loads.values()) / len(loads)):
            there, least = list(loads), min(loads.values())
        return [each for each in there if loads[each] == least]

    def _spills(self, load: float, mean: float) -> bool:
        settings = self._settings
        margin = min(settings.spill_abs_threshold, max(_MIN_MARGIN, ceil(2 * sqrt(mean))))
        return load > settings.spill_rel_threshold * mean and load > mean + margin


class SmgPrefixHashScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint that the beginning of the prompt hashes to, unless it is loaded.

    The key is the hash of the last block that ends within the first `prefix_token_count` tokens, or
    four times as many bytes of text. Shorter prompts count whole. An endpoint is loaded if its
    requests in flight are more than `load_factor` times the mean, (all + 1) / endpoints, and more
    than `balance_abs_threshold` above it. Instead of a loaded one the least loaded of the others is
    chosen, the first of equals.
    """

    prefix_token_count: Annotated[int, at_least(1, "tokens, such as 256")] = 256
    load_factor: Annotated[float, at_least(1, "a multiple, such as 1.25")] = 1.25
    balance_abs_threshold: Annotated[int, at_least(0, "a number of requests")] = 10

    def start(self, context: PluginContext) -> "_OnPrefixRing":
        """Return the started plug-in."""
        return _OnPrefixRing(self, context)


class _OnPrefixRing(Chooser):
    def __init__(self, settings: SmgPrefixHashScorer, context: PluginContext) -> None:
        self._settings = settings
        self._ring = HashRing(context.subscribe, _RING_POINTS)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = loads_of(candidates)
        self._ring.add(loads)
        key = prefix_key(candidates[0].chains, self._settings.prefix_token_count)
        own = self._ring.owner(key, loads)
        settings, mean = self._settings, (sum(loads.values()) + 1) / len(loads)
        most = max(settings.load_factor * mean, mean + settings.balance_abs_threshold)
        return (own if loads[own] <= most else min(loads, key=loads.__getitem__),)


class _Wait(BoundedParameters, frozen=True):
    """How long a request would wait at an endpoint, in seconds.

    `tokens / throughput + kv_pressure_weight * k / (1 - k)`: `tokens` are the uncached ones of
    prompts that were sent there and whose first token was not seen, `throughput` is in tokens a
    second, `k` is the used share of the KV cache, at most 0.999. For an endpoint without a reported
    load it is requests in flight * `mean_prefill_tokens` / throughput.

    SMG adds up the waiting requests that the engine reports and those sent since; if the engine
    reports its generation rate, SMG uses that as the throughput.
    """

    kv_pressure_weight: Annotated[float, at_least(0, "seconds, such as 0.15")] = 0.15
    default_throughput: Annotated[float, above_zero("tokens a second, as 2000")] = 2000.0
    mean_prefill_tokens: Annotated[int, at_least(1, "tokens, such as 1024")] = 1024

    def seconds(self, candidate: Candidate) -> float:
        """Return the wait at an endpoint."""
        if not is_reported(candidate):
            return candidate.requests * self.mean_prefill_tokens / self.default_throughput
        used = min(max(0.0, candidate.kv_usage), _FULLEST)
        tokens = candidate.in_flight_tokens
        return tokens / self.default_throughput + self.kv_pressure_weight * used / (1 - used)


def is_reported(candidate: Candidate) -> bool:
    """Return whether an endpoint has ever reported its load."""
    return candidate.load.at > -inf


class SmgLeastLoadScorer(_Wait, frozen=True):
    """Prefers the endpoint with the shortest wait: 1 / (1 + own - shortest), in seconds.

    Endpoints where `max_waiting_requests` or more wait score 0, as long as there are others; 0
    stands for no such limit. While no endpoint has reported its load, requests in flight count.
    """

    max_waiting_requests: Annotated[int, at_least(0, "requests, or 0 for no limit")] = 0

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return one score for each candidate."""
        if any(map(is_reported, candidates)):
            waits = [self.seconds(each) for each in candidates]
        else:
            waits = [float(each.requests) for each in candidates]
        most = self.max_waiting_requests or inf
        free = [each.waiting < most for each in candidates]
        if not any(free):
            free = [True] * len(waits)
        shortest = min((wait for wait, each in zip(waits, free, strict=True) if each), default=0.0)
        return [
            1 / (1 + (wait - shortest)) if each else 0.0
            for wait, each in zip(waits, free, strict=True)
        ]


class SmgPowerOfTwoPicker(_Wait, frozen=True):
    """Picks the less loaded of two candidates drawn at random.

    `load_metric` is compared: `expected_wait` (smg 1.13), `token_usage`, the used share of the KV
    cache (sglang-router), or `requests` in flight. If one of the two has not reported its load,
    their requests are compared. The first of equals is picked.
    """

    uses_totals: ClassVar[bool] = False
    load_metric: Literal["expected_wait", "token_usage", "requests"] = "expected_wait"

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return the position of one of two."""
        count = len(candidates)
        if count == 1:
            return (0,)
        first = context.below(count)
        second = (first + 1 + context.below(count - 1)) % count
        one, other = candidates[first], candidates[second]
        return (first if self._less(one, other) else second,)

    def _less(self, one: Candidate, other: Candidate) -> bool:
        if self.load_metric == "requests" or not (is_reported(one) and is_reported(other)):
            return one.requests <= other.requests
        if self.load_metric == "token_usage":
            return one.kv_usage <= other.kv_usage
        return self.seconds(one) <= self.seconds(other)
