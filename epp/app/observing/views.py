"""The JSON of the operators' pages, which `epp explain` and `epp top` read."""

from datetime import UTC, datetime

import msgspec

from epp.app.observing.decision_ring import Ending, KeptDecision
from epp.policy.explanations.explanation import Explanation

_MILLI = 1e3


class EndingView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request ended; unknown fields are left out. Times are in milliseconds."""

    outcome: str = ""
    """How the request ended."""
    status: int | None = None
    """The HTTP status."""
    served: str | None = None
    """The target that served it, as the proxy reported."""
    sent_after_ms: float | None = None
    """From the request's first bytes to its decision: reading, tokenizing, waiting for room."""
    ttft_ms: float | None = None
    """From the request's first bytes to the first bytes of a streamed response."""
    duration_ms: float | None = None
    """From the request's first bytes to the last bytes of the response."""
    prompt_tokens: int | None = None
    """The prompt's length, as the model server reported it."""
    cached_tokens: int | None = None
    """The part of the prompt that the model server had cached."""
    completion_tokens: int | None = None
    """The generated tokens, as the model server reported them."""
    failure: str | None = None
    """How the endpoint failed the request."""
    error: str | None = None
    """Why the picker gave up the request."""


class RecordedPick(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a recorded request went, and the predictions at that time."""

    endpoint: str
    prefill: str = ""
    """The endpoint that computed the prompt, if it was another endpoint."""
    cached_tokens: int | None = None
    ttft_ms: float | None = None


class DecisionView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision, and how its request ended."""

    number: int
    """Counts decisions since the picker started."""
    request: str
    """The picker's id of the request, as in logs, spans and recordings."""
    client_id: str = ""
    """The client's `x-request-id`."""
    model: str = ""
    """The model in the request to the server: the client's, or the one that replaced it."""
    at: str = ""
    """When it was decided on (ISO 8601, UTC)."""
    profiles: tuple[Explanation, ...] = ()
    """The profiles that decided; the last one chose where it went."""
    ending: EndingView | None = None
    """How the request ended; None while it runs."""
    recorded: RecordedPick | None = None
    """With a recording, from which `profiles` are reconstructed: where the request really went."""
    refused: str = ""
    """With a recording: why the configuration that explains the request refuses it."""


class DecisionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some decisions in order, and the number of the last one that was made."""

    last: int
    decisions: tuple[DecisionView, ...]


def decision_view(
    kept: KeptDecision, profiles: tuple[Explanation, ...], clock_began: float
) -> DecisionView:
    """Return the view of a decision. `clock_began` is the time of day when the clock was 0."""
    at = datetime.fromtimestamp(clock_began + kept.decided_at, UTC)
    return DecisionView(
        number=kept.number,
        request=kept.request_id,
        client_id=kept.client_id,
        model=kept.model,
        at=at.isoformat(timespec="milliseconds"),
        profiles=profiles,
        ending=None if kept.ending is None else ending_view(kept.ending, kept.decided_at),
    )


def ending_view(ending: Ending, decided_at: float) -> EndingView:
    """Return the view of how a request ended, given when it was decided on."""
    usage = ending.usage
    first = ending.first_byte_at if ending.streaming else None
    return EndingView(
        outcome=ending.outcome.value,
        status=ending.status,
        served=ending.served,
        sent_after_ms=_milliseconds(ending.received_at, decided_at),
        ttft_ms=_milliseconds(ending.received_at, first),
        duration_ms=_milliseconds(ending.received_at, ending.finished_at),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        failure=None if ending.failure is None else ending.failure.value,
        error=None if ending.error is None else ending.error.reason,
    )


def _milliseconds(since: float, moment: float | None) -> float | None:
    return None if moment is None else round(_MILLI * (moment - since), 3)
