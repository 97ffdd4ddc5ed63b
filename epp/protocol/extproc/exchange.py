"""One ext_proc stream as a state machine: messages in, replies out.

The exchange knows what the protocol demands and when; it does not know how an endpoint is
chosen (it asks its director), how messages look on the wire, or what time it is. Rules, with
their source:

- Per direction, replies go out as headers, body, trailers; in full duplex the header reply may
  wait for the whole body (Envoy, `FULL_DUPLEX_STREAMED`; GIE proposal 004).
- The destination travels as one header and the same value in metadata; it is never set twice.
- The response phase is optional; a half-close after the request ends the exchange, and so may the
  picker itself where the response body is `STREAMED` (`epp.protocol.extproc.observation`).
- Nothing that a peer sends raises out of `receive`.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from epp.errors import RequestError
from epp.model.events import Aborted, Served
from epp.model.request import (
    Decision,
    Outcome,
    RequestId,
)
from epp.protocol.extproc.director import Director, Pending
from epp.protocol.extproc.ending import end_of, refused
from epp.protocol.extproc.errors import error_reply
from epp.protocol.extproc.messages import (
    BodyMode,
    HeadersReply,
    Message,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.protocol.extproc.observation import tie
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.request import Request
from epp.protocol.extproc.response import Response
from epp.protocol.extproc.settings import ExchangeSettings


class _Stage(Enum):
    """How far the request is."""

    HEADERS = "nothing seen"
    BODY = "collecting the body; nothing answered"
    PENDING = "the director has not decided"
    ANSWERED = "answered; what is left of the request passes by"
    CLOSED = "the exchange is over"


# Looked up once: docs/adr/0013-compiled.md says why.
_NONE: Final = BodyMode.NONE
_STREAMED: Final = BodyMode.STREAMED
_COMPLETED: Final = Outcome.COMPLETED
_UNOBSERVED: Final = Outcome.UNOBSERVED


class Exchange:
    """The picker's side of one stream. `record` is what is known of it so far."""

    __slots__ = (
        "_announced",
        "_director",
        "_half_closed",
        "_leaving",
        "_request",
        "_response",
        "_settings",
        "_stage",
        "_subset",
        "record",
    )

    def __init__(
        self, director: Director, settings: ExchangeSettings, request_id: RequestId, now: float
    ) -> None:
        self.record = RequestRecord(id=request_id, received_at=now)
        self._director = director
        self._settings = settings
        self._stage = _Stage.HEADERS
        self._announced = False
        self._subset: tuple[str, ...] | None = None
        self._request = Request(self.record, settings)
        self._half_closed = False
        self._leaving = False  # the response is left to the proxy once it has begun
        self._response = Response(self.record, director.observe, settings.header_sources)

    @property
    def pending(self) -> bool:
        """Whether a decision is awaited: somebody must call `resume`."""
        return self._stage is _Stage.PENDING

    @property
    def over(self) -> bool:
        """Whether everything has been said; later messages are ignored."""
        return self._stage is _Stage.CLOSED

    @property
    def has_more(self) -> bool:
        """Whether more of a long body is to follow: somebody must call `proceed`."""
        return self._request.has_more and self._stage is _Stage.ANSWERED

    @property
    def announced(self) -> bool:
        """Whether the proxy said what it would send: an earlier end is then a reset."""
        return self._announced

    # What a transport calls.

    def receive(self, message: Message, now: float) -> list[Reply]:
        """Take one message; return the replies that are due, in order."""
        if self._stage is _Stage.CLOSED:
            return []
        if message.modes is not None:
            self._request.modes, self._announced = message.modes, True
        if message.subset is not None:
            self._subset = message.subset
        if message.served is not None and self.record.served is None:
            self.record.served = message.served
            if self.record.decision is not None:
                self._director.observe(Served(self.record.id, message.served), now)
        try:
            return _HANDLERS[type(message)](self, message, now)
        except RequestError as error:
            return self.fail(error, now)

    def resume(self, outcome: Decision | RequestError, now: float) -> list[Reply]:
        """Continue where a pending decision left off; undo it when the exchange has ended."""
        if self._stage is not _Stage.PENDING:
            if isinstance(outcome, Decision):
                self._director.observe(Aborted(self.record.id, refused=True), now)
            return []
        if isinstance(outcome, RequestError):
            return self.fail(outcome, now)
        replies = self._answer(outcome, now)
        if self._half_closed:
            self.half_closed(now)
        return replies

    def proceed(self, now: float) -> list[Reply]:
        """Let more of a long body go on; called when the peer has read what came before."""
        if not self.has_more:
            return []
        replies = self._request.next_chunks()
        if self._half_closed:
            self.half_closed(now)
        return replies

    def fail(self, error: RequestError, now: float) -> list[Reply]:
        """Answer the client with an error in the model server's place."""
        if self._stage is _Stage.CLOSED:
            return []
        self.record.error = error
        answered = self.record.decision is not None
        self._settle(Outcome.ABORTED if answered else Outcome.REJECTED, now)
        return [error_reply(error)]

    def half_closed(self, now: float) -> None:
        """Take note that the peer sends no more; what it was not yet told is still to be said."""
        self._half_closed = True
        if self._stage is _Stage.PENDING or self.has_more:
            return
        if self.record.decision is None:
            self._settle(Outcome.ABORTED, now)
        else:
            self._settle(_COMPLETED if self._answered else _UNOBSERVED, now)

    def cancelled(self, now: float) -> None:
        """Take note that the peer is gone: client, proxy or model server broke off.

        Envoy resets every stream that it needs no more: where it shows no response body, a
        reset after the response's headers is how a good response ends.
        """
        self._settle(_COMPLETED if self._answered else Outcome.ABORTED, now)

    @property
    def _answered(self) -> bool:
        """Whether all that will be seen of a response has been."""
        return self.record.status is not None and self._request.modes.response is _NONE

    # The request.

    def _request_headers(self, message: RequestHeaders, now: float) -> list[Reply]:
        if self._stage is not _Stage.HEADERS:
            return []
        if self._request.headers(message):
            return self._decide(now)
        self._stage = _Stage.BODY
        return [] if self._request.duplex else [HeadersReply(response=False)]

    def _request_body(self, message: RequestBody, now: float) -> list[Reply]:
        if self._stage is _Stage.HEADERS:
            return []
        replies = self._request.body(message, answered=self._stage is _Stage.ANSWERED)
        due = self._stage is _Stage.BODY and self._request.complete
        return self._decide(now) if due else replies

    def _request_trailers(self, _: RequestTrailers, now: float) -> list[Reply]:
        if self._request.ended:
            return []
        replies = self._request.trailers(answered=self._stage is _Stage.ANSWERED)
        return self._decide(now) if self._stage is _Stage.BODY else replies

    def _decide(self, now: float) -> list[Reply]:
        lookup = self._request.read(self._subset)
        self.record.request = self._settings.resolve(lookup)
        self._stage = _Stage.PENDING
        decision = self._director.route(self.record.request, now)
        return [] if isinstance(decision, Pending) else self._answer(decision, now)

    def _answer(self, decision: Decision, now: float) -> list[Reply]:
        record = self.record
        record.decision = decision
        record.decided_at = now
        self._stage = _Stage.ANSWERED
        request, target = record.request, ""
        if request is not None:
            target = "" if request.model == request.target_model else request.target_model
            if self._settings.keep_body:
                record.request = msgspec.structs.replace(request, body=b"")
        return self._request.answer(decision, target)

    # The response.

    def _response_headers(self, message: ResponseHeaders, now: float) -> list[Reply]:
        replies = self._response.headers(message, now)
        if message.end_of_stream:
            self._settle(_COMPLETED, now)
        elif self._settings.leave:
            self.record.tie = tie(self._request.modes, announced=self._announced)
            self._leaving = self._may_leave()
        return replies

    def _may_leave(self) -> bool:
        """Whether the proxy goes on alone, with nothing left to edit or to learn but the end."""
        record = self.record
        if record.tie is not None or record.decision is None or refused(record):
            return False
        return self._request.modes.response is _STREAMED and self._response.streams

    def _response_body(self, message: ResponseBody, now: float) -> list[Reply]:
        replies = self._response.body(message, self._request.modes.response, now)
        if message.end_of_stream:
            self._settle(_COMPLETED, now)
        elif self._leaving and self.record.first_byte_at is not None:
            self._leave(now)
        return replies

    def _leave(self, now: float) -> None:
        """Leave the rest of the response to the proxy, which has all of the request."""
        if self._request.passed:
            self._settle(_COMPLETED if self._response.done else _UNOBSERVED, now)

    def _response_trailers(self, _: ResponseTrailers, now: float) -> list[Reply]:
        replies = self._response.trailers(self._request.modes.response)
        self._settle(_COMPLETED, now)
        return replies

    # The end.

    def _settle(self, outcome: Outcome, now: float) -> None:
        """End the exchange once: tell the fleet what became of the request, close the record."""
        if self._stage is _Stage.CLOSED:
            return
        self._stage = _Stage.CLOSED
        self._request.close()
        if outcome is not _UNOBSERVED:
            self._response.close()
        record = self.record
        if record.decision is None and self._request.begun and outcome is _COMPLETED:
            outcome = Outcome.ABORTED  # the proxy answered in everybody's place
        record.outcome = outcome
        record.finished_at = now
        if record.decision is not None:
            self._director.observe(end_of(record, outcome), now)
        self._director.close(record)


_HANDLERS: Final[dict[type[Message], Callable[[Exchange, Any, float], list[Reply]]]] = {
    RequestHeaders: Exchange._request_headers,  # noqa: SLF001 (the table of this class)
    RequestBody: Exchange._request_body,  # noqa: SLF001
    RequestTrailers: Exchange._request_trailers,  # noqa: SLF001
    ResponseHeaders: Exchange._response_headers,  # noqa: SLF001
    ResponseBody: Exchange._response_body,  # noqa: SLF001
    ResponseTrailers: Exchange._response_trailers,  # noqa: SLF001
}
