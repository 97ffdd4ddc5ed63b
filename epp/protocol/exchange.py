"""One ext_proc stream as a state machine: messages in, replies out.

The exchange knows what the protocol demands and when; it does not know how an endpoint is
chosen (it asks its director), how messages look on the wire, or what time it is. Rules, with
their source:

- Per direction, replies go out as headers, body, trailers; in full duplex the header reply may
  wait for the whole body (Envoy, `FULL_DUPLEX_STREAMED`; GIE proposal 004).
- The destination travels as one header and the same value in metadata; it is never set twice.
- The response phase is optional; a half-close after the request ends the exchange, and so may the
  picker itself where the response body is `STREAMED` (`epp.protocol.observation`).
- Nothing that a peer sends raises out of `receive`.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from epp.errors import BodyTooLarge, MalformedRequest, RequestError
from epp.model.events import Aborted, Event, Finished, Served, Unobserved
from epp.model.request import (
    Api,
    Decision,
    Outcome,
    RequestId,
    RequestRecord,
)
from epp.protocol.body import Body
from epp.protocol.director import Director, Pending
from epp.protocol.envoy import error_reply
from epp.protocol.headers import RequestFacts, request_mutation
from epp.protocol.messages import (
    UNSEEN_BODIES,
    WHOLE_BODIES,
    BodyMode,
    BodyReply,
    HeadersReply,
    Message,
    Modes,
    Mutation,
    Reply,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
    onward,
)
from epp.protocol.observation import tie
from epp.protocol.openai import Parsed
from epp.protocol.response import Response
from epp.protocol.settings import ExchangeSettings

_CLIENT_ERROR = 400


class _Stage(Enum):
    """How far the request is."""

    HEADERS = "nothing seen"
    BODY = "collecting the body; nothing answered"
    PENDING = "the director has not decided"
    ANSWERED = "answered; what is left of the request passes by"
    CLOSED = "the exchange is over"


class Exchange:
    """The picker's side of one stream. `record` is what is known of it so far."""

    __slots__ = (
        "_announced",
        "_body",
        "_director",
        "_early",
        "_ended",
        "_facts",
        "_half_closed",
        "_leaving",
        "_modes",
        "_parsed",
        "_response",
        "_rest",
        "_settings",
        "_stage",
        "_subset",
        "_trailers",
        "record",
    )

    def __init__(
        self, director: Director, settings: ExchangeSettings, request_id: RequestId, now: float
    ) -> None:
        self.record = RequestRecord(id=request_id, received_at=now)
        self._director = director
        self._settings = settings
        self._stage = _Stage.HEADERS
        self._modes = Modes()
        self._announced = False
        self._subset: tuple[str, ...] | None = None
        self._facts = RequestFacts()
        self._parsed: Parsed | None = None
        self._body: Body | None = None  # while it is to be read
        self._rest: list[bytes] = []  # pieces of it that are to go on
        self._early = False  # decided at the headers, the body unseen
        self._ended = False  # the request's end was seen
        self._trailers = False  # ... and it was trailers
        self._half_closed = False
        self._leaving = False  # the response is left to the proxy once it has begun
        self._response = Response(
            self.record, director.observe, show_decision=settings.show_decision
        )

    @property
    def pending(self) -> bool:
        """Whether a decision is awaited: somebody must call `resume`."""
        return self._stage is _Stage.PENDING

    @property
    def over(self) -> bool:
        """Whether everything has been said; later messages are ignored."""
        return self._stage is _Stage.CLOSED

    @property
    def unsaid(self) -> bool:
        """Whether more of a long body is to follow: somebody must call `proceed`."""
        return bool(self._rest) and self._stage is _Stage.ANSWERED

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
            self._modes, self._announced = message.modes, True
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
        if not self.unsaid:
            return []
        replies = self._onward()
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
        if self._stage is _Stage.PENDING or self.unsaid:
            return
        if self.record.decision is None:
            self._settle(Outcome.ABORTED, now)
        else:
            self._settle(Outcome.COMPLETED if self._answered else Outcome.UNOBSERVED, now)

    def cancelled(self, now: float) -> None:
        """Take note that the peer is gone: client, proxy or model server broke off.

        Envoy resets every stream that it needs no more: where it shows no response body, a
        reset after the response's headers is how a good response ends.
        """
        self._settle(Outcome.COMPLETED if self._answered else Outcome.ABORTED, now)

    @property
    def _answered(self) -> bool:
        """Whether all that will be seen of a response has been."""
        return self.record.status is not None and self._modes.response is BodyMode.NONE

    # The request.

    def _request_headers(self, message: RequestHeaders, now: float) -> list[Reply]:
        if self._stage is not _Stage.HEADERS:
            return []
        self._facts = RequestFacts.of(message.headers)
        if message.end_of_stream:
            if self._facts.api is not Api.OTHER and self._facts.method == "POST":
                raise MalformedRequest("the body is empty; JSON is expected", reason="empty-body")
            self._ended = True
        opaque = self._duplex and self._facts.api is Api.OTHER
        if message.end_of_stream or opaque or self._modes.request in UNSEEN_BODIES:
            self._early = True
            return self._decide(now)
        self._stage = _Stage.BODY
        self._body = Body(self._facts.api)
        return [] if self._duplex else [HeadersReply(response=False)]

    @property
    def _duplex(self) -> bool:
        return self._modes.request is BodyMode.FULL_DUPLEX_STREAMED

    def _request_body(self, message: RequestBody, now: float) -> list[Reply]:
        if self._ended or self._stage is _Stage.HEADERS:
            return []  # Envoy 1.35-1.37 ends a long body twice
        self.record.request_bytes += len(message.body)
        self._ended = message.end_of_stream
        if self._stage is _Stage.ANSWERED:
            self._rest.append(message.body)
            return self._onward() if len(self._rest) == 1 else []
        if self.record.request_bytes > self._settings.max_body_bytes:
            limit = self._settings.max_body_bytes
            raise BodyTooLarge(f"the body is larger than {limit} bytes, the picker's limit")
        if self._body is None:
            self._rest.append(message.body)
            return []
        self._body.feed(message.body)
        complete = self._ended or self._modes.request in WHOLE_BODIES
        return self._decide(now) if complete and self._stage is _Stage.BODY else []

    def _request_trailers(self, _: RequestTrailers, now: float) -> list[Reply]:
        if self._ended:
            return []
        self._ended = self._trailers = True
        if self._stage is _Stage.BODY:
            return self._decide(now)
        answered = self._stage is _Stage.ANSWERED and not self._rest
        return [TrailersReply(response=False)] if answered else []

    def _decide(self, now: float) -> list[Reply]:
        facts, kept = self._facts, b""
        if self._body is not None:
            self._rest = self._body.pieces
            self._parsed = self._parse(self._body)
            if self._parsed is not None and self._settings.keep_body:
                kept = self._body.whole()
        asked = facts.request(self.record.id, self._parsed, self._subset, kept)
        self.record.request = self._settings.resolve(asked)
        self._stage = _Stage.PENDING
        decision = self._director.route(self.record.request, now)
        return [] if isinstance(decision, Pending) else self._answer(decision, now)

    def _parse(self, body: Body) -> Parsed | None:
        if self._facts.api is Api.OTHER:
            return None
        try:
            return body.parse()
        except MalformedRequest:
            if self._modes.request is BodyMode.BUFFERED_PARTIAL:
                return None  # the proxy cut it, not the client
            raise

    def _answer(self, decision: Decision, now: float) -> list[Reply]:
        self.record.decision = decision
        self.record.decided_at = now
        self._stage = _Stage.ANSWERED
        if self._settings.keep_body and self.record.request is not None:
            self.record.request = msgspec.structs.replace(self.record.request, body=b"")
        length = self._rewrite()
        mutation = request_mutation(
            self._facts,
            decision,
            self.record.id,
            orca=self._settings.request_orca,
            content_length=length,
        )
        if not self._duplex and not self._early:
            return self._let_go(mutation, renamed=length is not None)
        replies: list[Reply] = [HeadersReply(response=False, mutation=mutation)]
        if self._rest:
            return replies + self._onward()
        return [*replies, TrailersReply(response=False)] if self._trailers else replies

    def _rewrite(self) -> int | None:
        """Put the target model into the held body; return its new length where that changed it."""
        body, self._body = self._body, None
        request = self.record.request
        if request is None or self._parsed is None or request.model == request.target_model:
            return None
        if body is not None:
            self._rest = body.renamed(request.target_model)
        return sum(map(len, self._rest))

    def _let_go(self, mutation: Mutation, *, renamed: bool) -> list[Reply]:
        """Answer a body that the proxy holds whole."""
        pieces, self._rest = self._rest, []
        if renamed:
            mutation = msgspec.structs.replace(mutation, body=b"".join(pieces))
        replies: list[Reply] = [BodyReply(response=False, mutation=mutation)]
        return [*replies, TrailersReply(response=False)] if self._trailers else replies

    def _onward(self) -> list[Reply]:
        """Let the pieces that are held go on, as many as are taken at once."""
        pieces = self._rest
        if not self._duplex:
            self._rest = []
            return [BodyReply(response=False) for _ in pieces]
        replies, self._rest = onward(pieces, last=self._ended and not self._trailers)
        if self._trailers and not self._rest:
            replies.append(TrailersReply(response=False))
        return replies

    # The response.

    def _response_headers(self, message: ResponseHeaders, now: float) -> list[Reply]:
        replies = self._response.headers(message, now)
        if message.end_of_stream:
            self._settle(Outcome.COMPLETED, now)
        elif self._settings.leave:
            self.record.tie = tie(self._modes, announced=self._announced)
            self._leaving = self._may_leave()
        return replies

    def _may_leave(self) -> bool:
        """Whether the proxy goes on alone, with nothing left to edit or to learn but the end."""
        record = self.record
        if record.tie is not None or record.decision is None or _refused(record):
            return False
        return self._modes.response is BodyMode.STREAMED and self._response.streams

    def _response_body(self, message: ResponseBody, now: float) -> list[Reply]:
        replies = self._response.body(message, self._modes.response, now)
        if message.end_of_stream:
            self._settle(Outcome.COMPLETED, now)
        elif self._leaving and self.record.first_byte_at is not None:
            self._leave(now)
        return replies

    def _leave(self, now: float) -> None:
        """Leave the rest of the response to the proxy, which has all of the request."""
        if (self._ended and not self._rest) or not self._duplex:
            self._settle(Outcome.COMPLETED if self._response.done else Outcome.UNOBSERVED, now)

    def _response_trailers(self, _: ResponseTrailers, now: float) -> list[Reply]:
        replies = self._response.trailers(self._modes.response)
        self._settle(Outcome.COMPLETED, now)
        return replies

    # The end.

    def _settle(self, outcome: Outcome, now: float) -> None:
        """End the exchange once: tell the fleet what became of the request, close the record."""
        if self._stage is _Stage.CLOSED:
            return
        self._stage = _Stage.CLOSED
        self._body, self._rest = None, []
        if outcome is not Outcome.UNOBSERVED:
            self._response.close()
        record = self.record
        if record.decision is None and self._facts.method and outcome is Outcome.COMPLETED:
            outcome = Outcome.ABORTED  # the proxy answered in everybody's place
        record.outcome = outcome
        record.finished_at = now
        if record.decision is not None:
            self._director.observe(_end_of(record, outcome), now)
        self._director.close(record)


def _refused(record: RequestRecord) -> bool:
    return record.status is not None and record.status >= _CLIENT_ERROR


def _end_of(record: RequestRecord, outcome: Outcome) -> Event:
    generated = record.response_chunks if record.streaming else 0
    if _refused(record):
        return Aborted(record.id, refused=True)
    if outcome is Outcome.COMPLETED:
        return Finished(record.id, record.usage, generated)
    if outcome is Outcome.UNOBSERVED:
        return Unobserved(record.id)
    return Aborted(record.id, generated)


_HANDLERS: dict[type[Message], Callable[[Exchange, Any, float], list[Reply]]] = {
    RequestHeaders: Exchange._request_headers,  # noqa: SLF001 (the table of this class)
    RequestBody: Exchange._request_body,  # noqa: SLF001
    RequestTrailers: Exchange._request_trailers,  # noqa: SLF001
    ResponseHeaders: Exchange._response_headers,  # noqa: SLF001
    ResponseBody: Exchange._response_body,  # noqa: SLF001
    ResponseTrailers: Exchange._response_trailers,  # noqa: SLF001
}
