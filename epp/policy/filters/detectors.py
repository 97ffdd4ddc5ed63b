"""Detectors of saturation, which are also filters: by endpoints' reports, or by requests sent."""

from collections.abc import Mapping
from math import isinf
from typing import Annotated, Literal

import msgspec

from epp.errors import EndpointsFull
from epp.model.request import InferenceRequest, RequestId
from epp.policy.attribute_sources import EndpointLoad, InFlightLoad, find_producer
from epp.policy.bounds import Bound, BoundedParameters, above_zero, at_least
from epp.policy.effects import mapped_to
from epp.policy.filters.labels import DecodeFilter, PrefillFilter, RoleFilter
from epp.policy.plugins import Candidates, PluginContext, PluginParameters, SaturationDetector
from epp.quantities import seconds

_NEVER_REPORTED = mapped_to(
    "loads of the moment: a report is corrected by what was sent since, so that only an endpoint"
    " that never reported counts as full"
)
_SHARE = Bound(0, "a share, such as 0.8", above=True, most=1)
_Headroom = Annotated[float, at_least(0, "a share, such as 0.2")]


class UtilizationDetector(BoundedParameters, frozen=True):
    """Detects saturation by waiting queues and KV caches."""

    queue_depth_threshold: Annotated[int, above_zero("requests, such as 5")] = 5
    kv_cache_util_threshold: Annotated[float, _SHARE] = 0.8
    metrics_staleness_threshold: Annotated[str, _NEVER_REPORTED] = "200ms"
    headroom: _Headroom = 0.0
    staleness_policy: Literal["saturated", "ignore"] = "saturated"

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds(self.metrics_staleness_threshold)

    def saturation(self, candidates: Candidates) -> float:
        """Return the mean of max(waiting / threshold, usage / threshold); 1 without endpoints.

        An endpoint that never reported counts as 1, or is left out by policy `ignore`; 0 if that
        leaves none.
        """
        if not candidates:
            return 1.0
        queue, usage = self.queue_depth_threshold, self.kv_cache_util_threshold
        ignores = self.staleness_policy == "ignore"
        shares = [
            1.0 if isinf(each.load.at) else max(each.waiting / queue, each.kv_usage / usage)
            for each in candidates
            if not (ignores and isinf(each.load.at))
        ]
        return sum(shares) / len(shares) if shares else 0.0

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those below both thresholds, with headroom; all if there are none."""
        queue = self.queue_depth_threshold * (1 + self.headroom)
        usage = self.kv_cache_util_threshold * (1 + self.headroom)
        kept = [
            each
            for each in candidates
            if not isinf(each.load.at) and each.waiting < queue and each.kv_usage < usage
        ]
        return kept or candidates


class ConcurrencyDetector(BoundedParameters, frozen=True):
    """Detects saturation by the requests that this picker has sent."""

    max_concurrency: Annotated[int, above_zero("requests, such as 100")] = 100
    headroom: _Headroom = 0.0
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_token_concurrency: Annotated[int, above_zero("tokens, such as 1000000")] = 1_000_000
    in_flight_load_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByConcurrency":
        """Return the started plug-in."""
        return _ByConcurrency(
            self, find_producer(context, self.in_flight_load_producer_name, InFlightLoad)
        )


_NO_REQUEST = InferenceRequest(id=RequestId(""))


class _ByConcurrency(msgspec.Struct, frozen=True):
    parameters: ConcurrencyDetector
    producer: InFlightLoad

    def saturation(self, candidates: Candidates) -> float:
        """Return sent / allowed, summed up over the endpoints; 1 without endpoints.

        In mode `hybrid` it is the mean of the greater of both shares of each.
        """
        if not candidates:
            return 1.0
        loads = self.producer.in_flight(_NO_REQUEST, candidates)
        requests = [each.requests / self.parameters.max_concurrency for each in loads]
        tokens = [each.tokens / self.parameters.max_token_concurrency for each in loads]
        match self.parameters.concurrency_mode:
            case "requests":
                shares = requests
            case "tokens":
                shares = tokens
            case _:
                shares = [max(pair) for pair in zip(requests, tokens, strict=True)]
        return sum(shares) / len(shares)

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those below the limit, with headroom. Raises `EndpointsFull` for none."""
        loads = self.producer.in_flight(request, candidates)
        kept = [each for each, load in zip(candidates, loads, strict=True) if self._admits(load)]
        if candidates and not kept:
            raise EndpointsFull("every endpoint has as many as `concurrency-detector` allows")
        return kept

    def _admits(self, load: EndpointLoad) -> bool:
        scale, mode = 1 + self.parameters.headroom, self.parameters.concurrency_mode
        fits = load.requests < int(self.parameters.max_concurrency * scale)
        spare = load.tokens < int(self.parameters.max_token_concurrency * scale)
        return (fits or mode == "tokens") and (spare or mode == "requests")


Stage = Literal["prefill", "decode"]
STAGES: Mapping[Stage, RoleFilter] = {"prefill": PrefillFilter(), "decode": DecodeFilter()}
"""The filter of the endpoints of each stage, by their roles; an endpoint may be in both."""


def of_stage(stage: Stage, candidates: Candidates) -> Candidates:
    """Return the endpoints of a stage."""
    return [each for each in candidates if STAGES[stage].wants(each.endpoint.labels)]


class MaxSaturationDetector(PluginParameters, frozen=True):
    """Detects the saturation of whichever of several detectors finds the most.

    `stages` restricts a detector to the endpoints of some stages, by their roles.
    """

    detectors: list[str]
    stages: dict[str, list[Stage]] = {}

    def __post_init__(self) -> None:
        if not self.detectors:
            raise ValueError("`detectors` is empty; it needs at least one")
        if len(set(self.detectors)) < len(self.detectors):
            raise ValueError("`detectors` names one of them twice")
        unknown = sorted(self.stages.keys() - set(self.detectors))
        if unknown:
            raise ValueError(f"`stages` has `{unknown[0]}`, which is not one of `detectors`")

    def start(self, context: PluginContext) -> "SeveralDetectors":
        """Return the started plug-in."""
        found = {name: context.plugin(name, SaturationDetector) for name in self.detectors}
        return SeveralDetectors(
            tuple((name, found[name], tuple(self.stages.get(name, ()))) for name in self.detectors)
        )


class SeveralDetectors(msgspec.Struct, frozen=True):
    """Detectors by their names, of which the one counts that finds the most."""

    children: tuple[tuple[str, SaturationDetector, tuple[Stage, ...]], ...]

    def saturation(self, candidates: Candidates) -> float:
        """Return the most that a detector finds, of all endpoints or those of its stages.

        A stage without endpoints counts as 0.
        """
        return max([0.0, *(value for _, value in self.found(candidates))])

    def found(self, candidates: Candidates) -> list[tuple[str, float]]:
        """Return the most that each finds, if its stages have endpoints."""
        found: list[tuple[str, float]] = []
        for name, detector, stages in self.children:
            groups = [kept for stage in stages if (kept := of_stage(stage, candidates))]
            if groups or not stages:
                found.append((name, max(map(detector.saturation, groups or [candidates]))))
        return found
