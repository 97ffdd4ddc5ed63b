"""The endpoints as `epp top` shows them: load, cache, trust, speed, and how predictions held."""

from collections.abc import Mapping
from math import isfinite

import msgspec

from epp.app.observing.decision_ring import EndpointTally
from epp.model.endpoint import EndpointId
from epp.model.pods.pod import Pod

_PROMPT_TOKENS = 1000
"""The tokens of the prompt for which a speed is shown."""


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. The counts are since the picker started; two views give a rate."""

    endpoint: str
    """Its id: `namespace/name`, and the rank if there are several."""
    target: str
    """Its `ip:port`."""
    state: str
    """`ready`, `ejected`, `unreachable`, `asleep` or `partial` (for parts of requests alone)."""
    waiting: float
    """Requests that wait in it: its report, corrected by what was sent since."""
    running: float
    """Requests that run in it, likewise."""
    kv_usage: float
    """The share of the KV cache that requests hold, as reported."""
    requests: int
    """Requests that this picker sent and has not seen end."""
    queued_prefill_ms: float
    """Prefill work that is queued there."""
    cache_tokens: int
    """The size of the cache."""
    cached_tokens: int
    """How much of it requests use, or have left there."""
    trust: float
    """How well recent predictions for the cache held, from 0 to 1."""
    prefill_tokens_per_second: float
    """The speed for a prompt of 1,000 uncached tokens."""
    events_live: bool
    """Whether the engine's own events correct what is believed of the cache."""
    report_age: float | None
    """Seconds since its metrics were read, or, if they are frozen, since they last changed.

    None if they never were."""
    responses: int
    """Responses that reported usage and cached tokens."""
    prompt_tokens: int
    """Tokens of their prompts."""
    cached_prompt_tokens: int
    """Those that the engine had cached."""
    predicted_cached_tokens: int
    """Those that were predicted to be."""
    error_tokens: int
    """The differences of the two, added up."""


class EndpointsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoints of a pool; `at` is in seconds of the picker's clock."""

    pool: str
    at: float
    decisions: int
    """How many were made so far."""
    endpoints: tuple[EndpointView, ...]


def endpoint_view(
    pod: Pod, tallies: Mapping[EndpointId, EndpointTally], now: float
) -> EndpointView:
    """Return the view of one endpoint."""
    stats = pod.cache_stats()
    load = pod.books.at(now)
    tally = tallies.get(pod.endpoint.id) or EndpointTally()
    seconds = pod.speed.prefill.seconds(_PROMPT_TOKENS, 0) * pod.pace.prefill_slowness.value
    return EndpointView(
        endpoint=pod.endpoint.id,
        target=pod.endpoint.target,
        state=_state(pod),
        waiting=round(load.waiting, 3),
        running=round(load.running, 3),
        kv_usage=round(load.kv_usage, 4),
        requests=pod.ledger.requests,
        queued_prefill_ms=round(1e3 * pod.ledger.queued_seconds(now), 3),
        cache_tokens=stats.capacity,
        cached_tokens=min(stats.capacity, stats.filled),
        trust=round(stats.trust, 4),
        prefill_tokens_per_second=round(_PROMPT_TOKENS / seconds, 1) if seconds > 0 else 0.0,
        events_live=stats.live,
        report_age=round(now - pod.load.at, 3) if isfinite(pod.load.at) else None,
        responses=tally.requests,
        prompt_tokens=tally.prompt_tokens,
        cached_prompt_tokens=tally.cached_tokens,
        predicted_cached_tokens=tally.predicted_tokens,
        error_tokens=tally.absolute_error,
    )


def _state(pod: Pod) -> str:
    if not pod.reachable:
        return "unreachable" if pod.load.awake else "asleep"
    if pod.outlier.ejected is not None:
        return "ejected"
    return "partial" if pod.partial else "ready"
