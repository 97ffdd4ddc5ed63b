"""One ext_proc stream as a state machine: messages in, replies out.

The exchange implements the protocol; it does not choose endpoints (its director does), encode
messages, or read the clock. Every call returns a `Step`: the replies that are due, and what the
exchange waits for. Rules, with their source:

- Per direction, replies go out as headers, body, trailers; in full duplex the header reply may
  wait for the whole body (Envoy, `FULL_DUPLEX_STREAMED`; GIE proposal 004).
- The destination travels as one header and the same value in metadata; it is never set twice.
- The response phase is optional; a half-close after the request ends the exchange, and so may the
  picker itself if the response body is `STREAMED` (`epp.protocol.extproc.observation`).
- `receive` does not raise, whatever a peer sends.

What each stage accepts, and the stages that follow (after an error always closed):

    stage      request headers             request body                         request trailers
    headers    body, pending or answered   closed                               closed
    body       ignored                     body, reading, pending or answered   pending or answered
    reading    ignored                     reading                              reading
    pending    ignored                     pending                              pending
    answered   ignored                     answered                             answered
    closed     ignored                     ignored                              ignored

Messages of the response are accepted in every stage but closed. They lead to closed at the
response's end, or if the proxy passes on the rest alone. Reading takes a turn for each part of a
long piece, then leads to body, pending or answered (`proceed`); pending leads to answered
(`resume`). In both, response headers lead to answered: the proxy answers, no decision is due.
"""

from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import mypyc_attr

from epp.errors import RequestError
from epp.model.decision import Decision
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Served
from epp.protocol.extproc.director import Director, PendingDecision
from epp.protocol.extproc.errors import UNDECIDABLE, error_reply, models_reply
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
from epp.protocol.extproc.observation import must_stay_reason
from epp.protocol.extproc.record import Outcome, RequestRecord
from epp.protocol.extproc.request import Request
from epp.protocol.extproc.response import Response, was_retried
from epp.protocol.extproc.settings import ExchangeSettings
from epp.protocol.extproc.step import Step, Wants

# Looked up once: docs/adr/0013-compiled.md says why.
_NONE: Final = BodyMode.NONE
_ABORTED: Final = Outcome.ABORTED
_COMPLETED: Final = Outcome.COMPLETED
_UNOBSERVED: Final = Outcome.UNOBSERVED
_ROOM: Final = Wants.ROOM
_SWITCHING: Final = 101
"""Switching Protocols (RFC 9110 §15.2.2): the connection is a websocket's."""


class Stage:
    """A row of the table: the progress of the request, and the messages that are accepted then.

    `wants` goes with the replies of a step that ends in this stage, `idle` is such a step without
    replies. Messages of types that are not in `accepts` are ignored.
    """

    def __init__(self, name: str, wants: Wants, accepts: dict[type[Message], "Handler"]) -> None:
        self.name = name
        self.wants = wants
        self.idle = Step([], wants)
        self.accepts = accepts


