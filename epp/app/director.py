"""The director of all exchanges: tokenizes, has the scheduler decide, lets telemetry know."""

import random
from collections.abc import Callable
from typing import Final

import structlog
from msgspec.structs import replace

from epp.adapters.telemetry.logs import ExchangeLog
from epp.adapters.telemetry.metrics import Telemetry
from epp.adapters.tokens.count_check import TokenCountCheck
from epp.adapters.tokens.prompt_tokenizer import PromptTokenizer
from epp.errors import PickerFault, RequestError
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import Event
from epp.model.request import Decision, InferenceRequest, MustStayReason, RequestId
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.director import Pending
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.observation import Observation
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings

_log = structlog.get_logger(__name__)
_REMEDY: Final = (
    "set response_body_mode: STREAMED in the ext_proc filter; Envoy 1.40 announces its modes"
)
_UNREACHED: Final = frozenset((502, 503, 504))
"""What a proxy answers in the place of a model server that it cannot reach."""


class Service:
    """The director of all exchanges: the scheduler, with telemetry beside it.

    `observe` is given what becomes of requests. `tokenizer` None: prompts stay what they came
    as. `suspect` is called with an endpoint that may be gone.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        observe: Callable[[Event, float], None],
        telemetry: Telemetry,
        clock: Callable[[], float],
        tokenizer: PromptTokenizer | None,
    ) -> None:
        self._scheduler = scheduler
        self._telemetry = telemetry
        self._clock = clock
        self._tokenizer = tokenizer
        self._log = ExchangeLog(clock)
        self._agreement = TokenCountCheck()
        self._doubted: set[EndpointId] = set()
        self._ties: set[MustStayReason] = set()
        self.observe = observe
        self.suspect: Callable[[EndpointId], None] = _overlook

    def route(self, request: InferenceRequest, now: float) -> Decision | Pending:
        """Decide at once where the prompts are known; else `decide` must be awaited."""
        if self._tokenizer is None:
            return self._decide(request, now)
        prompts = self._tokenizer.ready(request)
        if prompts is None:
            return Pending.PENDING
        return self._decide(replace(request, prompts=prompts, body=b""), now)

    async def decide(self, record: RequestRecord) -> Decision | RequestError:
        """Decide on a pending request once its prompts are tokenized."""
        request, tokenizer = record.request, self._tokenizer
        if request is None or tokenizer is None:
            return PickerFault(f"no one decides on request {record.id}")
        prompts = await tokenizer.tokenize(request)
        record.request = replace(request, prompts=prompts, body=b"")
        try:
            return self._decide(record.request, self._clock())
        except RequestError as error:
            return error

    def _decide(self, request: InferenceRequest, now: float) -> Decision:
        """Decide, and say how long that took."""
        decision = self._scheduler.route(request, now)
        self._telemetry.scheduled(request, decision, self._clock() - now)
        if self._tokenizer is not None:
            self._agreement.decided(request, decision)
        return decision

    def close(self, record: RequestRecord) -> None:
        """Count and log an exchange that is over."""
        self._telemetry.finished(record)
        if record.status in _UNREACHED and record.decision is not None:
            self.suspect(record.decision.endpoint.id)
        self._log.log_exchange(record)
        self._agreement.ended(record)
        if record.usage is not None and record.usage.doubtful and record.decision is not None:
            self._doubt(record.decision.endpoint)
        if record.tie is not None:
            self._tied(record.tie)

    def _tied(self, tie: MustStayReason) -> None:
        """Say once that responses cannot be left early, and what would help."""
        if tie not in self._ties:
            self._ties.add(tie)
            _log.warning("observe_responses.impossible", reason=tie.value, remedy=_REMEDY)

    def _doubt(self, endpoint: Endpoint) -> None:
        """Say once of an endpoint that its usage cannot be."""
        if endpoint.id not in self._doubted:
            self._doubted.add(endpoint.id)
            _log.warning(
                "usage.doubted",
                endpoint=endpoint.id,
                doubt="more tokens were cached than the prompt has, which is ignored",
            )


def _overlook(_: EndpointId) -> None:
    pass


def exchanges(
    service: Service, settings: ExchangeSettings, observation: Observation, chance: random.Random
) -> Callable[[float], Exchange]:
    """Return what makes an exchange, given the time: with an id, and leaving early or not."""
    leaving = replace(settings, leave=True)
    leaves, randrange, draw = observation.leaves, chance.randrange, chance.getrandbits
    return lambda now: Exchange(
        service,
        leaving if leaves(randrange) else settings,
        _identity(draw(128)),
        now,
    )


def _identity(bits: int) -> RequestId:
    """Write 128 random bits as a UUID of version 4 (RFC 9562); `uuid.UUID` takes its time."""
    digits = f"{bits & ~(0xF << 76) & ~(0x3 << 62) | 4 << 76 | 2 << 62:032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return RequestId("-".join(parts))
