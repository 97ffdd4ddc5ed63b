"""Metrics of the KV events that engines publish, and of what became of them.

`llm_d_epp_*` are llm-d-router's; its `pod_identifier` is the endpoint's namespace and name.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from epp.adapters.telemetry.series import FamilyText, counter, expose, gauge

_OUTCOMES: Final = counter(
    "warmpick_kv_event_batches_total",
    "Batches of KV events, by endpoint and by what became of them.",
    "model_server_endpoint",
    "outcome",
)
_RECEIVED: Final = counter(
    "llm_d_epp_kv_cache_events_messages_received_total",
    "Messages of KV events that were received.",
    "pod_identifier",
)
_SUBSCRIBERS: Final = gauge(
    "llm_d_epp_kv_cache_events_active_subscribers",
    "Endpoints whose KV events are subscribed to, reachable or not.",
)
_READERS: Final = gauge(
    "llm_d_epp_kv_cache_events_pool_capacity", "Readers of KV events: one event loop."
)
_RECONNECTIONS: Final = counter(
    "llm_d_epp_kv_cache_events_subscriber_reconnections_total",
    "Connections to publishers of KV events that broke, or could not be made.",
    "pod_identifier",
)
_ERRORS: Final = counter(
    "llm_d_epp_kv_cache_events_zmq_errors_total",
    "The same by operation: `recv` for those that broke, `connect` for the others.",
    "pod_identifier",
    "operation",
)
_OPERATIONS: Final = {"disconnects": "recv", "unreachable": "connect"}
"""Outcomes of a connection, and llm-d-router's word for what failed."""
_MESSAGES: Final = {"batches", "duplicates", "unreadable"}
"""Outcomes of a message; the others are of events in it, or of the stream."""


def kv_event_counts(counts: Mapping[tuple[str, str], int]) -> Iterator[FamilyText]:
    """Yield the families for `counts` of events by endpoint and outcome.

    Every endpoint that is subscribed to is in `counts`, if only with zeros.
    """
    # `model_server_endpoint` is the name without the namespace, as everywhere.
    named = [
        ((key.rpartition("/")[2], outcome), times)
        for (key, outcome), times in counts.items()
        if outcome not in _OPERATIONS
    ]
    yield from expose(_OUTCOMES, named)
    if not counts:
        return
    received = {endpoint: 0 for endpoint, _ in counts}
    broken = dict(received)
    errors = []
    for (endpoint, outcome), times in counts.items():
        if outcome in _MESSAGES:
            received[endpoint] += times
        elif outcome in _OPERATIONS:
            broken[endpoint] += times
            if times:
                errors.append(((endpoint, _OPERATIONS[outcome]), times))
    yield from expose(_RECEIVED, [((endpoint,), times) for endpoint, times in received.items()])
    yield from expose(_RECONNECTIONS, [((endpoint,), times) for endpoint, times in broken.items()])
    yield from expose(_ERRORS, errors)
    yield from expose(_SUBSCRIBERS, [((), len(received))])
    yield from expose(_READERS, [((), 1)])
