"""kthena's scorers: requests in flight, observed latencies, and known prefixes.

Source: volcano-sh/kthena at commit 3cc05728, 2026-08 (`pkg/kthena-router/scheduler/plugins`,
`pkg/kthena-router/datastore/store.go`). There scores are whole numbers up to 100, here hundredths.
"""

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Annotated

import msgspec

from epp.model.endpoint import EndpointId
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.model.request import InferenceRequest
from epp.policy.bounds import BoundedParameters, at_least, within
from epp.policy.peers.memory.admitted_prompts import AdmittedPrompts
from epp.policy.peers.memory.responses import Responses
from epp.policy.plugins import Candidates, PluginContext, when_removed
from epp.policy.scorers.load import lower_is_better

_QUEUED_WEIGHT = 100.0
"""The extra weight of a request that the engine does not report as running."""
_UNSEEN = 0.5


def _in_hundredths(score: float) -> float:
    return int(100 * score) / 100


class KthenaLeastRequestScorer(BoundedParameters, frozen=True):
    """Prefers endpoints with few requests, and above all with few that do not run yet.

    A request of this picker counts 1, and 100 more if it is beyond those that the last report
    of the engine shows as running. As a filter it drops endpoints whose last report shows
    `max_waiting_requests` or more as waiting.
    """

    max_waiting_requests: Annotated[int, at_least(1, "requests, such as 10")] = 10

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those with fewer waiting requests."""
        return [each for each in candidates if each.load.waiting < self.max_waiting_requests]

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (most - own) / most; 1 for all if there are none."""
        counts = [
            each.requests + _QUEUED_WEIGHT * max(0.0, each.requests - each.load.running)
            for each in candidates
        ]
        most = max(counts, default=0.0)
        return [_in_hundredths((most - count) / most) if most else 1.0 for count in counts]


class KthenaLeastLatencyScorer(BoundedParameters, frozen=True):
    """Prefers endpoints whose last responses were fast.

    The score is the place between the slowest and the fastest: by the time to first token with the
    weight `TTFTTPOTWeightFactor`, and by the time of each further token with the rest; 0.5 without
    both. Each time is the mean of the last second with any. Kthena takes them from the engine's
    histograms; here they are from this picker's own responses.
    """

    weight: Annotated[float, within(0, 1, "a share, 0 to 1")] = msgspec.field(
        default=0.5, name="TTFTTPOTWeightFactor"
    )

    def start(self, context: PluginContext) -> "_ByLatency":
        """Return the started plug-in."""
        return _ByLatency(self.weight, context)


