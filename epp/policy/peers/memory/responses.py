"""The times of responses, from the fleet's events."""

from collections.abc import Callable

from epp.model.endpoint import EndpointId
from epp.model.events import Event
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Admitted, Finished, FirstToken
from epp.policy.plugins import PluginContext, when_removed

OnFirstToken = Callable[[EndpointId, float, float], None]
"""Called with an endpoint, the seconds until a request's first token came, and the time."""
OnResponse = Callable[[EndpointId, int, float | None, float], None]
"""Called with an endpoint, the tokens of a response that has ended, the seconds of each after the
first, None if they were not seen, and the time. Answers that are generated side by side count as
one of the mean length."""


class Responses:
    """Reports responses that were observed, not those that are guessed or broken off.

    Responses of endpoints that are gone are not reported.
    """

    def __init__(
        self,
        context: PluginContext,
        on_response: OnResponse,
        on_first_token: OnFirstToken = lambda _endpoint, _seconds, _now: None,
    ) -> None:
        self._on_response = on_response
        self._on_first_token = on_first_token
        # Where and when each request was sent; then when its first token came. And its answers.
        self._sent: dict[RequestId, tuple[EndpointId, float, int]] = {}
        self._begun: dict[RequestId, tuple[EndpointId, float, int]] = {}
        context.subscribe((Admitted, FirstToken, Finished, Aborted), self._on_event)
        when_removed(context.subscribe, self._forget)

    def __len__(self) -> int:
        return len(self._sent) + len(self._begun)

    def _forget(self, endpoint: EndpointId) -> None:
        for known in (self._sent, self._begun):
            for request in [each for each, (where, *_) in known.items() if where == endpoint]:
                del known[request]

    def _on_event(self, event: Event, now: float, guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Admitted):
            self._begun.pop(event.quote.request_id, None)
            answers = max(1, event.quote.answers)
            self._sent[event.quote.request_id] = event.endpoint_id, now, answers
        elif isinstance(event, FirstToken):
            sent = self._sent.pop(event.request_id, None)
            if sent is not None and not guessed:
                self._begun[event.request_id] = sent[0], now, sent[2]
                self._on_first_token(sent[0], now - sent[1], now)
        elif isinstance(event, Finished | Aborted):
            sent = self._sent.pop(event.request_id, None)
            begun = self._begun.pop(event.request_id, None)
            known = begun or sent
            if isinstance(event, Finished) and known is not None and not guessed:
                tokens = event.tokens // known[2]
                step = (now - begun[1]) / (tokens - 1) if begun and tokens > 1 else None
                if tokens:
                    self._on_response(known[0], tokens, step, now)
