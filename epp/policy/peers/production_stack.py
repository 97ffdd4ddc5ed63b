"""vLLM production-stack's router: by known prefix, by prefix and load, and by session.

Source: production-stack at commit a6c01db0, 2026-08 (`src/vllm_router/routers/routing_logic.py`,
`prefix/hashtrie.py`, `stats/request_stats.py`); `loadaware` as pull request 1035 has it.
"""

from typing import Annotated

import msgspec
from xxhash import xxh64_intdigest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, Event
from epp.model.request import InferenceRequest
from epp.model.request_events import Admitted
from epp.policy.attribute_sources import InFlightLoad, PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.peers.chooser import Choice, Chooser, least
from epp.policy.peers.hash_ring import HashRing
from epp.policy.peers.memory.sent_blocks import SentBlocks
from epp.policy.peers.memory.window import NOTHING, WindowSum
from epp.policy.plugins import Candidates, PluginContext
from epp.policy.scorers.load import lower_is_better

_TOKEN_CHARACTERS = 4
"""Characters that a token stands for, of prompts that came as tokens."""
_WINDOW_SECONDS = 60.0
"""The router's `--request-stats-window`."""
_RING_POINTS = 160
"""Points of a node on the ring of `uhashring`."""


class _Rates:
    """How many requests were sent to each endpoint within a minute."""

    def __init__(self, context: PluginContext) -> None:
        self._sent: dict[EndpointId, WindowSum] = {}
        context.subscribe((Admitted, EndpointRemoved), self._learn)

    def _learn(self, event: Event, now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Admitted):
            self._sent.setdefault(event.endpoint_id, WindowSum(_WINDOW_SECONDS)).add(now, 1)
        elif isinstance(event, EndpointRemoved):
            self._sent.pop(event.endpoint_id, None)

    def lowest(self, candidates: Candidates) -> set[EndpointId]:
        """Return the endpoints that were sent the fewest."""
        sent = self._sent
        ids = [each.endpoint.id for each in candidates]
        return least({each: sent.get(each, NOTHING).total(candidates[0].now) for each in ids})


class ProductionStackPrefixAwareScorer(BoundedParameters, frozen=True):
    """Prefers the endpoints that the longest known prefix of the prompt was sent to.

    All that have it score 1, others 0, so that chance decides, and not load; if none has any of
    it, all score 1. If it is shorter than `prefix_min_match_length` characters, those score 1
    that were sent the fewest requests within a minute.

    There a chunk is 128 characters, the last one less, and the trie grows without end. Here it has
    up to `max_blocks` of the picker's blocks; the least recently sent are dropped, the ends of
    prompts before their beginnings. Only the first prompt of a request counts.
    """

    prefix_min_match_length: Annotated[int, at_least(0, "characters, such as 4096")] = 0
    max_blocks: Annotated[int, at_least(1, "blocks, such as 1000000")] = 1_000_000

    def start(self, context: PluginContext) -> "_ByTrie":
        """Return the started plug-in."""
        trie = SentBlocks(context, self.max_blocks, heads_last=True)
        return _ByTrie(self.prefix_min_match_length, trie, _Rates(context))


class _ByTrie(Chooser):
    def __init__(self, least_length: int, trie: SentBlocks, rates: _Rates) -> None:
        self._least_length = least_length
        self._trie = trie
        self._rates = rates

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        chosen = {each.endpoint.id for each in candidates}
        length, chains = 0, candidates[0].chains
        if chains and chains[0].hashes:
            matched = self._trie.match(chains[0], chosen, candidates[0].now)
            deepest = max(matched.values(), default=0)
            if deepest:
                chosen = {each for each, depth in matched.items() if depth == deepest}
                unit = _TOKEN_CHARACTERS if chains[0].exact else 1
                length = chains[0].ends[deepest - 1] * unit
        return chosen if length >= self._least_length else self._rates.lowest(candidates)


class ProductionStackLoadAwareScorer(BoundedParameters, frozen=True):
    """Prefers endpoints by the cached share of the prompt, less `beta` times their relative load.

    The relative load is (own - mean) / max(1, mean) of this picker's requests in flight. In
    production-stack LMCache's controller reports the cached tokens.
    """

    beta: Annotated[float, at_least(0, "the weight of the load, such as 1")] = 1.0
    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByShareAndLoad":
        """Return the started plug-in."""
        return _ByShareAndLoad(
            self.beta,
            find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo),
            find_producer(context, self.in_flight_load_producer_name, InFlightLoad),
        )


class _ByShareAndLoad(msgspec.Struct, frozen=True):
    beta: float
    matches: PrefixMatchInfo
    loads: InFlightLoad

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return the place between the worst (0) and the best (1); 1 if all are equal."""
        loads = [each.requests for each in self.loads.in_flight(request, candidates)]
        mean = sum(loads) / len(loads) if loads else 0.0
        matches = self.matches.prefix_matches(request, candidates)
        return lower_is_better(
            [
                self.beta * (load - mean) / max(1.0, mean)
                - (match.matched / match.total if match.total else 0.0)
                for load, match in zip(loads, matches, strict=True)
            ]
        )


class ProductionStackSessionScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint that the session's id hashes to on a ring.

    The id is in the header `session_key`; there a field of the body of that name is looked at, too.
    Without an id those score 1 that were sent the fewest requests within a minute.
    """

    session_key: str

    def __post_init__(self) -> None:
        if not self.session_key.strip():
            raise ValueError("`sessionKey` is empty; write a header, such as x-user-id")

    def start(self, context: PluginContext) -> "_BySession":
        """Return the started plug-in."""
        return _BySession(self.session_key.strip().lower(), context)


class _BySession(Chooser):
    def __init__(self, header: str, context: PluginContext) -> None:
        self._header = header
        self._rates = _Rates(context)
        self._ring = HashRing(context.subscribe, _RING_POINTS)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        session = request.headers.get(self._header, "")
        if not session:
            return self._rates.lowest(candidates)
        known = {each.endpoint.id for each in candidates}
        self._ring.add(known)
        return {self._ring.owner(xxh64_intdigest(session.encode()), known)}
