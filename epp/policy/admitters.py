"""Admitters: which requests of negative priority are refused while the pool is full.

llm-d-router answers what its admitter plug-ins refuse with status 500; here it is 429, as GIE's
proposal 004 has it.
"""

from collections.abc import Callable
from math import exp, log
from typing import Annotated

import msgspec

from epp.errors import Overloaded
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import LatencyPredictionInfo, find_producer
from epp.policy.bounds import BoundedParameters, above_zero
from epp.policy.plugins import Candidates, PluginContext, PluginParameters, uniform
from epp.policy.producers.predicted_latency import TPOT_HEADERS, TTFT_HEADERS, slo

_COLD_USAGE = 0.02
"""The KV cache usage below which predictions for an endpoint are not relied on."""


class ProbabilisticAdmitter(BoundedParameters, frozen=True):
    """Refuses requests of negative priority with a probability that grows with saturation.

    The probability is `min(1, k * saturation ** power)`; saturation is the mean over endpoints of
    `max(waiting / queueDepthThreshold, usage / kvCacheUtilThreshold)`.
    """

    queue_depth_threshold: Annotated[int, above_zero("requests, such as 5")] = 5
    kv_cache_util_threshold: Annotated[float, above_zero("a share, such as 0.8")] = 0.8
    power: Annotated[float, above_zero("a power, such as 5")] = 5.0
    k: Annotated[float, above_zero("a factor, such as 300")] = 300.0

    def start(self, context: PluginContext) -> "_Probabilistic":
        """Return the started plug-in."""
        return _Probabilistic(self, context.below)

    def saturation(self, candidates: Candidates) -> float:
        """Return the mean of the endpoints' saturation; 0 without endpoints."""
        depth, usage = self.queue_depth_threshold, self.kv_cache_util_threshold
        found = [max(each.waiting / depth, each.kv_usage / usage) for each in candidates]
        return sum(found) / len(found) if found else 0.0

    def chance(self, saturation: float) -> float:
        """Return the probability with which a request is refused."""
        if saturation <= 0:
            return 0.0
        # By logarithms, as the power itself may be larger than any float.
        return exp(min(0.0, log(self.k) + self.power * log(saturation)))


class _Probabilistic(msgspec.Struct, frozen=True):
    settings: ProbabilisticAdmitter
    below: Callable[[int], int]

    def admit(self, request: InferenceRequest, candidates: Candidates) -> None:
        """Raise `Overloaded` for a request that is refused."""
        if request.priority >= 0:
            return
        saturation = self.settings.saturation(candidates)
        if uniform(self.below) < self.settings.chance(saturation):
            raise Overloaded(
                f"the pool is at {saturation:.2f} of its limit, and the request may be dropped:"
                f" its priority is {request.priority}",
                reason="probabilistic-admitter",
                retry_after=1,
            )


class LatencySloAdmitter(PluginParameters, frozen=True):
    """Refuses requests of negative priority that no endpoint would serve within their objectives.

    An idle endpoint, or one with a cold cache, is assumed to be able to.
    """

    latency_prediction_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_LatencySlo":
        """Return the started plug-in."""
        name = self.latency_prediction_info_producer_name
        return _LatencySlo(find_producer(context, name, LatencyPredictionInfo))


class _LatencySlo(msgspec.Struct, frozen=True):
    predictions: LatencyPredictionInfo

    def admit(self, request: InferenceRequest, candidates: Candidates) -> None:
        """Raise `Overloaded` for a request that is refused."""
        if request.priority >= 0:
            return
        if not slo(request, TTFT_HEADERS) and not slo(request, TPOT_HEADERS):
            return
        if any(each.running == 0 or each.kv_usage < _COLD_USAGE for each in candidates):
            return
        found = [each for each in self.predictions.latencies(request, candidates) if each]
        if found and not any(each.valid for each in found):
            raise Overloaded(
                "no endpoint is expected to meet the request's latency objectives, and its"
                f" priority is {request.priority}",
                reason="latency-slo-admitter",
                retry_after=1,
            )
