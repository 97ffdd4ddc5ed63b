"""Ray Serve's prefix affinity: the longest known prefix, else the endpoint that knows the least.

Source: Ray 2.60.0 (`ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`
and `prefix_tree.py`; `ray/serve/_private/request_router/pow_2_router.py`).
"""

from collections.abc import Collection, Iterable
from typing import Annotated

from epp.model.endpoint import EndpointId
from epp.model.prompts.chain import Chain
from epp.model.request import InferenceRequest
from epp.policy.bounds import BoundedParameters, above_zero, at_least, within
from epp.policy.peers.chooser import Choice, Chooser, least, loads_of
from epp.policy.peers.memory.admitted_prompts import AdmittedPrompts
from epp.policy.peers.memory.prefix_tree import PrefixTree
from epp.policy.plugins import Candidates, PluginContext

_MAX = 67_108_864
"""The length of an endpoint's prompts in the tree if eviction is off."""


class RayPrefixAffinityScorer(BoundedParameters, frozen=True):
    """Prefers the least loaded of the endpoints that know the longest prefix of the prompt.

    1. Loads are this picker's requests in flight. If the largest is more than
       `imbalanced_threshold` above the smallest, of two endpoints drawn by chance the less loaded
       one is chosen; None: never, except for requests without a prompt, or with less than a block.
    2. Otherwise the endpoints are considered that the longest prefix was sent to. If that is less
       than the share `match_rate_threshold` of the prompt, those are considered that were sent the
       least text, counting shared prefixes once.
    3. Of those considered, the least loaded are chosen.

    Among equals the choice is by chance: all of them score 1, others 0. With `do_eviction`, an
    endpoint's text is cut back to `eviction_target_chars` every `eviction_interval_secs` if it
    exceeds `eviction_threshold_chars`. Without it Ray Serve never forgets; here 67,108,864
    characters are kept. Lengths are in characters of text, or in tokens of prompts that came as
    such.
    """

    imbalanced_threshold: Annotated[float | None, at_least(0, "requests, or leave it out")] = None
    match_rate_threshold: Annotated[float, within(0, 1, "a share, 0 to 1")] = 0.1
    do_eviction: bool = False
    eviction_threshold_chars: int = 400_000
    eviction_target_chars: int = 360_000
    eviction_interval_secs: Annotated[float, above_zero("seconds, such as 10")] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.eviction_target_chars <= self.eviction_threshold_chars:
            raise ValueError(
                "`evictionTargetChars` is not above 0 and at most `evictionThresholdChars`; write"
                " lengths, such as 360000 and 400000"
            )

    def start(self, context: PluginContext) -> "_ByTenants":
        """Return the started plug-in."""
        return _ByTenants(self, context)


class _ByTenants(Chooser):
    def __init__(self, settings: RayPrefixAffinityScorer, context: PluginContext) -> None:
        self._settings = settings
        self._below = context.below
        self._tree = PrefixTree()
        self._due = 0.0
        keeps = settings.do_eviction
        self._most = settings.eviction_threshold_chars if keeps else _MAX
        self._target = settings.eviction_target_chars if keeps else _MAX
        self._admitted = AdmittedPrompts(context, self._insert, self._tree.remove)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = loads_of(candidates)
        chains = candidates[0].chains
        threshold = self._settings.imbalanced_threshold
        even = threshold is None or max(loads.values()) - min(loads.values()) <= threshold
        if even and chains and chains[0].hashes:
            asked = self._knowing(chains[0], loads)
        else:
            asked = self._two([*loads])
        return least({endpoint: loads[endpoint] for endpoint in asked})

    def _knowing(self, chain: Chain, endpoints: Iterable[EndpointId]) -> Collection[EndpointId]:
        """Return those that know the longest prefix; if it is short, those with the least."""
        depths = {each: self._tree.blocks(chain.hashes, each) for each in endpoints}
        deepest = max(depths.values())
        rate = chain.ends[deepest - 1] / chain.size if deepest else 0.0
        if rate >= self._settings.match_rate_threshold:
            return [each for each, depth in depths.items() if depth == deepest]
        return least({each: self._tree.length(each) for each in endpoints})

    def _two(self, endpoints: list[EndpointId]) -> list[EndpointId]:
        """Draw two different ones; all if there are no more."""
        if len(endpoints) <= 2:  # noqa: PLR2004 (two)
            return endpoints
        return [endpoints.pop(self._below(len(endpoints))) for _ in range(2)]

    def _insert(self, chain: Chain, endpoint: EndpointId, now: float) -> None:
        tree = self._tree
        tree.insert(chain.hashes, chain.ends, endpoint)
        if now >= self._due:
            self._due = now + self._settings.eviction_interval_secs
            for each in self._admitted:
                if tree.length(each) > self._most:
                    tree.evict(each, self._target)
