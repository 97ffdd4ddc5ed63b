"""One request of a program that picks by itself: where it goes, and what its response teaches.

It drives the exchange that also serves gateways, in the place of a proxy that holds the request's
body until the decision (`BUFFERED`) and shows the response as it comes (`STREAMED`).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import index
from types import TracebackType
from typing import Final, NamedTuple, Self
from weakref import WeakSet

import msgspec

from epp.app.core import PickerCore
from epp.app.observing.views import DecisionView
from epp.errors import NoEndpoints, PickerFault, RequestError, ShuttingDown
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, Target
from epp.model.fleet import Fleet
from epp.model.request import RequestId
from epp.model.request_events import Failure
from epp.protocol.bodies.coercion import UNREADABLE
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.messages import (
    UNCHANGED,
    BodyMode,
    BodyReply,
    Message,
    Modes,
    Mutation,
    Reporting,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.protocol.extproc.names import DESTINATION
from epp.protocol.extproc.step import Step, Wants

_SHOWN: Final = Modes(BodyMode.BUFFERED, BodyMode.STREAMED)
_UNSHOWN: Final = Modes(BodyMode.BUFFERED, BodyMode.NONE)
"""The modes of a request whose response's body was not shown."""
_JSON, _EVENTS = "application/json", "text/event-stream"
_NOT_SENT: Final = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-connection"),
        *("te", "transfer-encoding", "upgrade", DESTINATION),
    )
)
"""Headers that only a proxy reads, or that belong to one connection (RFC 9110, 7.6.1, and 7.2).

HTTP clients write their own, for the body that they send.
"""
_UNREACHED: Final = 503
"""The status with which Envoy answers if it cannot reach a model server."""


class RawRequest(NamedTuple):
    """What a program asks for: header names are in lower case."""

    body: bytes
    headers: dict[str, str]
    path: str
    avoid: frozenset[Target] = frozenset()
    """Endpoints to which it goes only if no other one serves it."""


class PickerContext(NamedTuple):
    """What the picks of one picker share."""

    core: PickerCore
    check: Callable[[], None]
    """Raises unless requests are taken, and on this event loop."""
    exchange: Callable[[float], Exchange]
    """Makes an exchange, given the time."""
    clock: Callable[[], float]
    """Returns monotonic seconds."""
    url: Callable[[Endpoint], str]
    """Returns an endpoint's base URL."""
    unreachable: tuple[type[BaseException], ...]
    """What is raised if a model server cannot be reached, or breaks off."""
    picks: WeakSet["Pick"]
    """Picks that were begun and have not ended; the program holds the references to them."""


