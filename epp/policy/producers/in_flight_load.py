"""The load in flight at each endpoint, with an estimate of the output still to come."""

from typing import Annotated

import msgspec

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import Event
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import Aborted, Finished, FirstToken
from epp.policy.attribute_sources import (
    FROM_FLEET,
    EndpointLoad,
    InFlightLoad,
    PrefixMatchInfo,
    find_producer,
)
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.effects import without_effect
from epp.policy.plugins import Candidates, PluginContext


class InFlightLoadProducer(BoundedParameters, frozen=True):
    """Counts requests and tokens under way.

    By default the tokens are the uncached ones of prompts without a first token, from the fleet's
    ledgers. With `add_estimated_output_tokens` a request counts, until it ends, with its uncached
    tokens and `output_ratio` times its prompt, at most the client's limit and
    `max_estimated_output_tokens`. If another endpoint computes the prompt, its uncached tokens
    count there, until the first token.
    """

    add_estimated_output_tokens: bool = False
    output_ratio: Annotated[float, at_least(0, "a ratio, such as 1.5")] = 1.5
    max_estimated_output_tokens: Annotated[int | None, at_least(0, "tokens, such as 1024")] = None
    prefix_match_info_producer_name: str = ""
    sync_cross_replica_state: Annotated[
        bool, without_effect("replicas tell each other of requests, which loads follow from")
    ] = True

    def start(self, context: PluginContext) -> InFlightLoad:
        """Return the fleet's ledgers, or what counts outputs too."""
        matches = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        if not self.add_estimated_output_tokens:
            return FROM_FLEET if matches is FROM_FLEET else _WithMatches(matches)
        counted = _WithOutput(self, matches)
        context.subscribe((FirstToken, Finished, Aborted), counted.on_event)
        return counted

    def output_tokens(self, request: InferenceRequest, prompt_tokens: int) -> int:
        """Return the estimated tokens of a response."""
        limits = (request.max_tokens, self.max_estimated_output_tokens)
        estimate = round(prompt_tokens * self.output_ratio)
        return min([estimate, *(limit for limit in limits if limit is not None)])


class _WithMatches(msgspec.Struct, frozen=True):
    """The fleet's ledgers, with another producer's prefix match of the request at hand."""

    matches: PrefixMatchInfo

    def in_flight(self, request: InferenceRequest, candidates: Candidates) -> list[EndpointLoad]:
        """Return one load for each candidate."""
        found = self.matches.prefix_matches(request, candidates)
        return [
            EndpointLoad(each.requests, each.in_flight_tokens, match.total - match.matched)
            for each, match in zip(candidates, found, strict=True)
        ]


class _WithOutput:
    """Tokens of requests until they end, their estimated output included."""

    def __init__(self, settings: InFlightLoadProducer, matches: PrefixMatchInfo) -> None:
        self._settings = settings
        self._matches = matches
        self._tokens: dict[EndpointId, int] = {}
        self._sent: dict[RequestId, dict[EndpointId, int]] = {}
        self._prefills: dict[RequestId, EndpointId] = {}

    def dump_state(self) -> dict[str, object]:
        """Return the tokens in flight of up to 100 endpoints, the most first."""
        most = sorted(self._tokens.items(), key=lambda each: (-each[1], each[0]))[:100]
        return {"requests": len(self._sent), "tokens": dict(most)}

    def in_flight(self, request: InferenceRequest, candidates: Candidates) -> list[EndpointLoad]:
        """Return one load for each candidate."""
        found = self._matches.prefix_matches(request, candidates)
        return [
            EndpointLoad(
                each.requests, self._tokens.get(each.endpoint.id, 0), match.total - match.matched
            )
            for each, match in zip(candidates, found, strict=True)
        ]

    def committed(self, request: InferenceRequest, decision: Decision, _: float) -> None:
        """Count a request's uncached and estimated tokens where they are computed."""
        self._drop(request.id)
        prompt, where = decision.prompt_tokens, decision.endpoint.id
        counted = {where: self._settings.output_tokens(request, prompt)}
        prefill = where if decision.prefill is None else decision.prefill.id
        uncached = prompt - decision.predicted_cached_tokens
        counted[prefill] = counted.get(prefill, 0) + uncached
        if prefill != where:
            self._prefills[request.id] = prefill
        self._sent[request.id] = counted
        for endpoint, tokens in counted.items():
            self._tokens[endpoint] = self._tokens.get(endpoint, 0) + tokens

    def on_event(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Count off a prefill at another endpoint, or a request."""
        if isinstance(event, FirstToken):
            prefill = self._prefills.pop(event.request_id, None)
            if prefill is not None:
                self._subtract(prefill, self._sent[event.request_id].pop(prefill, 0))
        elif isinstance(event, Finished | Aborted):
            self._drop(event.request_id)

    def _drop(self, request: RequestId) -> None:
        self._prefills.pop(request, None)
        for endpoint, tokens in self._sent.pop(request, {}).items():
            self._subtract(endpoint, tokens)

    def _subtract(self, endpoint: EndpointId, tokens: int) -> None:
        left = self._tokens.get(endpoint, 0) - tokens
        if left > 0:
            self._tokens[endpoint] = left
        else:
            self._tokens.pop(endpoint, None)
