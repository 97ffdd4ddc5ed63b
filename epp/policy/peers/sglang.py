"""SGLang's router: cache-aware routing by an approximate tree, between two gates of imbalance.

Source: sglang-router 0.3.2 (`policies/cache_aware.rs`), the last one of that name on PyPI;
vllm-router 0.1.17 has the same policy with other sizes.
"""

from collections.abc import Sequence

import msgspec

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest
from epp.policy.peers.prefix_tree import PrefixFound, SentPrompts
from epp.policy.plugins import PluginContext

_NOTHING = PrefixFound(0, None)


class SglangCacheAwareScorer(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Prefers the endpoint that the prompt's longest known prefix was sent to, if it is long.

    1. Loads are this picker's own requests under way. Where the largest is more than
       `balance_abs_threshold` above the smallest, and more than `balance_rel_threshold` times it,
       the least loaded endpoint is chosen.
    2. Otherwise, where more than the share `cache_threshold` of the prompt matches the tree of
       prompts that were sent before, the endpoint that the match names (`PrefixTree`); the first
       endpoint where that is no candidate.
    3. Otherwise the least loaded one.

    Of equally loaded endpoints the first is chosen. Whichever it is, the prompt is in the tree for
    it from then on; what an endpoint has there is cut back to `max_tree_size` (bytes of text,
    tokens of prompts that came as such) every `eviction_interval_secs`. Of a request with several
    prompts the first counts.

    The defaults are those of the command line; the structs behind it have others.
    """

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    eviction_interval_secs: float = 60.0
    max_tree_size: int = 67_108_864

    def __post_init__(self) -> None:
        if not 0 <= self.cache_threshold <= 1:
            raise ValueError(
                f"`cacheThreshold` is {self.cache_threshold}; write a share of the prompt, 0 to 1"
            )
        if self.balance_abs_threshold < 0:
            raise ValueError("`balanceAbsThreshold` is below 0; write a number of requests")
        if not self.balance_rel_threshold >= 1:
            raise ValueError("`balanceRelThreshold` is below 1; write a multiple, such as 1.5")
        if not self.eviction_interval_secs > 0:
            raise ValueError("`evictionIntervalSecs` is not above 0; write seconds, such as 60")
        if self.max_tree_size <= 0:
            raise ValueError("`maxTreeSize` is not above 0; write a length, such as 67108864")

    def start(self, context: PluginContext) -> "_CacheAware":
        """Return what keeps the tree."""
        return _CacheAware(self, context)


class _CacheAware:
    def __init__(self, settings: SglangCacheAwareScorer, context: PluginContext) -> None:
        self._settings = settings
        sent = SentPrompts(context, settings.max_tree_size, settings.eviction_interval_secs)
        self._tree = sent.tree

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 for the choice, 0 for others."""
        if not candidates:
            return []
        chosen = self._choose(candidates)
        return [1.0 if position == chosen else 0.0 for position in range(len(candidates))]

    def _choose(self, candidates: Sequence[Candidate]) -> int:
        settings, loads = self._settings, [each.requests for each in candidates]
        least, most = min(loads), max(loads)
        uneven = most > settings.balance_rel_threshold * least
        if uneven and most - least > settings.balance_abs_threshold:
            return loads.index(least)
        chains = candidates[0].chains
        found = self._tree.match(chains[0].hashes) if chains else _NOTHING
        if found.length and found.length / chains[0].size > settings.cache_threshold:
            places = (
                at for at, each in enumerate(candidates) if each.endpoint.id == found.endpoint
            )
            return next(places, 0)
        return loads.index(least)
