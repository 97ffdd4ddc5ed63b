"""The request half of an exchange: reads the request, and passes it on to the model server.

The body is held until the decision, then it passes on. The mode in which the proxy sends the body
determines when the decision is made, and how the proxy is then answered:

    body mode               decided at     answered with
    NONE                    the head       HeadersReply
    STREAMED                the head       HeadersReply
    BUFFERED                a piece        BodyReply
    BUFFERED_PARTIAL        a piece        BodyReply
    FULL_DUPLEX_STREAMED    the end        HeadersReply, Chunk
    GRPC                    the head       HeadersReply

In every mode the head decides if no body is to be read: there is none, no parser reads its path, or
a websocket's frames follow. In full duplex the picker sends the body on itself, no faster than the
proxy reads, and need not wait for the end of a very long prompt (`Body.enough`). But if a model's
name or a priority must be written into the body, it is held to its end, since a server reads the
last value in it.
"""

from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.errors import BodyTooLarge, MalformedRequest, UnsupportedCoding
from epp.model.decision import Decision
from epp.model.request import Api, InferenceRequest
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.body_reader import BodyData, add_piece
from epp.protocol.bodies.parsed import Parsed
from epp.protocol.bodies.request_json import LONGEST_PROMPT, check_without_model
from epp.protocol.extproc.headers import (
    BEFORE_HEADERS,
    RequestFacts,
    content_coding,
    engine_priority,
    request_mutation,
)
from epp.protocol.extproc.messages import (
    UNSEEN_BODIES,
    WHOLE_BODIES,
    BodyMode,
    BodyReply,
    HeadersReply,
    Modes,
    Mutation,
    Reply,
    RequestBody,
    RequestHeaders,
    TrailersReply,
    next_chunks,
)
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings
from epp.values import replaced

_DIGITS: Final = 18
"""The most digits of a length that is read: an exabyte."""

# Looked up once: docs/adr/0013-compiled.md says why.
_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_NONE: Final = BodyMode.NONE
_PARTIAL: Final = BodyMode.BUFFERED_PARTIAL
_OTHER: Final = Api.OTHER
_RESPONSES: Final = Api.RESPONSES


