"""What is under way at each endpoint, with an estimate of what is still to be generated."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from epp.model.candidate import Candidate
from epp.model.endpoint import EndpointId
from epp.model.events import Aborted, Event, Finished
from epp.model.request import Decision, InferenceRequest, RequestId
from epp.policy.effects import without_effect
from epp.policy.plugins import PluginContext
from epp.policy.producers import COLUMNS, EndpointLoad, InFlightLoad, PrefixMatchInfo
from epp.policy.producers import prefix_match_info as named_matches


class InFlightLoadProducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Counts requests and tokens under way.

    By default the tokens are the uncached ones of prompts whose first token was not seen, as the
    fleet's ledgers have them. With `add_estimated_output_tokens` a request counts its uncached
    tokens and `output_ratio` times its prompt, at most what the client allows and
    `max_estimated_output_tokens`, until it ends.
    """

    add_estimated_output_tokens: bool = False
    output_ratio: float = 1.5
    max_estimated_output_tokens: int | None = None
    prefix_match_info_producer_name: str = ""
    sync_cross_replica_state: Annotated[
        bool, without_effect("replicas of the picker share nothing yet")
    ] = True

    def __post_init__(self) -> None:
        if self.output_ratio < 0:
            raise ValueError("`outputRatio` is less than nothing")
        if (self.max_estimated_output_tokens or 0) < 0:
            raise ValueError("`maxEstimatedOutputTokens` is less than nothing")

    def start(self, context: PluginContext) -> InFlightLoad:
        """Return the fleet's ledgers, or what counts outputs too."""
        matches = named_matches(context, self.prefix_match_info_producer_name)
        if not self.add_estimated_output_tokens:
            return COLUMNS if matches is COLUMNS else _WithMatches(matches)
        counted = _WithOutput(self, matches)
        context.subscribe((Finished, Aborted), counted.ended)
        return counted

    def output_tokens(self, request: InferenceRequest, prompt_tokens: int) -> int:
        """Return the estimated tokens of a response."""
        limits = (request.max_tokens, self.max_estimated_output_tokens)
        estimate = round(prompt_tokens * self.output_ratio)
        return min([estimate, *(limit for limit in limits if limit is not None)])


class _WithMatches:
    """The fleet's ledgers; of the request at hand, what another producer says is cached."""

    def __init__(self, matches: PrefixMatchInfo) -> None:
        self._matches = matches

    def in_flight(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> list[EndpointLoad]:
        """Return one load for each candidate."""
        found = self._matches.prefix_matches(request, candidates)
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
        self._sent: dict[RequestId, tuple[EndpointId, int]] = {}

    def in_flight(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> list[EndpointLoad]:
        """Return one load for each candidate."""
        found = self._matches.prefix_matches(request, candidates)
        return [
            EndpointLoad(
                each.requests, self._tokens.get(each.endpoint.id, 0), match.total - match.matched
            )
            for each, match in zip(candidates, found, strict=True)
        ]

    def committed(self, request: InferenceRequest, decision: Decision, _: float) -> None:
        """Count a request's uncached and estimated tokens at its endpoint."""
        self._drop(request.id)
        where = decision.endpoint.id
        prompt = decision.prompt_tokens
        tokens = prompt - decision.predicted_cached_tokens
        tokens += self._settings.output_tokens(request, prompt)
        self._sent[request.id] = where, tokens
        self._tokens[where] = self._tokens.get(where, 0) + tokens

    def ended(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Count a request off."""
        if isinstance(event, Finished | Aborted):
            self._drop(event.request_id)

    def _drop(self, request: RequestId) -> None:
        where, tokens = self._sent.pop(request, (None, 0))
        if where is not None:
            left = self._tokens.get(where, 0) - tokens
            if left > 0:
                self._tokens[where] = left
            else:
                self._tokens.pop(where, None)