class Pick:
    """One request, and the endpoint that was picked for it (`InProcessPicker.pick`).

    Entered with `async with`, which waits for the decision while the fleet is full. If there is
    none it raises `RequestError` (`epp.errors`): `status` is the HTTP status that a gateway would
    answer with, `reason` the cause, `retry_after` a number of seconds or None. Leaving the block
    ends the request as served; with an exception as given up, or as failed by its endpoint if that
    is one of the picker's `unreachable`.

    Whatever is reported of the response makes later picks better: as bytes (`feed`,
    `finished`), which are read as a gateway's are, or as numbers (`first_token`, `generated`,
    `usage`). Once the request has ended, nothing of this has an effect.
    """

    def __init__(self, raw: RawRequest, context: PickerContext) -> None:
        self._raw = raw
        self._context = context
        self._exchange = context.exchange(context.clock())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Future[Step] | None = None
        self._changes = UNCHANGED

    @property
    def url(self) -> str:
        """Where to send it: the endpoint's base URL, and the path."""
        return self._context.url(self.endpoint) + self._raw.path

    @property
    def body(self) -> bytes:
        """The body to send: the same bytes, unless the model's name or a priority is rewritten."""
        changed = self._changes.body
        return self._raw.body if changed is None else changed

    @property
    def headers(self) -> dict[str, str]:
        """The headers to send: yours and those that the picker adds.

        Headers for the picker, and those of a connection, such as `host`, are left out.
        """
        kept = {**self._raw.headers, **dict(self._changes.set_headers)}
        removed = _NOT_SENT.union(self._changes.remove_headers)
        return {name: value for name, value in kept.items() if name not in removed}

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint: `target` is its `ip:port`, `name` and `labels` are as they were given."""
        return self.decision.endpoint

    @property
    def decision(self) -> Decision:
        """The decision: `predicted_cached_tokens` of `prompt_tokens`, `waited` in seconds, ..."""
        decision = self._exchange.record.decision
        if decision is None:
            raise RuntimeError("no endpoint is picked yet: async with picker.pick(...) as pick")
        return decision

    @property
    def id(self) -> RequestId:
        """The picker's id of the request, which `InProcessPicker.explain` takes."""
        return self._exchange.record.id

    def explain(self) -> DecisionView:
        """Return why it goes there: each candidate with its costs, as `epp explain` shows it.

        Raises `LookupError` if the decision is not kept: it is one of the last 1,024.
        """
        for view in self._context.core.explain(self.id):
            return view
        raise LookupError(f"request {self.id} is not among the decisions that are kept")

    def answered(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Report the head of the response; `feed` and `finished` assume a good one without it.

        Its `content-type` and load reports (ORCA) are read. Pass bodies decompressed.
        """
        record = self._exchange.record
        if record.status is not None:
            return
        streams = record.request is not None and record.request.stream
        reported = {":status": str(status), "content-type": _EVENTS if streams else _JSON}
        reported |= {name.lower(): value for name, value in (headers or {}).items()}
        reported.pop("content-encoding", None)
        self._receive(ResponseHeaders(headers=reported))

    def feed(self, piece: bytes) -> bytes:
        """Report a piece of the body; return it with the model's name as it was asked for."""
        self.answered()
        return self._passed(piece)

    def finished(
        self, body: bytes = b"", *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Report the end of the response; `body` is the rest of it, or all. Returns as `feed`."""
        self.answered(status, headers)
        if not body and not self._exchange.record.response_bytes:
            self._receive(ResponseTrailers(modes=_UNSHOWN))
            return b""
        return self._passed(body, last=True)

    def failed(self, status: int = _UNREACHED) -> None:
        """Report that the endpoint could not be reached, broke off, or failed with an HTTP status.

        An endpoint that fails five times in a row (`eject_after`) is left out for a while; one that
        breaks off counts as given up if any output has come.
        """
        record = self._exchange.record
        if record.status is None:
            self.finished(status=status)
            return
        # It broke off. vLLM sends the head of a stream before it computes anything.
        if record.outcome is None and not record.refused and record.first_byte_at is None:
            record.failure = Failure.GATEWAY
        self._exchange.cancelled(self._context.clock())

    def first_token(self) -> None:
        """Report that the first token has come."""
        self.generated(1)

    def generated(self, tokens: int) -> None:
        """Report how many tokens have come so far, since long answers take room."""
        self.answered(headers={"content-type": _EVENTS})
        if self._exchange.record.outcome is None:
            self._exchange.response.tokens(index(tokens), self._context.clock())

    def usage(self, usage: object) -> None:
        """Record the tokens that the model server counted, as the `usage` of its response has them.

        `prompt_tokens`, `completion_tokens` and `prompt_tokens_details.cached_tokens`, or
        Anthropic's names for them: keys of a mapping, or attributes, as OpenAI's client has them.
        """
        self._exchange.response.report_usage(msgspec.json.encode(usage, enc_hook=vars))

    async def __aenter__(self) -> Self:
        self._context.check()
        exchange = self._exchange
        if exchange.record.request_bytes or exchange.record.outcome is not None:
            raise RuntimeError("a pick is one request: call picker.pick again")
        self._context.picks.add(self)
        self._loop = asyncio.get_running_loop()
        context = self._context
        others = _others(context.core.fleet, self._raw)
        try:
            while True:
                try:
                    self._changes = await self._mutation(others or None)
                    break
                except NoEndpoints as error:  # they may be gone, maybe while it waited for them
                    before, others = others, _others(context.core.fleet, self._raw)
                    if others == before or isinstance(error, ShuttingDown):
                        raise
                    self._exchange = context.exchange(context.clock())
        except BaseException:
            self._end()
            raise
        return self

    async def _mutation(self, subset: tuple[Target, ...] | None) -> Mutation:
        """Get a decision on it among the targets of `subset`; None: all."""
        raw, exchange = self._raw, self._exchange
        head = {":method": "POST", ":path": raw.path, **raw.headers}
        self._receive(RequestHeaders(headers=head, modes=_SHOWN, subset=subset))
        step = self._receive(RequestBody(body=raw.body, end_of_stream=True))
        while step.wants is Wants.TURN:
            await asyncio.sleep(0)
            step = self._take(exchange.proceed)
        if exchange.pending is not None:
            step = await self._decided(exchange.pending)
        return _mutation_of(step)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        record, unreachable = self._exchange.record, self._context.unreachable
        try:
            if error is None:
                self.finished()
            elif isinstance(error, unreachable) and record.status is None:
                self.failed()  # after the head, a gateway's own client may be the one that left
        finally:
            self._end()

    def __del__(self) -> None:
        """Give it up if the program has dropped it; Python may call this on any thread."""
        exchange, clock = self._exchange, self._context.clock
        if self._loop is not None and exchange.record.outcome is None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(lambda: exchange.cancelled(clock()))

    def shut(self) -> None:
        """End it because the picker closes: waiting for its decision raises `ShuttingDown`."""
        if self._exchange.record.decision is None:
            error = ShuttingDown("the picker is closed")
            self._exchange.fail(error, self._context.clock())
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(error)
        self._end()

    def _end(self) -> None:
        """Give it up, unless it has ended."""
        self._exchange.cancelled(self._context.clock())
        self._context.picks.discard(self)

    async def _decided(self, pending: PendingDecision) -> Step:
        waiting: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        pending.when_decided(partial(self._resume, waiting))
        try:
            return await waiting
        finally:
            pending.cancel()

    def _resume(self, waiting: asyncio.Future[Step], outcome: Decision | BaseException) -> None:
        """Continue with a decision; if the request is given up, the exchange undoes it."""
        known = outcome if isinstance(outcome, Decision | RequestError) else _fault(outcome)
        try:
            step = self._take(partial(self._exchange.resume, known))
        except RequestError as error:
            if not waiting.done():
                waiting.set_exception(error)
        else:
            if not waiting.done():
                waiting.set_result(step)

    def _receive(self, message: Message) -> Step:
        return self._take(partial(self._exchange.receive, message))

    def _take(self, step: Callable[[float], Step]) -> Step:
        """Take a step. Raises the `RequestError` that it ends with, or that stands for a fault."""
        now = self._context.clock()
        try:
            taken = step(now)
        except Exception as error:  # a plug-in's, as `ExchangeDriver` answers them
            fault = _fault(error)
            self._exchange.fail(fault, now)
            raise fault from error
        if self._exchange.record.error is not None:
            raise self._exchange.record.error
        return taken

    def _passed(self, data: bytes, *, last: bool = False) -> bytes:
        """Return a piece of the response's body as the exchange passes it on."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"report a response in bytes as they came, not {type(data).__name__}")
        message = ResponseBody(body=data, end_of_stream=last)
        changed = _mutation_of(self._receive(message)).body
        return data if changed is None else changed


class _Asked(msgspec.Struct):
    model: str = ""


def _others(fleet: Fleet, raw: RawRequest) -> tuple[Target, ...]:
    """Return the targets that serve a request and that it does not avoid; none: any."""
    if not raw.avoid:
        return ()
    asked = _Asked()
    with suppress(*UNREADABLE):  # the exchange refuses such a body
        asked = msgspec.json.decode(raw.body, type=_Asked)
    usable = [each.endpoint for each in fleet.pods.eligible(None, asked.model).pods]
    left = [each for each in usable if each.target not in raw.avoid]
    return () if all(each.partial for each in left) else tuple(each.target for each in left)


def _mutation_of(step: Step) -> Mutation:
    """Return the changes to a body, and to what goes with it."""
    for reply in step.replies:
        inner = reply.reply if isinstance(reply, Reporting) else reply
        if isinstance(inner, BodyReply):
            return inner.mutation
    return UNCHANGED


def _fault(error: BaseException) -> PickerFault:
    fault = PickerFault(f"the picker failed: {type(error).__name__}")
    fault.__cause__ = error
    return fault
