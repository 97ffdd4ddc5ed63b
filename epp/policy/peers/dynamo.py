"""Dynamo's KV router: blocks to prefill and blocks to hold, in one cost.

Source: ai-dynamo-runtime 1.6.1 (`kv-router/src/scheduling/selector/default.rs`, and
`kv-router/src/sequences` for the books it reads).
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil, exp
from typing import Annotated, NamedTuple

import msgspec

from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, Event
from epp.model.prompts.hashing import BlockHash
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import Aborted, Admitted, Finished, FirstToken
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters, above_zero, at_least
from epp.policy.peers.memory.prefix_tree import PrefixNode, PrefixTree, Tenant
from epp.policy.plugins import Candidates, PluginContext
from epp.policy.scorers.load import least_is_best


class DynamoCostScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint that costs the fewest blocks of `block_size` tokens.

    ```
    cost    = scale * max(0, (prefilling + prompt) / size - credit * cached)
              + held + weight * requests
    credit  = overlap_score_credit / (1 + decay * (prefilling - least) / prompt)
    ```

    `prefilling` are the uncached tokens of prompts sent there whose first token was not seen,
    `least` the fewest at any candidate, `prompt` this one's tokens, `cached` its full blocks there.
    `held` are the distinct blocks of the prompts in flight there, including this one's; output does
    not count. `requests` are those in flight.

    The score is lowest cost / own. With a temperature T it is exp(-(own - lowest) / (span * T)),
    where `span` lies between the extremes: `weighted-random-picker` chooses by it as Dynamo's
    softmax does, `max-score-picker` by the lowest cost still.

    Cached blocks come from the index that `prefix_match_info_producer_name` names, by default the
    fleet's own; Dynamo has KV events. Tiers of caches have no weights of their own. As in engines,
    the last token of a prompt is never cached: if a prompt ends with a block, one block less counts
    than in Dynamo.
    """

    overlap_score_credit: Annotated[float, at_least(0, "a number from 0")] = 1.0
    overlap_score_credit_decay: Annotated[float, at_least(0, "a number from 0")] = 0.0
    prefill_load_scale: Annotated[float, at_least(0, "a number from 0")] = 1.0
    decode_active_request_weight: Annotated[float, at_least(0, "a number from 0")] = 0.0
    router_temperature: Annotated[float, at_least(0, "a number from 0")] = 0.0
    block_size: Annotated[int, above_zero("the engines' block, such as 16")] = 16
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByCost":
        """Return the started plug-in."""
        matches = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        return _ByCost(self, matches, ActivePrompts(context))


class _ByCost(msgspec.Struct, frozen=True):
    settings: DynamoCostScorer
    matches: PrefixMatchInfo
    active: "ActivePrompts"

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return scores in 0..1; 1 for all if costs are equal."""
        if not candidates:
            return []
        return costs_at(self.settings.router_temperature, self._costs(request, candidates))

    def _costs(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        settings, size = self.settings, self.settings.block_size
        matches = self.matches.prefix_matches(request, candidates)
        held = self.active.held(candidates)
        prompt = candidates[0].prompt_tokens
        least = min(each.in_flight_tokens for each in candidates)
        costs = []
        for each, match, tokens in zip(candidates, matches, held, strict=True):
            prefilling = each.in_flight_tokens
            more = (prefilling - least) / size / max(1, ceil(prompt / size))
            credit = settings.overlap_score_credit
            credit /= 1 + settings.overlap_score_credit_decay * more
            prefill = (prefilling + prompt) / size - credit * (match.matched // size)
            requests = settings.decode_active_request_weight * each.requests
            costs.append(
                settings.prefill_load_scale * max(0.0, prefill) + tokens // size + requests
            )
        return costs


def costs_at(temperature: float, costs: Sequence[float]) -> list[float]:
    """Return the scores of costs at a temperature, as described at `DynamoCostScorer`."""
    least, most = min(costs), max(costs)
    if not temperature or least == most:
        return least_is_best(costs)
    return [exp((least - cost) / ((most - least) * temperature)) for cost in costs]


class _Held(NamedTuple):
    """A prompt of a request that is under way at an endpoint: the node that it ends at."""

    tenant: Tenant
    node: PrefixNode


class ActivePrompts:
    """The different blocks of the prompts of requests in flight at each endpoint.

    A prompt that another endpoint computes is held there too, until its first token.
    """

    def __init__(self, context: PluginContext) -> None:
        self._tree = PrefixTree()
        self._requests: dict[RequestId, list[_Held]] = {}
        self._prefills: dict[RequestId, list[_Held]] = {}
        self._counts: Counter[_Held] = Counter()
        kinds = (Admitted, FirstToken, Finished, Aborted, EndpointRemoved)
        context.subscribe(kinds, self._learn)

    def held(self, candidates: Candidates) -> list[int]:
        """Return the tokens that each candidate would hold with this request, in full blocks."""
        prompts = _prompts(candidates[0])
        return [self._with(prompts, each.endpoint.id) for each in candidates]

    def _with(
        self, prompts: Sequence[tuple[Sequence[BlockHash], Sequence[int]]], endpoint: EndpointId
    ) -> int:
        tokens = self._tree.length(endpoint)
        for hashes, ends in prompts:
            known = self._tree.blocks(hashes, endpoint)
            if known < len(hashes):
                tokens += ends[-1] - (ends[known - 1] if known else 0)
        return tokens

    def _learn(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Admitted):
            self._end(event.quote.request_id)
            self._requests[event.quote.request_id] = self._hold(event.quote, event.endpoint_id)
            if event.prefill_endpoint_id is not None:
                held = self._hold(event.quote, event.prefill_endpoint_id)
                self._prefills[event.quote.request_id] = held
        elif isinstance(event, FirstToken):
            self._release(self._prefills.pop(event.request_id, ()))
        elif isinstance(event, Finished | Aborted):
            self._end(event.request_id)
        elif isinstance(event, EndpointRemoved):
            self._tree.remove(event.endpoint_id)  # whose requests may end later

    def _hold(self, quote: Quote, endpoint: EndpointId) -> list[_Held]:
        tenant = self._tree.tenant(endpoint)
        held = [
            _Held(tenant, self._tree.insert(chain.hashes, offsets.ends, endpoint))
            for chain, offsets in zip(quote.chains, quote.token_offsets, strict=True)
        ]
        self._counts.update(held)
        return held

    def _end(self, request: RequestId) -> None:
        self._release(self._requests.pop(request, ()))
        self._release(self._prefills.pop(request, ()))

    def _release(self, held: Sequence[_Held]) -> None:
        for each in held:
            if self._counts[each] > 1:
                self._counts[each] -= 1
            else:
                del self._counts[each]
                self._tree.forget(each.node, each.tenant)


def _prompts(candidate: Candidate) -> list[tuple[Sequence[BlockHash], Sequence[int]]]:
    """Return the hashes of each prompt's full blocks, and where each ends, in tokens.

    In text, ends are estimated as if all tokens had equally many bytes.
    """
    size = sum(chain.size for chain in candidate.chains)
    return [
        (
            chain.hashes,
            chain.ends
            if chain.exact
            else [round(end * candidate.prompt_tokens / size) for end in chain.ends],
        )
        for chain in candidate.chains
    ]
