"""SGLang's router: cache-aware routing by an approximate tree, between two gates of imbalance.

Source: sglang-router 0.3.2 (`policies/cache_aware.rs`), the last one of that name on PyPI.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

from epp.model.endpoint import EndpointId
from epp.model.prompts.chain import Chain
from epp.model.request import InferenceRequest
from epp.policy.bounds import BoundedParameters, above_zero, at_least, within
from epp.policy.peers.chooser import Choice, Chooser, loads_of
from epp.policy.peers.memory.admitted_prompts import AdmittedPrompts
from epp.policy.peers.memory.prefix_tree import PrefixFound, PrefixTree
from epp.policy.plugins import Candidates, PluginContext


class CacheAwareSettings(BoundedParameters, frozen=True):
    """When a match counts, and how much of the sent prompts is kept.

    A match counts above the share `cache_threshold` of the prompt. The tree is cut back to
    `max_tree_size` (bytes of text, tokens of prompts that came as such) every
    `eviction_interval_secs`, and at once when it is twice as long.
    """

    cache_threshold: Annotated[float, within(0, 1, "a share of the prompt, 0 to 1")] = 0.3
    eviction_interval_secs: Annotated[float, above_zero("seconds, such as 60")] = 60.0
    max_tree_size: Annotated[int, above_zero("a length, such as 67108864")] = 67_108_864


class GatedSettings(CacheAwareSettings, frozen=True):
    """When loads are too uneven for caches to count.

    They are if the largest is more than `balance_abs_threshold` above the smallest, and more
    than `balance_rel_threshold` times it.
    """

    balance_abs_threshold: Annotated[int, at_least(0, "a number of requests")] = 64
    balance_rel_threshold: Annotated[float, at_least(1, "a multiple, such as 1.5")] = 1.5


class SglangCacheAwareScorer(GatedSettings, frozen=True):
    """Prefers the endpoint that the prompt's longest known prefix was sent to, if it is long.

    1. Loads are this picker's own requests in flight. If they are too uneven
       (`GatedSettings`), the least loaded endpoint is chosen.
    2. Otherwise, if a match in the tree of prompts that were sent before counts, the endpoint
       that it names (`PrefixTree`); the first endpoint if that is not a candidate.
    3. Otherwise the least loaded one.

    Of equally loaded endpoints the first is chosen. The prompt is then in the tree for the chosen
    endpoint; each endpoint has `max_tree_size` to itself. Only the first prompt of a request
    counts.

    The defaults are the command line's; the structs behind it have others.
    """

    def start(self, context: PluginContext) -> "Gated":
        """Return the started plug-in."""
        return Gated(self, context, _named)


class CacheAware(Chooser):
    """Chooses by a tree of the prompts that were sent.

    An endpoint's part is cut back to `max_tree_size`, or to its share of it if that is `shared`.
    """

    def __init__(
        self, settings: CacheAwareSettings, context: PluginContext, *, shared: bool = False
    ) -> None:
        self._limits = settings
        self._shared = shared
        self._due = settings.eviction_interval_secs
        self._tree = PrefixTree()
        self._admitted = AdmittedPrompts(context, self._insert, self._tree.remove)

    def _insert(self, chain: Chain, endpoint: EndpointId, now: float) -> None:
        tree, most = self._tree, self._limits.max_tree_size
        if self._shared:
            most //= len(self._admitted)
        tree.insert(chain.hashes, chain.ends, endpoint)
        if tree.length(endpoint) > 2 * most:
            tree.evict(endpoint, most)
        if now >= self._due:
            self._due = now + self._limits.eviction_interval_secs
            for each in self._admitted:
                tree.evict(each, most)

    def _match(self, candidates: Candidates) -> PrefixFound | None:
        """Return the match of the first prompt; None if it does not count."""
        chains = candidates[0].chains
        if not chains:
            return None
        found = self._tree.match(chains[0].hashes)
        share = found.length / chains[0].size if found.length else 0.0
        return found if share > self._limits.cache_threshold else None


class Gated(CacheAware):
    """Chooses by the tree unless loads are uneven, and then, as without a match, by load.

    `choose` says which endpoint a match means, given the loads.
    """

    def __init__(
        self,
        settings: GatedSettings,
        context: PluginContext,
        choose: Callable[[PrefixFound, Mapping[EndpointId, int]], EndpointId],
    ) -> None:
        super().__init__(settings, context)
        self._settings = settings
        self._of_match = choose

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = loads_of(candidates)
        settings, least, most = self._settings, min(loads.values()), max(loads.values())
        uneven = most > settings.balance_rel_threshold * least
        gated = uneven and most - least > settings.balance_abs_threshold
        match = None if gated else self._match(candidates)
        if match is None:
            return (min(loads, key=loads.__getitem__),)
        return (self._of_match(match, loads),)


def _named(match: PrefixFound, loads: Mapping[EndpointId, int]) -> EndpointId:
    """Return the endpoint that a match names; the first one if that is no candidate."""
    named = match.endpoints[0]
    return named if named in loads else next(iter(loads))
