"""The built-in scorers.

All but `least-ttft-scorer` are the incumbent's defaults, under its names, with its formulas and
parameters.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest
from epp.policy.choice import ttft_costs
from epp.policy.effects import without_effect

_SIZES = without_effect("blocks and capacities are those that endpoints report")
_WHOLE_PROMPTS = without_effect("prompts are matched whole")
_ONE_INDEX = without_effect("there is one index")

# GIE lora-affinity-scorer: the scores of an active adapter, of room for one, of a waiting one.
_ACTIVE, _ROOM, _WAITING = 1.0, 0.8, 0.6


class LeastTtftScorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prefers the endpoint with the lowest cost of this prompt's first token (`ttft_costs`).

    The score is a ratio and not a place between the extremes (as `queue-scorer`'s), so that it
    says how much longer a client would wait: costs of 100 and 101 ms score 1 and 0.99 and leave
    the choice to other scorers, costs of 100 and 200 ms score 1 and 0.5. Alone, with
    `max-score-picker`, it picks what `least-ttft-picker` picks.
    """

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return lowest cost / own; 1 for all where they are equal."""
        costs = ttft_costs(candidates)
        lowest = min(costs)
        return [1.0 if cost <= lowest else lowest / cost for cost in costs]


class QueueScorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prefers the endpoint with the shortest waiting queue, relative to the others."""

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return (longest - own) / (longest - shortest); 1 for all where they are equal."""
        queues = [candidate.waiting for candidate in candidates]
        low, high = min(queues), max(queues)
        if low == high:
            return [1.0] * len(queues)
        return [(high - queue) / (high - low) for queue in queues]


class KvCacheUtilizationScorer(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Prefers the endpoint with the most room in its KV cache."""

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 - usage."""
        return [min(1.0, max(0.0, 1.0 - each.kv_usage)) for each in candidates]


class PrefixCacheScorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prefers the endpoint that is predicted to hold the longest prefix of the prompt."""

    match_length_weight: float = 0.0
    match_length_scale_tokens: int = 8192
    prefix_match_info_producer_name: Annotated[str, _ONE_INDEX] = ""
    auto_tune: Annotated[bool, _SIZES] = True
    block_size: Annotated[int, _SIZES] = 0
    block_size_tokens: Annotated[int, _SIZES] = 0
    max_prefix_blocks_to_match: Annotated[int, _WHOLE_PROMPTS] = 0
    max_prefix_tokens_to_match: Annotated[int, _WHOLE_PROMPTS] = 0
    lru_capacity_per_server: Annotated[int, _SIZES] = 0

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return (1 - w) * cached / prompt + w * min(1, cached / scale)^2; tokens."""
        weight, scale = self.match_length_weight, max(1, self.match_length_scale_tokens)
        return [
            (1 - weight) * (each.cached_tokens / each.prompt_tokens if each.prompt_tokens else 0)
            + weight * min(1.0, each.cached_tokens / scale) ** 2
            for each in candidates
        ]


class LoraAffinityScorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prefers the endpoint that has the request's adapter loaded, then one with room for it."""

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 where loaded, room for another 0.8, waiting to be loaded 0.6, else 0."""
        return [self._affinity(request.target_model, candidate) for candidate in candidates]

    def _affinity(self, adapter: str, candidate: Candidate) -> float:
        running, waiting = candidate.running_adapters, candidate.waiting_adapters
        if adapter in running:
            return _ACTIVE
        if len(running) + len(waiting) < candidate.load.max_adapters:
            return _ROOM
        return _WAITING if adapter in waiting else 0.0
