"""Filters by load and by attributes of endpoints."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from epp.errors import EndpointsFull
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import InFlightLoad, find_producer
from epp.policy.attributes import Attribute, find_attribute
from epp.policy.plugins import Candidates, PluginContext, PluginParameters

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

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
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
        self, metric: str, request: InferenceRequest, candidates: Candidates
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

    def wanted(self, values: Sequence[float]) -> Sequence[bool]:
        """Return which values are wanted."""
        compare = _COMPARE[self.operator]
        return [compare(each, self.value) for each in values]


class AttributeRange(PluginParameters, frozen=True):
    """The least and the greatest value that are wanted."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if not self.min <= self.max:
            raise ValueError(f"`min` is {self.min}, above `max`, {self.max}")

    def wanted(self, values: Sequence[float]) -> Sequence[bool]:
        """Return which values are wanted."""
        return [self.min <= each <= self.max for each in values]


class AttributeTop(PluginParameters, frozen=True):
    """How many of the highest or lowest values are wanted; of equal ones the first."""

    k: Annotated[int, msgspec.Meta(ge=1)]
    higher_is_better: bool = True

    def wanted(self, values: Sequence[float]) -> Sequence[bool]:
        """Return which values are wanted."""
        sign = -1 if self.higher_is_better else 1
        ranked = sorted(range(len(values)), key=lambda index: sign * values[index])
        top = set(ranked[: self.k])
        return [index in top for index in range(len(values))]


class AttributePercentile(PluginParameters, frozen=True):
    """The percentile, by the nearest rank, from which on, or up to which, values are wanted."""

    percentile: Annotated[float, msgspec.Meta(ge=0, le=100)]
    higher_is_better: bool = True

    def wanted(self, values: Sequence[float]) -> Sequence[bool]:
        """Return which values are wanted."""
        rank = max(1, math.ceil(self.percentile / 100 * len(values)))
        cutoff = sorted(values)[rank - 1] if values else 0.0
        compare = operator.ge if self.higher_is_better else operator.le
        return [compare(each, cutoff) for each in values]


class AttributeRule(PluginParameters, frozen=True):
    """Which values of an attribute are wanted: what the section says that `type` names."""

    type: Literal["threshold", "range", "topK", "percentile"]
    threshold: AttributeThreshold | None = None
    range: AttributeRange | None = None
    top_k: AttributeTop | None = None
    percentile: AttributePercentile | None = None

    def __post_init__(self) -> None:
        _ = self.section  # raises if the section that `type` names is missing

    @property
    def section(self) -> AttributeThreshold | AttributeRange | AttributeTop | AttributePercentile:
        """What decides. Raises `ValueError` if it is missing."""
        sections = {
            "threshold": self.threshold,
            "range": self.range,
            "topK": self.top_k,
            "percentile": self.percentile,
        }
        section = sections[self.type]
        if section is None:
            raise ValueError(f"`{self.type}` is required if `type` is `{self.type}`")
        return section


class EndpointAttributeFilter(PluginParameters, frozen=True):
    """Keeps endpoints by an attribute; an empty `on_missing` stands for the default."""

    attribute: str
    algorithm: AttributeRule
    producer: str | None = None
    on_missing: Literal["Pass", "Fail", ""] = "Pass"
    fallback_on_empty: bool = False

    def __post_init__(self) -> None:
        if not self.attribute:
            raise ValueError("`attribute` is empty")

    def start(self, context: PluginContext) -> "_ByAttribute":
        """Return the started plug-in."""
        return _ByAttribute(self, find_attribute(context, self.attribute, self.producer))


class _ByAttribute(msgspec.Struct, frozen=True):
    parameters: EndpointAttributeFilter
    attribute: Attribute

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those that are wanted; all if there are none and that is wanted."""
        values = self.attribute.values(candidates)
        known = [value for value in values if value is not None]
        wanted = iter(self.parameters.algorithm.section.wanted(known))
        missing = self.parameters.on_missing != "Fail"
        kept = [
            each
            for each, value in zip(candidates, values, strict=True)
            if (missing if value is None else next(wanted))
        ]
        return candidates if not kept and self.parameters.fallback_on_empty else kept
