"""Scorers by attributes of endpoints, which may be whole clusters."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from epp.model.endpoint import MULTICLUSTER_KV_USAGE, MULTICLUSTER_QUEUE_SIZE
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import TextAttributes, find_producer
from epp.policy.attributes import Attribute, find_attribute
from epp.policy.plugins import Candidates, PluginContext, PluginParameters
from epp.policy.scorers.load import lower_is_better, normalized


class FixedRange(PluginParameters, frozen=True):
    """The values that score 0 and 1, or 1 and 0; those beyond them score the same."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if not self.min < self.max:
            raise ValueError(f"`min` {self.min} is not below `max` {self.max}")


class AdaptiveRange(PluginParameters, frozen=True):
    """The lowest and the highest value among the candidates; no parameters."""


class Normalization(PluginParameters, frozen=True):
    """The range of values that becomes 0..1; adaptive by default."""

    fixed_range: FixedRange | None = None
    adaptive_range: AdaptiveRange | None = None

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("`fixedRange` and `adaptiveRange` are both given; one is enough")


class AttributeScale(PluginParameters, frozen=True):
    """How an attribute becomes a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization = Normalization()

    def scores(self, values: Sequence[float]) -> list[float]:
        """Return one score in 0..1 for each value."""
        fixed = self.normalization.fixed_range
        lower = self.type == "linear_lower_is_better"
        if fixed is None:
            return lower_is_better(values if lower else [-value for value in values])
        shares = [min(1.0, max(0.0, each)) for each in normalized(values, fixed.min, fixed.max)]
        return [1.0 - share for share in shares] if lower else shares


class EndpointAttributeScorer(PluginParameters, frozen=True):
    """Scores an attribute of endpoints."""

    attribute_key: str
    algorithm: AttributeScale
    producer: str | None = None

    def __post_init__(self) -> None:
        if not self.attribute_key:
            raise ValueError("`attributeKey` is empty")

    def start(self, context: PluginContext) -> "_ByAttribute":
        """Return the started plug-in."""
        attribute = find_attribute(context, self.attribute_key, self.producer)
        return _ByAttribute(attribute, self.algorithm)


class _ByAttribute(msgspec.Struct, frozen=True):
    attribute: Attribute
    algorithm: AttributeScale

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return the attribute's place in the range; 0 if it is missing."""
        values = self.attribute.values(candidates)
        scores = iter(self.algorithm.scores([value for value in values if value is not None]))
        return [0.0 if value is None else next(scores) for value in values]


_QUEUE = _ByAttribute(
    Attribute(MULTICLUSTER_QUEUE_SIZE, MULTICLUSTER_QUEUE_SIZE),
    AttributeScale("linear_lower_is_better"),
)
_USAGE = _ByAttribute(
    Attribute(MULTICLUSTER_KV_USAGE, MULTICLUSTER_KV_USAGE),
    AttributeScale("linear_lower_is_better", Normalization(FixedRange(0.0, 1.0))),
)


class MulticlusterQueueScorer(PluginParameters, frozen=True):
    """Prefers the cluster with the shortest average queue, relative to the others."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (longest - own) / (longest - shortest); 0 if the attribute is missing."""
        return _QUEUE.score(request, candidates)


class MulticlusterKvCacheUtilizationScorer(PluginParameters, frozen=True):
    """Prefers the cluster with the most room in its KV caches."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 - usage; 0 if the attribute is missing."""
        return _USAGE.score(request, candidates)


class EndpointAttributeWeightScorer(PluginParameters, frozen=True):
    """Scores the values of an attribute that is text."""

    attribute_key: str
    weights: dict[str, float]
    producer: str = ""

    def __post_init__(self) -> None:
        if not self.attribute_key or not self.weights:
            raise ValueError("`attributeKey` and `weights` are needed")
        for value, weight in self.weights.items():
            if weight <= 0:
                raise ValueError(f"the weight of `{value}` is {weight}, not above 0")

    def start(self, context: PluginContext) -> "_ByWeight":
        """Return the started plug-in."""
        most = max(self.weights.values())
        shares = {value: weight / most for value, weight in self.weights.items()}
        return _ByWeight(
            self.attribute_key, shares, find_producer(context, self.producer, TextAttributes)
        )


class _ByWeight(msgspec.Struct, frozen=True):
    attribute_key: str
    shares: Mapping[str, float]
    source: TextAttributes

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return weight / highest weight; that of the lowest for a value that has none."""
        lowest, find = min(self.shares.values()), self.source.text
        values = [find(each.endpoint, self.attribute_key) for each in candidates]
        return [lowest if value is None else self.shares.get(value, lowest) for value in values]
