"""Filters by load and by attributes of endpoints."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from epp.errors import EndpointsFull
from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import InFlightLoad, find_producer
from epp.policy.attributes import Attribute, find_attribute
from epp.policy.plugins import PluginContext, PluginParameters

Operator = Literal[
    "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
]
_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class UtilizationCondition(PluginParameters, frozen=True):
    """A measure of load and its limit."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: float

    def __post_init__(self) -> None:
        if not self.max_value >= 0:
            raise ValueError(f"`maxValue` of {self.metric} is {self.max_value}, below 0")
        if self.metric == "kv-cache-utilization" and self.max_value > 1:
            raise ValueError(f"`maxValue` of {self.metric} is {self.max_value}, more than 1")


class UtilizationFilter(PluginParameters, frozen=True):
    """Drops endpoints with too much load by any of several measures."""

    conditions: list[UtilizationCondition]
    fallback_on_empty: bool = False
    in_flight_load_producer_name: str = ""

    def __post_init__(self) -> None:
        if not self.conditions:
            raise ValueError("`conditions` is empty; it needs at least one")

    def start(self, context: PluginContext) -> "_WithinLimits":
        """Return the started plug-in."""
        return _WithinLimits(
            self, find_producer(context, self.in_flight_load_producer_name, InFlightLoad)
        )


class _WithinLimits(msgspec.Struct, frozen=True):
    parameters: UtilizationFilter
    producer: InFlightLoad

    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return those within every limit; all if there are none and that is wanted.

        Raises `EndpointsFull` if there are none.
        """
        kept = list(candidates)
        for each in self.parameters.conditions:
            values = self._values(each.metric, request, kept)
            pairs = zip(kept, values, strict=True)
            kept = [candidate for candidate, value in pairs if value <= each.max_value]
        if kept or self.parameters.fallback_on_empty or not candidates:
            return kept or candidates
        raise EndpointsFull("every endpoint is above a limit of `utilization-filter`")

    def _values(
        self, metric: str, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> list[float]:
        match metric:
            case "active-requests":
                return [each.requests for each in self.producer.in_flight(request, candidates)]
            case "running-requests":
                return [each.running for each in candidates]
            case "waiting-queue":
                return [each.waiting for each in candidates]
            case _:
                return [each.kv_usage for each in candidates]


class AttributeThreshold(PluginParameters, frozen=True):
    """The operator and the value that an attribute is compared with."""

    operator: Operator
    value: float = 0.0


class ThresholdRule(PluginParameters, frozen=True):
    """Which values of an attribute are wanted."""

    type: Literal["threshold"]
    threshold: AttributeThreshold


class EndpointAttributeFilter(PluginParameters, frozen=True):
    """Keeps endpoints by an attribute; an empty `on_missing` stands for the default."""

    attribute: str
    algorithm: ThresholdRule
    producer: str | None = None
    on_missing: Literal["Pass", "Fail", ""] = "Pass"
    fallback_on_empty: bool = False

    def __post_init__(self) -> None:
        if not self.attribute:
            raise ValueError("`attribute` is empty")

    def start(self, context: PluginContext) -> "_ByThreshold":
        """Return the started plug-in."""
        return _ByThreshold(self, find_attribute(context, self.attribute, self.producer))


class _ByThreshold(msgspec.Struct, frozen=True):
    parameters: EndpointAttributeFilter
    attribute: Attribute

    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return those that are wanted; all if there are none and that is wanted."""
        threshold = self.parameters.algorithm.threshold
        wanted, limit = _COMPARE[threshold.operator], threshold.value
        missing = self.parameters.on_missing != "Fail"
        values = self.attribute.values(candidates)
        kept = [
            each
            for each, value in zip(candidates, values, strict=True)
            if (missing if value is None else wanted(value, limit))
        ]
        return candidates if not kept and self.parameters.fallback_on_empty else kept
