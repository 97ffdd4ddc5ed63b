"""The driver of one exchange, for either transport: encoded messages in, encoded replies out.

It calls the exchange in the order that `epp.protocol.extproc.exchange` demands, and answers and
logs errors. It has no socket: a transport passes on the peer's messages, and is an `Outlet`.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from mypy_extensions import mypyc_attr

from epp.adapters.extproc.contract import DrivenExchange, GrpcStatus, Outlet
from epp.adapters.extproc.streams import OpenStreams
from epp.errors import FAULTS, PickerFault, RequestError
from epp.model.decision import Decision
from epp.protocol.extproc.codec import decode, encode, encode_chunk
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.errors import ProtocolError
from epp.protocol.extproc.messages import Chunk
from epp.protocol.extproc.step import Step, Wants
from epp.system.logs import Log

_log = Log(__name__)

_RESET_SECONDS: Final = 0.05
"""Seconds after a half-close in which a reset may still come.

Envoy ends a stream that it gives up, and resets it a moment later; in between, that end looks like
a good one.
"""

# Looked up once: docs/adr/0013-compiled.md says why.
_DECODE: Final = decode
_ENCODE: Final = encode
_ENCODE_CHUNK: Final = encode_chunk
_NEXT: Final = Wants.NEXT
_REST: Final = Wants.REST
_TURN: Final = Wants.TURN
_DECISION: Final = Wants.DECISION
_ROOM: Final = Wants.ROOM
_END: Final = Wants.END
_OK: Final = GrpcStatus.OK


@mypyc_attr(free_list_len=1)
class ExchangeDriver:
    """Drives one exchange, from the stream's first message to its end.

    Its transport calls `message`, `growing`, `ended`, `drained` and `closed`; after `Outlet.end`
    or `closed` nothing but `closed`, which does nothing then.
    """

    def __init__(
        self,
        exchange: DrivenExchange,
        outlet: Outlet,
        clock: Callable[[], float],
        streams: OpenStreams,
    ) -> None:
        self._exchange = exchange
        self._outlet = outlet
        self._clock = clock
        self._streams = streams
        self._pending: PendingDecision | None = None
        self._half_closed = False
        self._grace: asyncio.TimerHandle | None = None  # until a half-close counts as an end
        self._holding = False  # bytes of a request, which count
        self._arriving = 0  # bytes of a message that has not ended
        self._turning = False
        self._over = False
        streams.opened(self)

    # What a transport calls.

    def message(self, data: bytes) -> None:
        """Handle a message."""
        try:
            step = self._exchange.receive(_DECODE(data), self._clock())
            self._send(step)
            if self._pending is not None and self._exchange.pending is None:
                self._withdraw(self._pending)
        except ProtocolError as error:
            # gRPC: the client's arguments are at fault, whatever the state of the server.
            self._end(GrpcStatus.INVALID_ARGUMENT, str(error))
        except FAULTS as error:  # whatever the error, the client is answered
            self._fail(error)
        else:
            if step.wants is not _NEXT or self._holding:
                self._arriving = 0
                self._act_on(step.wants)

    def ended(self) -> None:
        """Handle a half-close: the peer sends no more."""
        self._half_closed = True
        self._call(self._exchange.half_closed)

    def growing(self, size: int) -> None:
        """Count the kept bytes of an incomplete message."""
        self._arriving = size
        self._account()

    def drained(self) -> None:
        """Send more, as the peer has read most of the sent bytes."""
        self._call(self._exchange.proceed)

    # What is asked of an open stream (`OpenStream`).

    @property
    def received_at(self) -> float:
        """When the stream was opened, in seconds of the monotonic clock."""
        return self._exchange.record.received_at

    @property
    def awaits_request(self) -> bool:
        """Whether the peer must send more of the request before a decision."""
        return self._exchange.awaits_request

    def refuse(self, error: RequestError) -> None:
        """Answer the client with an error, and end the stream."""
        self._call(partial(self._exchange.fail, error))
        self._outlet.flush()

    # What the exchange wants.

    def _call(self, call: Callable[[float], Step]) -> None:
        try:
            step = call(self._clock())
            self._send(step)
        except FAULTS as error:  # whatever the error, the client is answered
            self._fail(error)
        else:
            self._act_on(step.wants)

    def _send(self, step: Step) -> None:
        for reply in step.replies:
            if isinstance(reply, Chunk):  # compiled code reads fields for less than the codec
                encoded = _ENCODE_CHUNK(reply.response, reply.body, reply.end_of_stream)
                self._outlet.send(encoded)
            else:
                self._outlet.send(_ENCODE(reply))

    def _act_on(self, wants: Wants) -> None:
        if wants is _DECISION:
            self._wait()
        if self._holding or wants is _REST or wants is _TURN:
            self._account()  # which may refuse the request
        if self._over or wants is _DECISION:
            return
        if wants is _END:
            self._end(_OK)
        elif wants is _ROOM:
            self._outlet.await_room()
        elif wants is _TURN:
            self._take_turn()
        elif self._half_closed and self._grace is None:
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(_RESET_SECONDS, self._confirm_half_close)

    def _account(self) -> None:
        """Report the held bytes of the request, which may be too many."""
        size = self._exchange.held_bytes + self._arriving
        if size or self._holding:
            self._holding = size > 0
            self._streams.record_held(self, size)

    def _take_turn(self) -> None:
        """Go on when other streams had their turn."""
        if not self._turning:
            self._turning = True
            self._outlet.hold()
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self._over:
            self._outlet.release()
            self._call(self._exchange.proceed)
            self._outlet.flush()

    def _confirm_half_close(self) -> None:
        self._call(self._exchange.half_closed)
        self._outlet.flush()

    def _wait(self) -> None:
        self._outlet.hold()
        self._pending = pending = cast(PendingDecision, self._exchange.pending)
        pending.when_decided(self._decided)

    def _withdraw(self, pending: PendingDecision) -> None:
        """Stop waiting for a decision that the exchange has done without: it has an answer."""
        self._pending = None
        self._outlet.release()
        pending.cancel()

    def _decided(self, outcome: Decision | BaseException) -> None:
        """Continue with a decision; if the stream is over, the exchange undoes it."""
        self._pending = None
        try:
            if not isinstance(outcome, Decision | RequestError):
                raise outcome  # answered and logged like other errors here
            step = self._exchange.resume(outcome, self._clock())
            self._send(step)
        except FAULTS as error:  # whatever the error, the client is answered
            self._fail(error)
        else:
            self._act_on(step.wants)
        if not self._over:
            self._outlet.release()
        self._outlet.flush()

    # How it ends.

    def _fail(self, error: BaseException) -> None:
        """Log an exchange that raised, and answer its client with status 500."""
        self._log_fault(error)
        reason = "" if isinstance(error, Exception) else "plugin-fault"  # nothing else raises those
        fault = PickerFault(f"the picker failed: {type(error).__name__}", reason=reason)
        status = _OK
        try:
            self._send(self._exchange.fail(fault, self._clock()))
        except FAULTS as second:  # the other streams of the connection go on
            self._log_fault(second)
            status = GrpcStatus.INTERNAL
        self._end(status)

    def _end(self, status: GrpcStatus, message: str = "") -> None:
        if not self._over:
            self._outlet.end(status, message)
            self.closed()

    def closed(self) -> None:
        """Notify the exchange, and the maker of a pending decision, of the stream's end; once."""
        if self._over:
            return
        self._over, self._holding = True, False
        if self._grace is not None:
            self._grace.cancel()
        now = self._clock()
        self._streams.closed(self, now)
        pending, self._pending = self._pending, None
        try:
            try:
                self._exchange.cancelled(now)
            finally:
                if pending is not None:
                    pending.cancel()
        except FAULTS as error:  # a transport's own clean-up goes on
            self._log_fault(error)

    def _log_fault(self, error: BaseException) -> None:
        """Log an error with its traceback, at most one of each type in ten seconds."""
        more = self._streams.faults.take(type(error).__name__, self._clock())
        if more is not None:
            name = self._exchange.record.id
            _log.error("exchange.failed", request_id=name, more=more, exc_info=error)
