"""Response headers about a request: the decision, the endpoint that served it, and its wait."""

import msgspec

from epp.protocol.extproc.names import DECISION, QUEUE_DURATION
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import Headers

CONFORMANCE_SERVED = "x-conformance-test-served-endpoint"
"""The header of the gateway conformance suite (gateway-api-inference-extension)."""

_NOT_SERVED = "fail: missing destination endpoint served metadata"
"""The answer of llm-d-router's verifier if the gateway does not report it."""


class _ShownDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    endpoint: str
    prompt_tokens: int
    predicted_cached_tokens: int
    predicted_ttft_ms: float | None
    stages: dict[str, str] = {}
    cost: dict[str, float] = {}


def decision_header(record: RequestRecord) -> Headers:
    """Return the decision as JSON; nothing without one.

    `cost` has the terms of the endpoint that the predictions are for (`Candidate.cost_terms`).
    """
    decision = record.decision
    if decision is None:
        return ()
    ttft, candidate = decision.predicted_ttft, decision.predicted_for
    shown = _ShownDecision(
        decision.destination,
        decision.prompt_tokens,
        decision.predicted_cached_tokens,
        None if ttft is None else round(ttft * 1000, 3),
        {each.profile: each.destination for each in decision.stages},
        {} if candidate is None else candidate.cost_terms(),
    )
    return ((DECISION, msgspec.json.encode(shown).decode()),)


def served_header(record: RequestRecord) -> Headers:
    """Return the endpoint that served the request, as the gateway reported."""
    return ((CONFORMANCE_SERVED, record.served or _NOT_SERVED),)


def queue_duration_header(record: RequestRecord) -> Headers:
    """Return for how many milliseconds flow control held the request; 0: not at all."""
    decision = record.decision
    waited = 0.0 if decision is None else decision.waited or 0.0
    return ((QUEUE_DURATION, milliseconds(waited)),)


def milliseconds(seconds: float) -> str:
    """Return whole milliseconds, as llm-d-router writes them into the header."""
    return str(int(seconds * 1000))