@mypyc_attr(free_list_len=1)
class Exchange:
    """The picker's side of one stream. `record` has the facts that are known so far.

    `pending` is the awaited decision, None in every stage but pending; `response` is for drivers
    that see tokens, not bytes. Times (`now`) are in seconds of the monotonic clock.
    """

    def __init__(
        self, director: Director, settings: ExchangeSettings, request_id: RequestId, now: float
    ) -> None:
        self.record = RequestRecord(request_id, now)
        self.pending: PendingDecision | None = None
        self._director = director
        self._settings = settings
        self._stage = HEADERS
        self._announced = False  # the proxy announced its body modes
        self._subset: tuple[str, ...] | None = None
        self._request = Request(self.record, settings)
        self._half_closed = False
        self._ends_early = False  # the proxy passes the response on alone once it has begun
        self.response = Response(self.record, director.observe, settings)

    # What a driver calls.

    def receive(self, message: Message, now: float) -> Step:
        """Handle a message, in any stage."""
        if message.modes is not None or message.subset is not None or message.served is not None:
            self._record_extras(message, now)
        handler = self._stage.accepts.get(type(message))
        try:
            return self._step([] if handler is None else handler(self, message, now))
        except RequestError as error:
            return self.fail(error, now)

    def resume(self, outcome: Decision | RequestError, now: float) -> Step:
        """Continue with the decision that was pending; undo it if the exchange has ended."""
        if self._stage is not PENDING:
            if isinstance(outcome, Decision):
                self._director.observe(Aborted(self.record.id, refused=True), now)
            return self._step([])
        self.pending = None
        if isinstance(outcome, RequestError):
            return self.fail(outcome, now)
        if outcome.waited is not None:
            self.response.show_wait()
        return self._resumed(self._answer(outcome, now), now)

    def proceed(self, now: float) -> Step:
        """Continue with a long body: read more of it, or send more if the peer has read some."""
        if self._stage is READING:
            return self._read_on(now)
        if self._stage is not ANSWERED or not self._request.unsent:
            return self._step([])
        return self._resumed(self._request.next_chunks(), now)

    def fail(self, error: RequestError, now: float) -> Step:
        """Answer the client with an error in the model server's place."""
        if self._stage is CLOSED:
            return CLOSED.idle
        self.record.error = error
        answered = self.record.decision is not None
        self._end(_ABORTED if answered else Outcome.REJECTED, now)
        return self._step([error_reply(error)])

    def half_closed(self, now: float) -> Step:
        """Handle a half-close: the peer sends no more, but still gets the replies that are due.

        Wants `NEXT` if a reset may follow a moment later: Envoy, which announces its modes, resets
        a stream that it gives up. A second call means that no reset came.
        """
        waited, self._half_closed = self._half_closed, True
        if self._stage in _BETWEEN or self._request.unsent:
            return self._step([])
        if waited or not self._announced:
            self._end_half_closed(now)
        return self._step([])

    def cancelled(self, now: float) -> Step:
        """Handle a reset of the stream: client, proxy or model server broke off.

        Envoy resets every stream that it no longer needs. If it shows no response body, a good
        response ends with a reset after its headers. If it does not show these either, it resets
        the stream once it has the request. If its client has left, it half-closes first.
        """
        unshown = not self._half_closed and self._request.unshown
        outcome = _UNOBSERVED if unshown else _ABORTED
        self._end(_COMPLETED if self._response_shown else outcome, now)
        return CLOSED.idle

    @property
    def held_bytes(self) -> int:
        """How many bytes of the request's body are held."""
        if self._stage is CLOSED:
            return 0
        answered = self._stage is ANSWERED
        return self._request.unsent_bytes if answered else self.record.request_bytes

    @property
    def awaits_request(self) -> bool:
        """Whether the peer must send more of the request before a decision."""
        return self.record.status is None and self._stage in _BEFORE

    # The parts of it.

    def _step(self, replies: list[Reply]) -> Step:
        stage = self._stage
        if stage is ANSWERED and self._request.unsent:
            return Step(replies, _ROOM)
        return Step(replies, stage.wants) if replies else stage.idle

    def _resumed(self, replies: list[Reply], now: float) -> Step:
        """End an exchange that was half-closed while it waited, unless a reset may follow."""
        if self._half_closed and not self._announced and not self._request.unsent:
            self._end_half_closed(now)
        return self._step(replies)

    def _record_extras(self, message: Message, now: float) -> None:
        """Record what any message may carry, ignored ones too. The first target served counts."""
        if self._stage is CLOSED:
            return
        if message.modes is not None:
            self._request.modes, self._announced = message.modes, True
        if message.subset is not None:
            self._subset = message.subset
        if message.served is not None and self.record.served is None:
            self.record.served = message.served
            if (decision := self.record.decision) is not None:
                served = decision.served_at(message.served)
                retried = served != decision.endpoint.target and was_retried(message)
                self._director.observe(Served(self.record.id, served, retried=retried), now)

    @property
    def _response_shown(self) -> bool:
        """Whether the response was seen as far as the proxy shows it.

        A websocket's frames say that it ends (RFC 6455 §5.5.1); the proxy resets the stream.
        """
        status = self.record.status
        shown = self._request.modes.response is _NONE or self.response.ended
        return status == _SWITCHING or (shown and status is not None)

    # The request.

    def _request_headers(self, message: RequestHeaders, now: float) -> list[Reply]:
        request = self._request
        if request.headers(message):
            list_models = self._settings.list_models
            if list_models is not None and request.facts.asks_for_models:
                reply = models_reply(list_models())
                self._end(Outcome.ANSWERED, now)
                return [reply]
            return self._decide(now)
        self._stage = BODY
        # Envoy: only `FULL_DUPLEX_STREAMED` sends a body before its headers are answered.
        return [] if request.duplex else [HeadersReply(response=False)]

    def _request_body(self, message: RequestBody, now: float) -> list[Reply]:
        complete = self._request.collect(message)
        if self._request.unread:
            self._stage = READING
            return []
        return self._decide(now) if complete else []

    def _request_trailers(self, _: RequestTrailers, now: float) -> list[Reply]:
        self._request.end_with_trailers()
        return self._decide(now)

    def _read_on(self, now: float) -> Step:
        request = self._request
        request.read_on()
        if request.unread:
            return READING.idle
        self._stage = BODY
        if not request.complete:
            return BODY.idle
        try:
            replies = self._decide(now)
        except RequestError as error:
            return self.fail(error, now)
        return self._step(replies) if self._stage is PENDING else self._resumed(replies, now)

    def _decide(self, now: float) -> list[Reply]:
        request = self._request.read(self._subset)
        if self._request.hold(request):
            return []
        self.record.request, self.record.read_at = request, now
        self._stage = PENDING
        decision = self._director.route(request, now)
        if isinstance(decision, PendingDecision):
            self.pending = decision
            self.record.request = request.without_text()
            return []
        return self._answer(decision, now)

    def _hold_body(self, message: RequestBody, _: float) -> list[Reply]:
        self._request.collect(message)
        return []

    def _hold_trailers(self, _: RequestTrailers, __: float) -> list[Reply]:
        self._request.end_with_trailers()
        return []

    def _answer(self, decision: Decision, now: float) -> list[Reply]:
        record = self.record
        record.decision, record.decided_at = decision, now
        self._stage = ANSWERED
        request, target, priority = record.request, "", 0
        if request is not None:
            target = "" if request.model == request.target_model else request.target_model
            priority = request.priority
            record.request = request.without_text()
        return self._request.answer(decision, target, priority)

    def _pass_body(self, message: RequestBody, _: float) -> list[Reply]:
        return self._request.pass_on(message)

    def _pass_trailers(self, _: RequestTrailers, __: float) -> list[Reply]:
        return self._request.pass_trailers()

    # The response.

    def _response_headers(self, message: ResponseHeaders, now: float) -> list[Reply]:
        if self._stage in _BETWEEN:
            self._stage, self.pending = ANSWERED, None
            self._request.drop_body()
        replies = self.response.headers(message, now)
        if message.end_of_stream:
            self._end(_COMPLETED, now)
        elif self._settings.end_early:
            self.record.must_stay = must_stay_reason(self._request.modes, announced=self._announced)
            self._ends_early = self.response.may_end_early(self._request.modes.response)
        return replies

    def _response_body(self, message: ResponseBody, now: float) -> list[Reply]:
        replies = self.response.body(message, self._request.modes.response, now)
        if message.end_of_stream:
            self._end(_COMPLETED, now)
        elif self._ends_early and self.record.first_byte_at is not None and self._request.passed:
            # Envoy 1.40: with all of the request, the proxy continues alone after a good status.
            self._ends_early = False
            if not self._director.needs_end(self.record, now):
                self._end(_COMPLETED if self.response.done else _UNOBSERVED, now)
        return replies

    def _response_trailers(self, _: ResponseTrailers, now: float) -> list[Reply]:
        replies = self.response.trailers(self._request.modes.response)
        self._end(_COMPLETED, now)
        return replies

    # The end.

    def _end_half_closed(self, now: float) -> None:
        if self.record.decision is None:
            self._end(_ABORTED, now)
        else:
            self._end(_COMPLETED if self._response_shown else _UNOBSERVED, now)

    def _end(self, outcome: Outcome, now: float) -> None:
        """End the exchange once: report the request's end to the director, complete the record."""
        if self._stage is CLOSED:
            return
        self._stage, self.pending = CLOSED, None
        self._request.drop_body()
        try:
            if outcome is not _UNOBSERVED:
                self.response.record_usage()
        finally:  # no error in a response may prevent the release of its request
            event = self.record.end(outcome, now, begun=bool(self._request.facts.method))
            try:
                if event is not None:
                    self._director.observe(event, now)
            finally:
                self._director.exchange_ended(self.record)


