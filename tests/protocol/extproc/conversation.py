"""Plays an ext_proc conversation against an exchange and says what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from epp.errors import RequestError
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint
from epp.model.events import Event
from epp.model.request import InferenceRequest, RequestId
from epp.protocol.extproc import codec as envoy
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    ImmediateReply,
    Message,
    Reply,
    RequestBody,
    RequestHeaders,
)
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings
from epp.protocol.extproc.step import Step, Wants

POD = Endpoint("default", "pod-0", "10.0.0.1", 8000)
CHAT = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": "client-id"}
OK = {":status": "200", "content-type": "text/event-stream"}
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
SSE = (
    b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n',
    (
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
    ),
)


def chat_body(**more: Any) -> bytes:
    lookup = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    return json.dumps(lookup | more).encode()


def body(data: bytes, end: bool = True) -> RequestBody:
    return RequestBody(body=data, end_of_stream=end)


def headers(**more: str) -> RequestHeaders:
    return RequestHeaders(headers=CHAT | more)


@dataclass
class Stub:
    """A director whose answer is given: a decision, an error, or pending."""

    answer: Decision | RequestError | PendingDecision = field(
        default_factory=lambda: Decision(endpoints=(POD,))
    )
    requests: list[InferenceRequest] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    closed: list[RequestRecord] = field(default_factory=list)
    needed: bool = False
    asked: int = 0

    def route(self, request: InferenceRequest, now: float) -> Decision | PendingDecision:
        self.requests.append(request)
        if isinstance(self.answer, RequestError):
            raise self.answer
        return self.answer

    def observe(self, event: Event, now: float) -> None:
        self.events.append(event)

    def needs_end(self, record: RequestRecord, now: float) -> bool:
        self.asked += 1
        return self.needed

    def exchange_ended(self, record: RequestRecord) -> None:
        self.closed.append(record)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


class Machine:
    """An exchange whose replies come as lists; `wants` tells what its last step said.

    `stub` is its director.
    """

    def __init__(self, machine: Exchange, stub: Stub) -> None:
        self.exchange = machine
        self.stub = stub
        self.record = machine.record
        self._wants = Wants.NEXT

    def wants(self) -> Wants:
        return self._wants

    def _replies(self, step: Step) -> list[Reply]:
        self._wants = step.wants
        return list(step.replies)

    def receive(self, message: Message, now: float) -> list[Reply]:
        return self._replies(self.exchange.receive(message, now))

    def resume(self, outcome: Decision | RequestError, now: float) -> list[Reply]:
        return self._replies(self.exchange.resume(outcome, now))

    def proceed(self, now: float) -> list[Reply]:
        return self._replies(self.exchange.proceed(now))

    def half_closed(self, now: float) -> None:
        assert self._replies(self.exchange.half_closed(now)) == []

    def cancelled(self, now: float) -> None:
        assert self._replies(self.exchange.cancelled(now)) == []
        assert self._wants is Wants.END


def exchange(stub: Stub | None = None, **settings: Any) -> Machine:
    stub = stub or Stub()
    return Machine(Exchange(stub, ExchangeSettings(**settings), RequestId("own-id"), 0.0), stub)


def play(machine: Machine, messages: Iterable[Message]) -> list[Reply]:
    replies: list[Reply] = []
    for at, message in enumerate(messages):
        out = machine.receive(message, float(at))
        while machine.wants() in {Wants.ROOM, Wants.TURN}:
            out += machine.proceed(float(at))
        for reply in out:
            envoy.encode(reply)  # whatever is said can be said on the wire
        replies += out
    return replies


@dataclass
class Outcome:
    """Replies boiled down to what a proxy does with them."""

    request: bytes = b""
    request_ended: bool = False
    response: bytes = b""
    response_ended: bool = False
    set_headers: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    response_headers: dict[str, str] = field(default_factory=dict)
    destination: str = ""
    error: int = 0
    order: list[str] = field(default_factory=list)


def outcome(replies: Sequence[Reply]) -> Outcome:
    seen = Outcome()
    for reply in replies:
        side = "response" if getattr(reply, "response", False) else "request"
        if isinstance(reply, HeadersReply | BodyReply):
            mutation = reply.mutation
            told = seen.response_headers if reply.response else seen.set_headers
            told |= dict(mutation.set_headers)
            seen.destination = seen.destination or mutation.destination
            if not reply.response:
                seen.removed += mutation.remove_headers
        if isinstance(reply, Chunk):
            assert len(reply.body) <= 62_000
            setattr(seen, side, getattr(seen, side) + reply.body)
            assert not getattr(seen, f"{side}_ended"), "nothing may follow the end"
            setattr(seen, f"{side}_ended", reply.end_of_stream)
        if isinstance(reply, ImmediateReply):
            seen.error = reply.status
        kind = type(reply).__name__
        if not seen.order or seen.order[-1] != f"{side} {kind}":
            seen.order.append(f"{side} {kind}")
    return seen


def request_of(*messages: Message, **settings: Any) -> InferenceRequest:
    """Play messages; return the request as the director got it."""
    machine = exchange(**settings)
    play(machine, messages)
    (request,) = machine.stub.requests
    return request


def error_of(replies: Sequence[Reply]) -> tuple[int, dict[str, str], dict[str, str]]:
    (reply,) = replies
    assert isinstance(reply, ImmediateReply)
    return reply.status, json.loads(reply.body)["error"], dict(reply.headers)
