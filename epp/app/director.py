"""The director of all exchanges: tokenizes prompts, has the scheduler decide, reports ends."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from epp.adapters.telemetry.logs import ExchangeLog
from epp.adapters.telemetry.metrics import Telemetry
from epp.adapters.tokens.count_check import TokenCountCheck
from epp.adapters.tokens.prompt_tokenizer import PromptTokenizer
from epp.app.flow.held_requests import HeldRequests
from epp.errors import AWAITED_FAULTS, FAULTS, Overloaded
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import Event
from epp.model.listeners import OnFault, reraise
from epp.model.request import InferenceRequest, RequestId
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.held import HeldRequest
from epp.policy.plugins import PluginTimer
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.observation import Observation
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings
from epp.system.logs import Log
from epp.values import replaced

_log = Log(__name__)
_OUT_OF_RANGE: Final = "plugin.score_out_of_range"
_IMPLAUSIBLE: Final = "usage.doubted"
_DOUBT: Final = "more tokens were cached than the prompt has, which is ignored"
_STREAMS_STAY: Final = "observe_responses.impossible"
_REMEDY: Final = (
    "set response_body_mode: STREAMED in the ext_proc filter; Envoy 1.40 announces its modes"
)
_UNTIMED: Final = 63
"""The number of decisions between two whose plug-ins are timed."""
_VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""A hexadecimal digit with its upper bits set to 10."""
_UNREACHED: Final = frozenset((502, 503, 504))
"""HTTP statuses with which Envoy answers if it cannot reach a model server."""