class _ByLatency:
    def __init__(self, weight: float, context: PluginContext) -> None:
        self._weight = weight
        self._ttft: dict[EndpointId, _LastMean] = {}
        self._tpot: dict[EndpointId, _LastMean] = {}
        self._responses = Responses(context, self._learn_tpot, self._learn_ttft)
        when_removed(context.subscribe, self._forget)

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return the weighted places, 1 if all are equally fast."""
        now = candidates[0].now if candidates else 0.0
        ids = [each.endpoint.id for each in candidates]
        times = {
            each: (self._ttft.get(each, _NEVER).at(now), self._tpot.get(each, _NEVER).at(now))
            for each in ids
        }
        seen = {each: pair for each, pair in times.items() if min(pair) > 0}
        ttft = lower_is_better([first for first, _ in seen.values()])
        tpot = lower_is_better([further for _, further in seen.values()])
        scores = {
            each: _in_hundredths(self._weight * first + (1 - self._weight) * further)
            for each, first, further in zip(seen, ttft, tpot, strict=True)
        }
        return [scores.get(each, _UNSEEN) for each in ids]

    def _learn_ttft(self, endpoint: EndpointId, seconds: float, now: float) -> None:
        self._ttft.setdefault(endpoint, _LastMean()).add(now, seconds)

    def _learn_tpot(
        self, endpoint: EndpointId, _tokens: int, step: float | None, now: float
    ) -> None:
        if step is not None:
            self._tpot.setdefault(endpoint, _LastMean()).add(now, step)

    def _forget(self, endpoint: EndpointId) -> None:
        self._ttft.pop(endpoint, None)
        self._tpot.pop(endpoint, None)


class _LastMean(msgspec.Struct, eq=False):
    """The mean of the last whole second in which there was anything."""

    _mean: float = 0.0
    _second: int = 0
    _sum: float = 0.0
    _count: int = 0

    def add(self, now: float, amount: float) -> None:
        """Add one more; time never goes back."""
        self.at(now)
        self._second = int(now)
        self._sum += amount
        self._count += 1

    def at(self, now: float) -> float:
        """Return the mean; 0 until the first such second is over."""
        if self._count and self._second < int(now):
            self._mean, self._sum, self._count = self._sum / self._count, 0.0, 0
        return self._mean


_NEVER = _LastMean()


class KthenaPrefixCacheScorer(BoundedParameters, frozen=True):
    """Prefers endpoints by the share of the prompt's blocks that was sent to them.

    The first `max_blocks_to_match` blocks count as the whole prompt. Only the `top_k_matches`
    longest matches score; chance decides between equals. For each endpoint `max_hash_cache_size`
    blocks are kept: the least recently sent are dropped, the ends of prompts before their
    beginnings. In Kthena a block is 64 bytes, the last one less; here it is one of the picker's.
    Only the first prompt of a request counts.
    """

    max_blocks_to_match: Annotated[int, at_least(1, "blocks, such as 128")] = 128
    max_hash_cache_size: Annotated[int, at_least(1, "blocks, such as 50000")] = 50_000
    top_k_matches: Annotated[int, at_least(1, "endpoints, such as 5")] = 5

    def start(self, context: PluginContext) -> "_ByBlocks":
        """Return the started plug-in."""
        return _ByBlocks(self, context)


class _ByBlocks:
    def __init__(self, settings: KthenaPrefixCacheScorer, context: PluginContext) -> None:
        self._settings = settings
        self._below = context.below
        # The blocks sent to each endpoint, the least recently sent first.
        self._sent: dict[EndpointId, OrderedDict[BlockHash, None]] = {}
        self._admitted = AdmittedPrompts(context, self._insert, self._forget)

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return matched / all blocks, in hundredths."""
        chains = candidates[0].chains if candidates else ()
        blocks = self._blocks(chains[0]) if chains else ()
        matched = self._match(blocks, [each.endpoint.id for each in candidates])
        return [
            _in_hundredths(matched.get(each.endpoint.id, 0) / max(1, len(blocks)))
            for each in candidates
        ]

    def _blocks(self, chain: Chain) -> Sequence[BlockHash]:
        return chain.hashes[: self._settings.max_blocks_to_match]

    def _match(self, blocks: Sequence[BlockHash], among: list[EndpointId]) -> dict[EndpointId, int]:
        """Return the longest matches; chance decides between equals."""
        by_depth = defaultdict[int, list[EndpointId]](list)
        for endpoint in among:
            by_depth[self._depth(blocks, endpoint)].append(endpoint)
        by_depth.pop(0, None)
        matched: dict[EndpointId, int] = {}
        for depth in sorted(by_depth, reverse=True):
            left = sorted(by_depth[depth])
            while left and len(matched) < self._settings.top_k_matches:
                matched[left.pop(self._below(len(left)))] = depth
        return matched

    def _depth(self, blocks: Sequence[BlockHash], endpoint: EndpointId) -> int:
        """Return how many leading blocks an endpoint has: what follows a lost one is lost too."""
        sent = self._sent.get(endpoint, ())
        if not blocks or blocks[0] not in sent:  # as at most endpoints
            return 0
        return bisect_left(blocks, x=True, key=lambda block: block not in sent)

    def _insert(self, chain: Chain, endpoint: EndpointId, _now: float) -> None:
        sent = self._sent.setdefault(endpoint, OrderedDict())
        for block in reversed(self._blocks(chain)):
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > self._settings.max_hash_cache_size:
            sent.popitem(last=False)

    def _forget(self, endpoint: EndpointId) -> None:
        self._sent.pop(endpoint, None)
