"""Scorers by labels of endpoints: the value of a header, a range of lengths, a place."""

from typing import Literal

import msgspec

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Target
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import TopologyInfo, find_producer, shared_places
from epp.policy.plugins import Candidates, Headers, PluginContext, PluginParameters

_CONTEXT_LABEL = "llm-d.ai/context-length-range"
_NO_LABEL = 0.5
_MIN_WITHIN = 0.3
"""The score at the edge of a range: all within score more, all outside less."""
_WIDTH_WEIGHT, _ROOM_WEIGHT = 0.7, 0.3
_WIDTH_TOKENS, _DISTANCE_TOKENS = 10_000, 1000
"""Tokens of width, and of distance from a range, that halve a score."""

_AFFINITIES = {"hostname": 1.0, "rack": 0.2, "zone": 0.05, "region": 0.02}
"""The score for sharing a place with another endpoint, the narrowest place first."""


class HeaderLabelAffinityScorer(PluginParameters, frozen=True):
    """Prefers endpoints with a label that equals a request's header."""

    header_name: str
    label_key: str
    stamp_response_header: bool = True

    def __post_init__(self) -> None:
        if not self.header_name or not self.label_key:
            raise ValueError("`headerName` and `labelKey` are needed")

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 if they are equal and not empty, else 0."""
        wanted, key = request.headers.get(self.header_name.lower(), ""), self.label_key
        return [
            1.0 if wanted and each.endpoint.labels.get(key) == wanted else 0.0
            for each in candidates
        ]

    def response_headers(
        self, _: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return the label of the endpoint that served the request, for a later one to prefer."""
        labels = decision.served_endpoint(served).labels
        value = labels.get(self.label_key) if self.stamp_response_header else None
        return ((self.header_name.lower(), value),) if value else ()


class ContextLengthAware(PluginParameters, frozen=True):
    """Prefers endpoints whose label `label` has a range (`min-max`, tokens) around the prompt's.

    With `enable_filtering` it also drops endpoints with another range, or with an invalid one.
    """

    label: str = _CONTEXT_LABEL
    enable_filtering: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("`label` is empty")

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those without the label, and those whose range contains the prompt's length."""
        if not self.enable_filtering:
            return candidates
        return [each for each in candidates if self._fits(each)]

    def _fits(self, candidate: Candidate) -> bool:
        text = candidate.endpoint.labels.get(self.label)
        found = None if text is None else _range(text)
        return text is None or (
            found is not None and found[0] <= candidate.prompt_tokens <= found[1]
        )

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return above 0.3 within the range, less outside, 0.5 without a label, 0 for a bad one.

        Within, narrow ranges and room above the prompt score more; outside, small distances.
        """
        return [self._score(each) for each in candidates]

    def _score(self, candidate: Candidate) -> float:
        text = candidate.endpoint.labels.get(self.label)
        if text is None:
            return _NO_LABEL
        found = _range(text)
        if found is None:
            return 0.0
        (low, high), tokens = found, candidate.prompt_tokens
        if not low <= tokens <= high:
            distance = tokens - high if tokens > high else low - tokens
            return _MIN_WITHIN / (1 + distance / _DISTANCE_TOKENS)
        width = high - low
        if not width:
            return 1.0
        raw = _WIDTH_WEIGHT / (1 + width / _WIDTH_TOKENS) + _ROOM_WEIGHT * (high - tokens) / width
        return _MIN_WITHIN + (1 - _MIN_WITHIN) * raw


def _range(text: str) -> tuple[int, int] | None:
    """Read `min-max`; None for anything else."""
    low, _, high = (part.strip() for part in text.partition("-"))
    if not (low.isdecimal() and high.isdecimal() and len(text) <= _LONGEST_RANGE):
        return None
    return (int(low), int(high)) if int(low) <= int(high) else None


_LONGEST_RANGE = 63
"""Characters of a label's value, at most (Kubernetes)."""


class TopologyAffinityScorer(PluginParameters, frozen=True):
    """Prefers endpoints near the one that a handler chose for the previous stage."""

    topology_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByPlace":
        """Return the started plug-in."""
        return _ByPlace(find_producer(context, self.topology_producer_name, TopologyInfo))


class _ByPlace(msgspec.Struct, frozen=True):
    producer: TopologyInfo

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 on the same host, 0.2 in the same rack, 0.05 zone, 0.02 region, else 0."""
        shared = shared_places(self.producer, request, candidates)
        return [_AFFINITIES.get(place, 0.0) for place in shared]


class MulticlusterTopologyScorer(PluginParameters, frozen=True):
    """Prefers the places with the highest weights: regions of clusters, or narrower ones."""

    weights: dict[str, float]
    field: Literal["host", "rack", "zone", "region", ""] = "region"
    topology_producer_name: str = ""

    def __post_init__(self) -> None:
        if any(weight < 0 for weight in self.weights.values()):
            raise ValueError("each of `weights` must be 0 or above")
        if not any(self.weights.values()):
            raise ValueError("one of `weights` must be above 0")

    def start(self, context: PluginContext) -> "_ByWeight":
        """Return the started plug-in."""
        heaviest = max(self.weights.values())
        return _ByWeight(
            find_producer(context, self.topology_producer_name, TopologyInfo),
            "hostname" if self.field == "host" else self.field or "region",
            {place: weight / heaviest for place, weight in self.weights.items()},
        )


class _ByWeight(msgspec.Struct, frozen=True):
    producer: TopologyInfo
    level: str
    scores: dict[str, float]

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return the weight of each place, divided by the highest; 0 without either."""
        places = [self.producer.topology(each.endpoint) for each in candidates]
        names = ["" if place is None else getattr(place, self.level) for place in places]
        return [self.scores.get(name, 0.0) for name in names]