Handler = Callable[[Exchange, Any, float], list[Reply]]

# The table of the module's docstring. It stands below the methods that it names.
_RESPONSE: Final[dict[type[Message], Handler]] = {
    ResponseHeaders: Exchange._response_headers,  # noqa: SLF001 (the table of this class)
    ResponseBody: Exchange._response_body,  # noqa: SLF001
    ResponseTrailers: Exchange._response_trailers,  # noqa: SLF001
}
HEADERS: Final = Stage(
    "headers",
    Wants.NEXT,
    {RequestHeaders: Exchange._request_headers, **UNDECIDABLE, **_RESPONSE},  # noqa: SLF001
)
BODY: Final = Stage(
    "body",
    Wants.REST,
    {
        RequestBody: Exchange._request_body,  # noqa: SLF001
        RequestTrailers: Exchange._request_trailers,  # noqa: SLF001
        **_RESPONSE,
    },
)
_HOLD: Final[dict[type[Message], Handler]] = {
    RequestBody: Exchange._hold_body,  # noqa: SLF001
    RequestTrailers: Exchange._hold_trailers,  # noqa: SLF001
    **_RESPONSE,
}
READING: Final = Stage("reading", Wants.TURN, _HOLD)
PENDING: Final = Stage("pending", Wants.DECISION, _HOLD)
_BEFORE: Final = (HEADERS, BODY, READING)
_BETWEEN: Final = (READING, PENDING)
ANSWERED: Final = Stage(
    "answered",
    Wants.NEXT,  # ROOM while a part of a long body is unsent
    {
        RequestBody: Exchange._pass_body,  # noqa: SLF001
        RequestTrailers: Exchange._pass_trailers,  # noqa: SLF001
        **_RESPONSE,
    },
)
CLOSED: Final = Stage("closed", Wants.END, {})
