"""The record of one exchange, which telemetry and logs read at its end."""

from enum import Enum, StrEnum
from typing import Final

from mypy_extensions import mypyc_attr

from epp.errors import RequestError
from epp.model.decision import Decision
from epp.model.endpoint import Target
from epp.model.events import Event
from epp.model.request import InferenceRequest, RequestId, Usage
from epp.model.request_events import Aborted, Failure, Finished, Unobserved
from epp.protocol.trace_context import BegunSpan
from epp.values import replaced

REDIRECTION: Final = 300
"""The first HTTP status of a redirect or an error (RFC 9110 §15.4, §15.5): nothing was computed."""


class Outcome(StrEnum):
    """The outcome of an exchange; the values are the `outcome` label of a metric."""

    COMPLETED = "completed"
    ANSWERED = "answered"  # by the picker, with what was asked for
    REJECTED = "rejected"  # answered by the picker, with an error
    UNOBSERVED = "unobserved"  # routed; the response's end is not shown, or not observed
    ABORTED = "aborted"  # the client, the proxy or the model server went away


class MustStayReason(Enum):
    """The reasons why a stream must not be closed before its response ends."""

    DUPLEX = "the response body comes in full duplex: what is in flight would be lost"
    UNANNOUNCED = "the proxy does not announce its modes (protocol_config)"


@mypyc_attr(free_list_len=1)
class RequestRecord:
    """One exchange from its first message to its end.

    Filled in by the exchange as the facts arrive, read by telemetry when it is over. Times are in
    seconds of the monotonic clock; None if something did not happen or was not seen.
    """

    def __init__(self, id: RequestId, received_at: float) -> None:  # noqa: A002, PLR0915 (one fact each)
        self.id = id
        self.received_at = received_at
        """When the first message came."""
        self.request: InferenceRequest | None = None
        """The request, once it was read."""
        self.decision: Decision | None = None
        """The decision on where the request goes."""
        self.error: RequestError | None = None
        """Why the picker rejected it."""
        self.outcome: Outcome | None = None
        """How the exchange ended."""
        self.read_at: float | None = None
        """When the part of it that a decision needs was complete."""
        self.decided_at: float | None = None
        """When the decision was made."""
        self.first_byte_at: float | None = None
        """When the first byte of the response's body came; in a stream, of generated output."""
        self.finished_at: float | None = None
        """When the exchange ended."""
        self.status: int | None = None
        """The HTTP status of the response; 0: not a number."""
        self.streaming = False
        """Whether the response is a stream of events."""
        self.served: Target | None = None
        """The target that served the request, as the proxy reported."""
        self.request_bytes = 0
        """The size of the request's body."""
        self.response_bytes = 0
        """The size of the response's body."""
        self.response_chunks = 0
        """The pieces of the response's body."""
        self.usage: Usage | None = None
        """The tokens that the server reported."""
        self.must_stay: MustStayReason | None = None
        """Why the stream stayed open until the response's end instead of being closed early."""
        self.failure: Failure | None = None
        """How the endpoint failed the request."""
        self.denied = False
        """Whether the response is an error despite its HTTP status: over gRPC, or in a stream."""
        self.span: BegunSpan | None = None
        """The span of the exchange; None if its trace is not sampled."""

    @property
    def refused(self) -> bool:
        """Whether the answer is an error or a redirect: nothing was computed."""
        return self.denied or (self.status is not None and self.status >= REDIRECTION)

    @property
    def elsewhere(self) -> bool:
        """Whether another endpoint than the preferred one served it, as the proxy reported."""
        served, decision = self.served, self.decision
        if served is None or decision is None:
            return False
        return decision.served_at(served) != decision.endpoint.target

    @property
    def follows_up(self) -> bool:
        """Whether the server put the turns of a stored response before the prompt."""
        return self.request is not None and bool(self.request.response_id)

    def end(self, outcome: Outcome, now: float, *, begun: bool) -> Event | None:
        """Complete the record; return the event that ends a routed request, None for any other.

        `begun`: the request's headers came.
        """
        if self.decision is None and outcome is Outcome.COMPLETED and (begun or self.refused):
            outcome = Outcome.ABORTED  # Envoy answered by itself: a timeout, a broken request
        self.outcome = outcome
        self.finished_at = now
        return None if self.decision is None else _end_event(self, outcome)


def _usage_of_prompts(record: RequestRecord) -> Usage | None:
    """Return the reported usage, if it is about the prompts that the picker knows."""
    usage = record.usage
    if usage is None or not record.follows_up:
        return usage
    return replaced(usage, prompt_tokens=0, cached_tokens=None)


def _end_event(record: RequestRecord, outcome: Outcome) -> Event:
    generated = record.response_chunks if record.streaming else 0
    if record.refused or record.failure is not None:
        named = record.failure is not None and record.served is not None
        return Aborted(record.id, refused=True, failure=record.failure, served=named)
    if outcome is Outcome.COMPLETED:
        return Finished(record.id, _usage_of_prompts(record), generated)
    if outcome is Outcome.UNOBSERVED:
        return Unobserved(record.id, begun=record.status is not None)
    return Aborted(record.id, generated)
