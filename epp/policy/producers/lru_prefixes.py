"""An index of prefixes apart from the fleet's: one plain LRU for each endpoint.

llm-d-router's guides list one `approx-prefix-cache-producer` for each tier of caches. The first in
a file is the fleet's model of the engines' caches; each other one is an index with llm-d-router's
rules (`epp.model.caches.plain_lru`).
"""

from epp.model.caches.plain_lru import PlainLru
from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, LoadReported
from epp.model.quote import Quote
from epp.model.request import InferenceRequest
from epp.model.request_events import Admitted
from epp.policy.attribute_sources import PrefixMatch, holds_all
from epp.policy.plugins import Candidates, PluginContext


class LruPrefixes:
    """The prompts sent to each endpoint, in up to `entries` of 64 tokens for each endpoint.

    `auto_tune`: an endpoint that reports its number of blocks before its first prompt has that many
    entries instead.
    """

    def __init__(self, context: PluginContext, entries: int, *, auto_tune: bool) -> None:
        self._entries = entries
        self._caches: dict[EndpointId, PlainLru] = {}
        kinds = (Admitted, EndpointUpserted, EndpointRemoved)
        context.subscribe((*kinds, LoadReported) if auto_tune else kinds, self._learn)

    def prefix_matches(
        self, request: InferenceRequest, candidates: Candidates
    ) -> list[PrefixMatch]:
        """Return the part of the prompt that was sent to each candidate before."""
        return [self._match(each) for each in candidates]

    def _match(self, candidate: Candidate) -> PrefixMatch:
        cache, total = self._caches.get(candidate.endpoint.id), candidate.prompt_tokens
        size = sum(chain.size for chain in candidate.chains)
        if cache is None or not size:
            return PrefixMatch(0, total)
        # Blocks of text grow with the prompt (docs/adr/0002), so their number does not tell tokens.
        blocks = covered = 0
        for chain in candidate.chains:
            if found := cache.match(chain.hashes[: chain.lookup]):
                blocks += found
                covered += chain.ends[found - 1]
        return PrefixMatch(total * covered // size, total, holds_all(candidate, blocks))

    def _learn(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Admitted):
            self._write(event.quote, event.endpoint_id)
            if event.prefill_endpoint_id is not None:
                self._write(event.quote, event.prefill_endpoint_id)
        elif isinstance(event, EndpointRemoved):
            self._caches.pop(event.endpoint_id, None)
        elif isinstance(event, EndpointUpserted):
            self._caches.setdefault(event.endpoint.id, PlainLru(self._entries, 1))
        elif isinstance(event, LoadReported) and event.load.num_blocks:
            cache = self._caches.get(event.endpoint_id)
            if cache is not None:
                cache.resize(event.load.num_blocks)

    def _write(self, quote: Quote, endpoint: EndpointId) -> None:
        cache = self._caches.get(endpoint)
        if cache is None:
            return
        for chain, offsets in zip(quote.chains, quote.token_offsets, strict=True):
            cache.allocate(chain.hashes, offsets.sizes(), 0, chain.lookup)
        # Nobody follows what is in it, and it lists the changes until they are taken.
        cache.take_stored()
        cache.take_evicted()
