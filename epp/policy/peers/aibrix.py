"""AIBrix's prefix cache: the longest known prefix among endpoints that are not too busy.

Source: vLLM AIBrix at commit e3e10f9e, 2026-08 (`pkg/plugins/gateway/algorithms/prefix_cache.go`
routeOriginal, `pkg/utils/prefixcacheindexer/hash.go`).
"""

from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.peers.memory.sent_blocks import SentBlocks
from epp.policy.plugins import PluginContext

_MINUTE = 60.0


class AiBrixPrefixCacheScorer(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Prefers the endpoint that the longest known prefix was sent to, unless it is too busy.

    1. Loads are this picker's requests under way. Where the largest is more than
       `imbalance_abs_count` above the smallest, prefixes are looked for at the least loaded
       endpoints alone.
    2. Of the endpoints that a first block of the prompt was sent to, and whose load is at most the
       mean of all and `standard_deviation_factor` standard deviations, those that have the most
       percent of its blocks are chosen, and of these the least loaded.
    3. Without any the least loaded ones are chosen.

    Among equals the choice is by chance: all of them score 1, others 0. The index holds
    `block_number` blocks, of all endpoints together, as long as `eviction_duration_mins` after they
    were sent last; the beginning of a prompt goes before its end. There a block is 128 characters,
    here one of the picker's; of a request with several prompts the first counts.

    The defaults are those of the Helm chart; the code's are 8 and 1, with blocks of 4 characters.
    """

    imbalance_abs_count: int = 16
    standard_deviation_factor: float = 2.0
    block_number: int = 200_000
    eviction_duration_mins: float = 20.0

    def __post_init__(self) -> None:
        if self.imbalance_abs_count < 0:
            raise ValueError("`imbalanceAbsCount` is below 0; write requests, such as 16")
        if not self.standard_deviation_factor >= 0:
            raise ValueError("`standardDeviationFactor` is below 0; write a factor, such as 2")
        if self.block_number < 1:
            raise ValueError("`blockNumber` is below 1; write blocks, such as 200000")
        if not self.eviction_duration_mins > 0:
            raise ValueError("`evictionDurationMins` is not above 0; write minutes, such as 20")

    def start(self, context: PluginContext) -> "_ByKnownPrefix":
        """Return what keeps the index."""
        seconds = self.eviction_duration_mins * _MINUTE
        return _ByKnownPrefix(self, SentBlocks(context, self.block_number, seconds))


class _ByKnownPrefix:
    def __init__(self, settings: AiBrixPrefixCacheScorer, sent: SentBlocks) -> None:
        self._settings = settings
        self._sent = sent

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 for what may be chosen, 0 for others."""
        if not candidates:
            return []
        loads = {each.endpoint.id: each.requests for each in candidates}
        chosen = self._matching(candidates, loads) or _least(loads)
        return [1.0 if each.endpoint.id in chosen else 0.0 for each in candidates]

    def _matching(
        self, candidates: Sequence[Candidate], loads: dict[EndpointId, int]
    ) -> set[EndpointId]:
        """Return the best of those that have a prefix and are not too busy."""
        chains, values = candidates[0].chains, loads.values()
        if not chains or not chains[0].hashes:
            return set()
        even = max(values) - min(values) <= self._settings.imbalance_abs_count
        among = loads.keys() if even else _least(loads)
        spread = stdev(values) if len(loads) > 1 else 0.0
        most = fmean(values) + self._settings.standard_deviation_factor * spread
        blocks = len(chains[0].hashes)
        ranks = {
            endpoint: (-(100 * depth // blocks), loads[endpoint])
            for endpoint, depth in self._sent.match(chains[0], among, candidates[0].now).items()
            if loads[endpoint] <= most
        }
        best = min(ranks.values(), default=None)
        return {endpoint for endpoint, rank in ranks.items() if rank == best}


def _least(loads: dict[EndpointId, int]) -> set[EndpointId]:
    lowest = min(loads.values())
    return {endpoint for endpoint, load in loads.items() if load == lowest}