class PickerDirector:
    """Directs all exchanges of one picker (`epp.protocol.extproc.director.Director`).

    `observe` is called with the events of admitted requests. With a `tokenizer`, requests are
    scheduled by token ids; None: by the text that came. `poll_now` is called with an endpoint that
    may be gone. `needs_end` decides, when a response begins, whether it is observed to its end;
    None: no response is. `clock` returns seconds of the monotonic clock. A prompt that takes longer
    than `tokenize_timeout` seconds to tokenize is answered with status 429. `timer` times the
    plug-ins of one decision in 64. `ended` has calls, by name, that take the record of each
    exchange that has ended. An error in one of them, or in another observer, is passed to
    `on_fault` and does not affect requests. With `quiet` no request is logged.
    """

    def __init__(  # noqa: PLR0913 (what it directs, and one limit)
        self,
        flow: FlowControl,
        observe: Callable[[Event, float], None],
        telemetry: Telemetry,
        clock: Callable[[], float],
        tokenizer: PromptTokenizer | None,
        *,
        poll_now: Callable[[EndpointId], None],
        needs_end: Callable[[RequestId, float], bool] | None = None,
        timer: PluginTimer | None = None,
        ended: Sequence[tuple[str, Callable[[RequestRecord], None]]] = (),
        on_fault: OnFault = reraise,
        tokenize_timeout: float = 60.0,
        quiet: bool = False,
    ) -> None:
        self._flow = flow
        self.held = HeldRequests(flow, clock, self._decided, on_fault)
        self._timer = timer
        self._decisions = 0
        self._telemetry = telemetry
        self._clock = clock
        self._tokenizer = tokenizer
        self._poll_now = poll_now
        self._needs_end = needs_end
        self._ended = tuple(ended)
        self._on_fault = on_fault
        self._tokenize_timeout = tokenize_timeout
        self._log = ExchangeLog(clock, quiet=quiet)
        self._count_check = None if tokenizer is None else TokenCountCheck()
        self._warned: set[tuple[str, str]] = set()  # events and what they were about
        self._tasks: set[asyncio.Task[None]] = set()
        self.observe = observe

    def route(self, request: InferenceRequest, now: float) -> Decision | PendingDecision:
        """Decide at once if the prompts are known; else once they are tokenized."""
        if self._tokenizer is None:
            return self._schedule(request, now)
        prompts = self._tokenizer.ready(request)
        if prompts is None:
            return self._decide_later(request, self._tokenizer)
        return self._schedule(replaced(request, prompts=prompts, body=b""), now)

    def _decide_later(
        self, request: InferenceRequest, tokenizer: PromptTokenizer
    ) -> PendingDecision:
        pending = PendingDecision()
        task = asyncio.get_running_loop().create_task(
            self._tokenize(request, tokenizer, pending), name="decision"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        pending.when_cancelled(task.cancel)
        return pending

    async def _tokenize(
        self, request: InferenceRequest, tokenizer: PromptTokenizer, pending: PendingDecision
    ) -> None:
        outcome: Decision | PendingDecision | BaseException
        try:
            async with asyncio.timeout(self._tokenize_timeout):
                prompts = await tokenizer.tokenize(request)
        except TimeoutError:
            outcome = Overloaded("no decision in time", reason="decision-timeout", retry_after=1)
        except AWAITED_FAULTS as error:  # whatever the error, the client is answered
            outcome = error
        else:
            try:
                tokenized = replaced(request, prompts=prompts, body=b"")
                outcome = self._schedule(tokenized, self._clock())
            except FAULTS as error:  # as above, even what would end this task
                outcome = error
        if isinstance(outcome, PendingDecision):  # it waits for room
            outcome.when_decided(pending.decided)
            pending.when_cancelled(outcome.cancel)
        else:
            pending.decided(outcome)

    def _schedule(self, request: InferenceRequest, now: float) -> Decision | PendingDecision:
        """Decide, at once or when there is room. Raises `NoEndpoints`."""
        self._decisions += 1
        timer = None if self._decisions & _UNTIMED else self._timer
        outcome = self._flow.route(request, now, timer)
        if isinstance(outcome, HeldRequest):
            return self.held.hold(outcome)
        self._decided(request, outcome, self._clock() - now)
        return outcome

    def _decided(self, request: InferenceRequest, decision: Decision, seconds: float) -> None:
        """Report how many seconds a decision took."""
        try:
            self._telemetry.scheduled(request, decision, seconds)
            if self._log.verbose:
                self._log.log_decision(request, decision)
            if self._count_check is not None:
                self._count_check.decided(request, decision)
            for score in decision.scores:
                if score.out_of_range and (_OUT_OF_RANGE, score.plugin) not in self._warned:
                    plugin = score.plugin
                    beyond = [float(value) for value in score.values if not 0 <= value <= 1]
                    self._warn_once(_OUT_OF_RANGE, plugin, plugin=plugin, score=beyond[0])
        except FAULTS as error:  # whatever the error, the decision has taken effect
            self._on_fault("decision", error)

    def needs_end(self, record: RequestRecord, now: float) -> bool:
        """Return whether a response must be observed to its end."""
        try:
            return self._needs_end is not None and self._needs_end(record.id, now)
        except FAULTS as error:  # whatever the error, the response goes on
            self._on_fault("director", error)
            return True

    def exchange_ended(self, record: RequestRecord) -> None:
        """Count and log an exchange that is over; raises nothing."""
        try:
            self._telemetry.finished(record)
        except FAULTS as error:  # whatever the error, the others are notified
            self._on_fault("telemetry", error)
        for name, ended in self._ended:
            try:
                ended(record)
            except FAULTS as error:  # as above
                self._on_fault(name, error)
        try:
            if record.error is not None or self._log.verbose:
                self._log.log_exchange(record)
        except FAULTS as error:  # as above
            self._on_fault("access-log", error)
        try:
            self._follow_up(record)
        except FAULTS as error:  # as above
            self._on_fault("director", error)

    def _follow_up(self, record: RequestRecord) -> None:
        """Poll an endpoint that a proxy cannot reach, and log what an exchange revealed."""
        decision = record.decision
        if record.status in _UNREACHED and decision is not None:
            for each in (decision.endpoint, decision.prefill, decision.encode):
                if each is not None:
                    self._poll_now(each.id)
        if self._count_check is not None:
            self._count_check.ended(record)
        if record.usage is not None and record.usage.implausible and decision is not None:
            endpoint = decision.endpoint.id
            if not record.elsewhere:
                self._warn_once(_IMPLAUSIBLE, endpoint, endpoint=endpoint, doubt=_DOUBT)
        if record.must_stay is not None and self._needs_end is None:
            reason = record.must_stay.value
            self._warn_once(_STREAMS_STAY, reason, reason=reason, remedy=_REMEDY)

    def _warn_once(self, event: str, about: str, **fields: object) -> None:
        """Log a warning, unless it was logged about this scorer, endpoint or reason before."""
        if (event, about) not in self._warned:
            self._warned.add((event, about))
            _log.warning(event, **fields)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Forget the warnings about an endpoint that is gone."""
        self._warned.discard((_IMPLAUSIBLE, endpoint_id))

    async def stop(self) -> None:
        """Refuse the requests that wait, and cancel the decisions that are pending."""
        self.held.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def exchange_factory(
    director: PickerDirector,
    settings: ExchangeSettings,
    observation: Observation,
    chance: random.Random,
) -> Callable[[float], Exchange]:
    """Return a function that makes an exchange, given the time: with an id, ending early or not."""
    early = replaced(settings, end_early=True)
    ends_early, randrange, draw = observation.ends_early, chance.randrange, chance.getrandbits
    return lambda now: Exchange(
        director,
        early if ends_early(randrange) else settings,
        _uuid4(draw(128)),
        now,
    )


def _uuid4(bits: int) -> RequestId:
    """Return 128 random bits as a UUID of version 4; `uuid.UUID` takes its time."""
    # RFC 9562 §5.4: bits 48-51 are the version (4), bits 64-65 the variant (0b10).
    digits = bits.to_bytes(16, "big").hex()
    variant = _VARIANTS[digits[16]]
    return RequestId(
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
    )
