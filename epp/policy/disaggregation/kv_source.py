"""Finds an endpoint from which another can copy blocks of a prompt instead of computing them.

Type, parameters and rule are llm-d-router's
(pkg/epp/framework/plugins/requestcontrol/dataproducer/p2psource).
"""

from typing import Annotated

import msgspec

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.plugins import Candidates, Headers, PluginContext, PluginParameters

KV_SOURCE = "x-kv-cache-source-host-port"
_BLOCK_TOKENS = 16
_FNV_OFFSET, _FNV_PRIME, _FNV_BITS = 0x811C9DC5, 0x01000193, 32


class P2pSourceProducer(PluginParameters, frozen=True):
    """Names an endpoint that has more of the prompt cached than the one that computes it.

    It must have `min_cached_token_delta` more tokens. `prefill_profile_name` is the profile whose
    endpoint computes the prompt, if that profile ran.
    """

    min_cached_token_delta: Annotated[int, msgspec.Meta(ge=1)] = 1
    prefill_profile_name: str = "prefill"
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "P2pSource":
        """Return the plug-in. Raises `ConfigError` for an unknown producer."""
        producer = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        profile = self.prefill_profile_name or "prefill"
        return P2pSource(producer, self.min_cached_token_delta, profile)


class P2pSource(msgspec.Struct, frozen=True):
    """Names a source in a header, if it has `least` more tokens than the endpoint of `profile`."""

    producer: PrefixMatchInfo
    least: int
    profile: str

    def request_headers(
        self, request: InferenceRequest, decision: Decision, candidates: Candidates
    ) -> Headers:
        """Return the header, if a source has enough more than the endpoint that computes."""
        matches = self.producer.prefix_matches(request, candidates)
        cached = {
            each.endpoint.id: match.matched for each, match in zip(candidates, matches, strict=True)
        }
        most = max(cached.values(), default=0)
        if not most:
            return ()
        near = [
            each
            for each in candidates
            if (tokens := cached[each.endpoint.id])
            and tokens + (each.load.block_size or _BLOCK_TOKENS) >= most
        ]
        source = _drawn(near, request.id).endpoint
        computing = (decision.of(self.profile) or decision).endpoint
        more = cached[source.id] - cached.get(computing.id, 0)
        return ((KV_SOURCE, source.target),) if more >= self.least else ()


def _drawn(sources: Candidates, request: str) -> Candidate:
    """Return one, drawn by the request's id with weights of `1 / (1 + waiting)`."""
    weights = [1 / (1 + int(each.waiting)) for each in sources]
    left = fnv32a(request.encode()) / (1 << _FNV_BITS) * sum(weights)
    for each, weight in zip(sources, weights, strict=True):
        if left < weight:
            return each
        left -= weight
    return sources[-1]


def fnv32a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME % (1 << _FNV_BITS)
    return value
