"""The times of responses, from the fleet's events."""

from collections.abc import Callable
from typing import NamedTuple

from epp.model.endpoint import EndpointId
from epp.model.events import Event
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Admitted, Finished, FirstToken
from epp.policy.plugins import PluginContext


class FirstTokenSeen(NamedTuple):
    """The first token of a request came `seconds` after it was sent."""

    endpoint: EndpointId
    seconds: float


class ResponseSeen(NamedTuple):
    """A response of `tokens` has ended.

    `step` is the time of each after the first, in seconds; None if it was not seen.
    """

    endpoint: EndpointId
    tokens: int
    step: float | None


class Responses:
    """Reports responses that were observed, not those that are guessed or broken off.

    `listener` is called with the observation and the time in seconds.
    """

    def __init__(
        self,
        context: PluginContext,
        listener: Callable[[FirstTokenSeen | ResponseSeen, float], None],
    ) -> None:
        self._listener = listener
        # Where and when each request was sent; then when its first token came.
        self._sent: dict[RequestId, tuple[EndpointId, float]] = {}
        self._begun: dict[RequestId, tuple[EndpointId, float]] = {}
        context.subscribe((Admitted, FirstToken, Finished, Aborted), self._on_event)

    def __len__(self) -> int:
        return len(self._sent) + len(self._begun)

    def _on_event(self, event: Event, now: float, guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Admitted):
            self._begun.pop(event.quote.request_id, None)
            self._sent[event.quote.request_id] = event.endpoint_id, now
        elif isinstance(event, FirstToken):
            sent = self._sent.pop(event.request_id, None)
            if sent is not None and not guessed:
                self._begun[event.request_id] = sent[0], now
                self._listener(FirstTokenSeen(sent[0], now - sent[1]), now)
        elif isinstance(event, Finished | Aborted):
            sent = self._sent.pop(event.request_id, None)
            begun = self._begun.pop(event.request_id, None)
            if isinstance(event, Finished) and not guessed:
                self._finished(event, sent, begun, now)

    def _finished(
        self,
        event: Finished,
        sent: tuple[EndpointId, float] | None,
        begun: tuple[EndpointId, float] | None,
        now: float,
    ) -> None:
        tokens = event.usage.completion_tokens if event.usage else event.generated
        known = begun or sent
        if known is not None and tokens:
            step = (now - begun[1]) / (tokens - 1) if begun and tokens > 1 else None
            self._listener(ResponseSeen(known[0], tokens, step), now)
