"""DualMap: two endpoints for each prefix, by two hash functions, and the better of these.

Source: "DualMap: Enabling Both Cache Affinity and Load Balancing for Distributed LLM Serving"
(ICLR 2026, arXiv 2602.06502), by its abstract: it names the rules, not their numbers.
"""

from collections.abc import Collection, Container, Sequence
from itertools import islice
from typing import Annotated

from xxhash import xxh64_intdigest

from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.peers.hash_ring import HashRing, opening_key
from epp.policy.peers.parameters import BoundedParameters, Chooser, at_least
from epp.policy.plugins import PluginContext

_REPLICAS = 256
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
        self._ring = HashRing(context.subscribe, _REPLICAS)

    def _choose(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Container[EndpointId]:
        positions = {each.endpoint.id: at for at, each in enumerate(candidates)}
        self._ring.add(positions)
        key = opening_key(request, candidates[0].chains, self._settings.prefix_char_length)
        two = [positions[each] for each in self._two(key, positions.keys())]
        matches = self._matches.prefix_matches(request, candidates)
        seconds = {at: candidates[at].predicted_ttft for at in two}
        most = max(matches[at].matched for at in two)
        warm = [at for at in two if matches[at].matched == most]
        in_time = min(seconds[at] for at in warm) <= self._settings.ttft_slo_seconds
        asked = warm if in_time else two
        least = min(seconds[at] for at in asked)
        return {candidates[at].endpoint.id for at in asked if seconds[at] == least}

    def _two(self, key: int, among: Collection[EndpointId]) -> list[EndpointId]:
        """Return the endpoints at the two places of a key; one if there are no more."""
        first = next(each for each in self._ring.walk(key) if each in among)
        other = xxh64_intdigest(key.to_bytes(_KEY_BYTES, "little"))
        others = (each for each in self._ring.walk(other) if each in among and each != first)
        return [first, *islice(others, 1)]
