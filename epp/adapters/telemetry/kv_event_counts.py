"""Metrics of the KV events that engines publish: what came, and what became of it.

`llm_d_epp_*` are llm-d-router's; its `pod_identifier` is the endpoint's namespace and name.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from epp.adapters.telemetry.series import Family, FamilyText, expose

_OUTCOMES: Final = Family(
    name="warmpick_kv_event_batches_total",
    help="Batches of KV events, by endpoint and by what became of them.",
    kind="counter",
    labels=("model_server_endpoint", "outcome"),
)
_RECEIVED: Final = Family(
    name="llm_d_epp_kv_cache_events_messages_received_total",
    help="Messages of KV events that were received.",
    kind="counter",
    labels=("pod_identifier",),
)
_SUBSCRIBERS: Final = Family(
    name="llm_d_epp_kv_cache_events_active_subscribers",
    help="Endpoints whose KV events are subscribed to, reachable or not.",
    kind="gauge",
)
_READERS: Final = Family(
    name="llm_d_epp_kv_cache_events_pool_capacity",
    help="Readers of KV events: one event loop.",
    kind="gauge",
)
_MESSAGES: Final = {"batches", "duplicates", "unreadable"}
"""Outcomes of a message; the others are of events in it, or of the stream."""


def kv_event_counts(counts: Mapping[tuple[str, str], int]) -> Iterator[FamilyText]:
    """Yield the families of what was counted, by endpoint and outcome.

    Every endpoint that is subscribed to is in `counts`, with 0 of an outcome that it had not.
    """
    named = [((_name(endpoint), outcome), times) for (endpoint, outcome), times in counts.items()]
    yield from expose(_OUTCOMES, named)
    if not counts:
        return
    received = {endpoint: 0 for endpoint, _ in counts}
    for (endpoint, outcome), times in counts.items():
        if outcome in _MESSAGES:
            received[endpoint] += times
    yield from expose(_RECEIVED, [((endpoint,), times) for endpoint, times in received.items()])
    yield from expose(_SUBSCRIBERS, [((), len(received))])
    yield from expose(_READERS, [((), 1)])


def _name(endpoint: str) -> str:
    return endpoint.rpartition("/")[2]  # as `model_server_endpoint` is everywhere
