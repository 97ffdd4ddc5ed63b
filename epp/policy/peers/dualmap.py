"""DualMap: two endpoints for each prefix, by two hash functions, and the better of these.

Source: "DualMap: Enabling Both Cache Affinity and Load Balancing for Distributed LLM Serving"
(ICLR 2026, arXiv 2602.06502), by its abstract: it names the rules, not their numbers.
"""

from collections.abc import Collection
from itertools import islice
from typing import Annotated

from xxhash import xxh64_intdigest

from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.peers.chooser import Choice, Chooser, least
from epp.policy.peers.hash_ring import HashRing, opening_key
from epp.policy.plugins import Candidates, PluginContext

_RING_POINTS = 256
_KEY_BYTES = 8


class DualMapScorer(BoundedParameters, frozen=True):
    """Prefers one of the two endpoints that the beginning of the conversation hashes to.

    The one with more of the prompt cached is chosen if its predicted time to first token is at most
    `ttft_slo_seconds`; otherwise, or if both have the same cached, the one with the shorter time.
    Each endpoint has 256 points on a ring, on which the key has two places, so that endpoints that
    come and go move few prefixes.

    The key is the beginning of the user's first message, up to `prefix_char_length` characters, as
    in `kubeai-chwbl-scorer`; in the paper its length adapts to the load. Waiting requests do not
    migrate between the two endpoints, which would take a queue in the router. The predicted times
    are the picker's own.
    """

    ttft_slo_seconds: Annotated[float, at_least(0, "seconds, such as 5")] = 5.0
    prefix_char_length: Annotated[int, at_least(1, "characters, such as 100")] = 100
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_OnTwoRings":
        """Return the started plug-in."""
        return _OnTwoRings(self, context)


class _OnTwoRings(Chooser):
    def __init__(self, settings: DualMapScorer, context: PluginContext) -> None:
        self._settings = settings
        name = settings.prefix_match_info_producer_name
        self._matches = find_producer(context, name, PrefixMatchInfo)
        self._ring = HashRing(context.subscribe, _RING_POINTS)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        endpoints = {each.endpoint.id: each for each in candidates}
        self._ring.add(endpoints)
        key = opening_key(request, candidates[0].chains, self._settings.prefix_char_length)
        two = self._two(key, endpoints.keys())
        matches = zip(endpoints, self._matches.prefix_matches(request, candidates), strict=True)
        cached = {endpoint: match.matched for endpoint, match in matches}
        seconds = {each: endpoints[each].predicted_ttft for each in two}
        most = max(cached[each] for each in two)
        warm = [each for each in two if cached[each] == most]
        in_time = min(seconds[each] for each in warm) <= self._settings.ttft_slo_seconds
        return least({each: seconds[each] for each in (warm if in_time else two)})

    def _two(self, key: int, among: Collection[EndpointId]) -> list[EndpointId]:
        """Return the endpoints at the two places of a key; one if there are no more."""
        first = self._ring.owner(key, among)
        other = xxh64_intdigest(key.to_bytes(_KEY_BYTES, "little"))
        others = (each for each in self._ring.walk(other) if each in among and each != first)
        return [first, *islice(others, 1)]