@mypyc_attr(free_list_len=1)
class Request:
    """One request as it passes. Its facts go into `record`.

    An exchange calls `headers`, then `collect` and `read_on` until it is `complete`, then `read`
    and `answer`; from then on `pass_on`, `pass_trailers` and `next_chunks`. `facts` are those of
    the head. `modes` are those that the proxy announced, or the defaults. `ended`: the end was
    seen. `complete`: nothing more comes before the decision. `unsent` has the pieces of the body
    that must be sent on. Once the request is answered, these wait until the proxy has read earlier
    pieces.
    """

    def __init__(self, record: RequestRecord, settings: ExchangeSettings) -> None:
        self.facts: RequestFacts = BEFORE_HEADERS
        self.modes = Modes()
        self.ended = False
        self.complete = False
        self.unsent: list[BodyData] = []
        self._record = record
        self._settings = settings
        self._body: Body | None = None  # as long as it must be read, or may be edited
        self._early = False  # decided at the headers, the body unseen
        self._held = settings.propagate_priority  # hold the body to its end, to edit it
        self._trailed = False  # the end was trailers

    @property
    def duplex(self) -> bool:
        """Whether the picker itself sends the body on."""
        return self.modes.request is _DUPLEX

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of the body must be sent on."""
        return sum(map(len, self.unsent))

    @property
    def unread(self) -> bool:
        """Whether `read_on` must be called before the request is read."""
        return self._body is not None and self._body.unread

    @property
    def passed(self) -> bool:
        """Whether the model server has the whole request, or gets the rest without the picker."""
        return (self.ended and not self.unsent) or not self.duplex

    @property
    def unshown(self) -> bool:
        """Whether it was sent, and the proxy does not show its response's body."""
        sent = self._record.decision is not None and self.passed
        return sent and self.modes.response is _NONE

    # Before the decision.

    def headers(self, message: RequestHeaders) -> bool:
        """Handle the head; return whether the decision can be made without a body.

        Raises `MalformedRequest` if a body is missing or no parser reads it, `BodyTooLarge`, and
        `UnsupportedCoding` if it is compressed.
        """
        self.facts = facts = RequestFacts.of(message.headers, self._settings.apis)
        api = facts.api or _OTHER
        opaque = api is _OTHER
        if message.end_of_stream:
            if not opaque and facts.method == "POST":
                raise MalformedRequest("the body is empty; JSON is expected", reason="empty-body")
            self.ended = True
        elif facts.api is None:
            raise MalformedRequest("no parser reads requests to this path", reason="unknown-path")
        self._early = message.end_of_stream or opaque
        if not self._early and self.modes.request in UNSEEN_BODIES:
            self._early = True
            if self._settings.on_unseen_body is not None:
                self._settings.on_unseen_body(self.modes.request)
        if facts.method == "GET" and facts.headers.get("upgrade", "").lower() == "websocket":
            self._early = True  # RFC 6455 §4.1: frames follow, and only once the server agrees
        if not self._early:
            self._check_body(facts.headers)
            self._body = Body(api)
        return self._early

    def _check_body(self, headers: dict[str, str]) -> None:
        if "content-encoding" in headers and (coding := content_coding(headers)):
            problem = f"content-encoding {coding[:20]!r} is not supported; send the JSON as it is"
            raise UnsupportedCoding(problem)
        # Envoy: with `BUFFERED_PARTIAL` the picker gets only the beginning of the body.
        whole = self.modes.request is not _PARTIAL
        if whole and (_length(headers) or 0) > self._settings.max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> BodyTooLarge:
        limit = self._settings.max_body_bytes
        return BodyTooLarge(f"the body is larger than {limit} bytes, the picker's limit")

    def collect(self, message: RequestBody) -> bool:
        """Hold a piece of the body; return whether that is all before a decision.

        Raises `BodyTooLarge`.
        """
        if self.ended:
            return False
        record, body = self._record, message.body
        record.request_bytes += len(body)
        if record.request_bytes > self._settings.max_body_bytes and not self._early:
            raise self._too_large()
        if self._body is not None:
            self._body.feed(body)
        elif self.duplex:
            add_piece(self.unsent, body)
        else:
            self.unsent.append(body)  # each is answered
        self.ended = message.end_of_stream
        # Envoy: a buffered body comes as one message, without an end if trailers follow.
        self.complete = self.ended or self.modes.request in WHOLE_BODIES
        if not self.complete and record.request_bytes > LONGEST_PROMPT:
            self.complete = self._enough()
        return self.complete

    def _enough(self) -> bool:
        """Whether the picker has seen enough, and passes the rest on as it comes."""
        return self.duplex and not self._held and self._body is not None and self._body.enough

    def read_on(self) -> None:
        """Read the next part of a long body."""
        if self._body is not None:
            self._body.read_on()

    def hold(self, request: InferenceRequest) -> bool:
        """Return whether a request that was read must be read again with its end, to be edited."""
        if self.ended or not self.duplex or request.target_model == request.model:
            return False
        self._held, self.complete, self.unsent = True, False, []
        return True

    def end_with_trailers(self) -> None:
        """Record that the request ends with trailers."""
        if not self.ended:
            self.ended = self.complete = self._trailed = True

    def read(self, subset: tuple[str, ...] | None) -> InferenceRequest:
        """Return the request as routing needs it, once it is complete.

        Raises `MalformedRequest`, also if there is no model although the API needs one.
        """
        kept, parsed = b"", None
        if self._body is not None:
            self.unsent = self._body.pieces
            parsed = self._parse(self._body)
            if parsed is not None and self._settings.keep_body and self.ended:
                kept = self._body.whole()
        most_wait = inf if self.duplex else self._settings.most_wait
        earlier, api = "", self.facts.api or _OTHER
        if api is _RESPONSES or api is _OTHER:
            earlier = self._earlier_response(api)
        request = self.facts.request(self._record, parsed, subset, kept, most_wait, earlier)
        if (resolve := self._settings.resolve) is not None:
            request = resolve(request)
        if parsed is None:
            self._body = None  # it cannot be edited
            if request.target_model:
                request = replaced(request, target_model="", rewrite="")
        elif not request.target_model:
            check_without_model(request.api)
        return request

    def _earlier_response(self, api: Api) -> str:
        """Return the id of the response that it continues, or is about; empty without one."""
        if api is _OTHER:
            return self.facts.response_id()
        if self._body is None or self._record.request_bytes > LONGEST_PROMPT:
            return ""
        from epp.protocol.response_ids import previous_id  # noqa: PLC0415 (see `response_id`)

        return previous_id(self._body.whole())

    def _parse(self, body: Body) -> Parsed | None:
        try:
            # Envoy: a body that is buffered has no end if trailers follow.
            return body.parse(whole=self.ended or self.modes.request in WHOLE_BODIES)
        except MalformedRequest:
            # Envoy: `BUFFERED_PARTIAL` cuts a body at the filter's buffer limit, and the part that
            # it sends has no end then.
            if self.modes.request is _PARTIAL and not self.ended:
                return None
            raise

    # From the decision on.

    def answer(self, decision: Decision, target: str, priority: int) -> list[Reply]:
        """Return the replies that send it to its destination.

        `target` replaces the model in its body; if it is empty, the model stays. `priority`
        replaces the body's if the settings propagate it.
        """
        engine: int | None = None
        if self._settings.propagate_priority:
            engine = engine_priority(priority, decision.endpoint)
        edited, length = self._rewrite(target, engine)
        begin_span = self._settings.begin_span
        mutation = request_mutation(
            self.facts,
            decision,
            self._record.id,
            settings=self._settings,
            content_length=length,
            more=() if begin_span is None else begin_span(self._record),
        )
        if not self._early and self.modes.request is not _DUPLEX:
            return self._pass_whole(mutation, edited=edited)
        replies: list[Reply] = [HeadersReply(response=False, mutation=mutation)]
        if self.unsent:
            return replies + self.next_chunks()
        return [*replies, TrailersReply(response=False)] if self._trailed else replies

    def _rewrite(self, target: str, priority: int | None) -> tuple[bool, int | None]:
        """Edit the held body; return whether it changed, and its new length, if that is known."""
        body, self._body = self._body, None
        if body is None or not (target or priority is not None):
            return False, None
        self.unsent = body.rewritten(target, priority)
        length = sum(map(len, self.unsent))
        if self.ended:
            return True, length
        # Trailers are to come, or what follows the JSON in a body that was cut.
        announced = _length(self.facts.headers)
        return True, None if announced is None else announced + length - self._record.request_bytes

    def _pass_whole(self, mutation: Mutation, *, edited: bool) -> list[Reply]:
        """Answer a body that the proxy holds whole."""
        pieces, self.unsent = self.unsent, []
        if edited:
            mutation = replaced(mutation, body=b"".join(pieces))
        replies: list[Reply] = [BodyReply(response=False, mutation=mutation)]
        return [*replies, TrailersReply(response=False)] if self._trailed else replies

    def pass_on(self, message: RequestBody) -> list[Reply]:
        """Send a piece of the body on, behind those that wait."""
        if self.ended:
            return []  # Envoy 1.35-1.37 ends a long body twice
        self._record.request_bytes += len(message.body)
        self.ended = message.end_of_stream
        if not self._early and self._record.request_bytes > self._settings.max_body_bytes:
            raise self._too_large()
        waited = bool(self.unsent)
        add_piece(self.unsent, message.body)
        return [] if waited else self.next_chunks()

    def pass_trailers(self) -> list[Reply]:
        """Handle trailers; send them on unless pieces of the body wait."""
        if self.ended:
            return []
        self.ended = self._trailed = True
        return [] if self.unsent else [TrailersReply(response=False)]

    def next_chunks(self) -> list[Reply]:
        """Return the waiting pieces as replies, about `STEP_BYTES` of them."""
        pieces = self.unsent
        replies: list[Reply]
        if self.modes.request is _DUPLEX:
            replies, self.unsent = next_chunks(pieces, last=self.ended and not self._trailed)
        else:
            replies, self.unsent = [BodyReply(response=False) for _ in pieces], []
        if self._trailed and not self.unsent:
            replies.append(TrailersReply(response=False))
        return replies

    def drop_body(self) -> None:
        """Drop the held part of the body."""
        self._body, self.unsent = None, []


def _length(headers: dict[str, str]) -> int | None:
    """Return the length of a body in bytes (RFC 9110 §8.6); None if it is not given."""
    text = headers.get("content-length", "")
    if not text.isdecimal():
        return None
    return int(text) if len(text) <= _DIGITS else 10**_DIGITS
