"""Scorers by the contents of endpoints: prefixes of the prompt, its media, the adapter."""

from typing import Annotated

import msgspec
from cachetools import LRUCache

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest, RequestId
from epp.policy.attribute_sources import (
    FROM_FLEET,
    MultimodalMatchInfo,
    PrefixMatchInfo,
    find_producer,
)
from epp.policy.bounds import BoundedParameters, within
from epp.policy.effects import without_effect
from epp.policy.plugins import (
    Candidates,
    PluginContext,
    PluginParameters,
    Scorer,
    when_removed,
)

_UNUSED = without_effect("llm-d-router does not use it either")

# GIE lora-affinity-scorer: the scores of an active adapter, of room for one, of a waiting one.
_ACTIVE, _ROOM, _WAITING = 1.0, 0.8, 0.6

_DEFAULT_LRU_SIZE = 1024
_MAX_COLD_REQUESTS = 10_000
"""The most cold requests that are remembered between their scoring and their sending."""
_PREFILL_PROFILE = "prefill"


class PrefixCacheScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint that is predicted to hold the longest prefix of the prompt."""

    match_length_weight: Annotated[float, within(0, 1, "a weight, such as 0.5")] = 0.0
    """The weight of the matched length; the matched share has the rest."""
    match_length_scale_tokens: int = 8192
    """The length that scores 1."""
    prefix_match_info_producer_name: str = ""
    """The producer of prefix matches; empty: the default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.match_length_weight > 0 and self.match_length_scale_tokens <= 0:
            raise ValueError("`matchLengthScaleTokens` must be above 0 if lengths have a weight")

    def start(self, context: PluginContext) -> Scorer:
        """Return the started plug-in; itself if the producer is the fleet's index."""
        producer = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        return self if producer is FROM_FLEET else _ByMatches(self, producer)

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (1 - w) * cached / prompt + w * min(1, cached / scale)^2, in tokens."""
        weight, scale = self.match_length_weight, max(1, self.match_length_scale_tokens)
        found = [each.cached_tokens for each in candidates]
        tokens = candidates[0].prompt_tokens if found else 0
        shares = [each / tokens if tokens else 0.0 for each in found]
        if not weight:
            return shares
        return [
            (1 - weight) * share + weight * min(1.0, each / scale) ** 2
            for share, each in zip(shares, found, strict=True)
        ]


class _ByMatches(msgspec.Struct, frozen=True):
    parameters: PrefixCacheScorer
    producer: PrefixMatchInfo

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return the same by the producer's matches; a whole match counts as the whole prompt."""
        weight = self.parameters.match_length_weight
        scale = max(1, self.parameters.match_length_scale_tokens)
        return [
            (1 - weight) * each.ratio + weight * min(1.0, each.matched / scale) ** 2
            for each in self.producer.prefix_matches(request, candidates)
        ]


class NoHitLruScorer(PluginParameters, frozen=True):
    """Spreads requests that hit no cache: each goes to the endpoint without one for longest.

    An `lru_size` of 0 or less stands for the default.
    """

    lru_size: int = _DEFAULT_LRU_SIZE
    prefix_match_info_producer_name: str = ""
    prefix_plugin_type: Annotated[str, _UNUSED] = ""
    prefix_plugin_name: Annotated[str, _UNUSED] = ""

    def start(self, context: PluginContext) -> "_ByLastColdRequest":
        """Return the started plug-in."""
        size = self.lru_size if self.lru_size > 0 else _DEFAULT_LRU_SIZE
        producer = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        started = _ByLastColdRequest(size, producer)
        when_removed(context.subscribe, started.forget)
        return started


class _ByLastColdRequest:
    """A request is cold if no candidate has any of its prompt."""

    def __init__(self, size: int, producer: PrefixMatchInfo) -> None:
        self._producer = producer
        self._size = size
        self._used: dict[EndpointId, None] = {}  # the least recently used first
        self._cold: LRUCache[RequestId, None] = LRUCache(_MAX_COLD_REQUESTS)

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 0.5 for all unless the request is cold; then a rank, in 0..1.

        Endpoints that no cold request went to come first, in their order, then the least recently
        used ones.
        """
        self._cold.pop(request.id, None)
        if any(each.matched > 0 for each in self._producer.prefix_matches(request, candidates)):
            return [0.5] * len(candidates)
        self._cold[request.id] = None
        if len(candidates) == 1:
            return [1.0]
        last = {endpoint: position for position, endpoint in enumerate(self._used)}
        fresh = [each.endpoint.id for each in candidates if each.endpoint.id not in last]
        ranks = {endpoint: position for position, endpoint in enumerate(fresh)}
        ranks |= {endpoint: len(fresh) + position for endpoint, position in last.items()}
        span = len(candidates) - 1
        return [max(0.0, 1 - ranks[each.endpoint.id] / span) for each in candidates]

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Remember where a cold request goes, and where its prompt is computed."""
        if request.id not in self._cold:
            return
        del self._cold[request.id]
        for each in (decision, decision.of(_PREFILL_PROFILE)):
            if each is not None:
                self._used.pop(each.endpoint.id, None)
                self._used[each.endpoint.id] = None
        while len(self._used) > self._size:
            del self._used[next(iter(self._used))]

    def forget(self, endpoint: EndpointId) -> None:
        """Forget an endpoint that is gone."""
        self._used.pop(endpoint, None)


class MultimodalCacheScorer(PluginParameters, frozen=True):
    """Prefers the endpoint that has encoded the most of the request's images and sounds before."""

    producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByMedia":
        """Return the started plug-in."""
        return _ByMedia(find_producer(context, self.producer_name, MultimodalMatchInfo))


class _ByMedia(msgspec.Struct, frozen=True):
    producer: MultimodalMatchInfo

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return the size of the matching items as a share of all items; 0 without items."""
        return [each.ratio for each in self.producer.multimodal_matches(request, candidates)]


class LoraAffinityScorer(PluginParameters, frozen=True):
    """Prefers the endpoint that has the request's adapter loaded, then one with room for it."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 if loaded, room for another 0.8, waiting to be loaded 0.6, else 0."""
        return [self._affinity(request.target_model, candidate) for candidate in candidates]

    def _affinity(self, adapter: str, candidate: Candidate) -> float:
        running, waiting = candidate.running_adapters, candidate.waiting_adapters
        if adapter in running:
            return _ACTIVE
        if len(running) + len(waiting) < candidate.load.max_adapters:
            return _ROOM
        return _WAITING if adapter in waiting else 0.0
