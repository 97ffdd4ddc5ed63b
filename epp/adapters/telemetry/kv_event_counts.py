"""Metrics of the KV events that engines publish, and of what became of them.

`llm_d_epp_*` are llm-d-router's; its `pod_identifier` is the endpoint's namespace and name.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from epp.adapters.telemetry.series import FamilyText, alias_of, counter, expose, gauge
from epp.model.endpoint import EndpointId

if TYPE_CHECKING:  # few pickers need it
    from epp.model.caches.kv_event_mirror import KvEventCounts
    from epp.protocol.kvevents.notices import FeedCounts

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
    "Connections to publishers that broke (`recv`), or could not be made (`connect`).",
    "pod_identifier",
    "operation",
)
_ADMISSIONS: Final = counter(
    "llm_d_epp_kv_cache_index_admissions_total",
    "Engines' blocks that KV events reported as stored, and that the prefix index took.",
    alias=alias_of("kvcache_index_admissions_total"),
)
_EVICTIONS: Final = counter(
    "llm_d_epp_kv_cache_index_evictions_total",
    "Engines' blocks of which KV events reported the last copy as removed.",
    alias=alias_of("kvcache_index_evictions_total"),
)
_CONNECTIONS: Final = {"disconnects", "unreachable"}
"""What became of connections, which has families of its own."""


def kv_event_counts(
    counts: "Mapping[EndpointId, FeedCounts]", blocks: "KvEventCounts"
) -> Iterator[FamilyText]:
    """Yield the families of the endpoints that are subscribed to, by their ids.

    `blocks` are those of all endpoints that there were.
    """
    yield from expose(_ADMISSIONS, [((), blocks.stored)])
    yield from expose(_EVICTIONS, [((), blocks.removed)])
    # `model_server_endpoint` is the name without the namespace, as everywhere.
    outcomes = [
        ((endpoint.rpartition("/")[2], outcome), times)
        for endpoint, each in counts.items()
        for outcome, times in asdict(each).items()
        if outcome not in _CONNECTIONS
    ]
    yield from expose(_OUTCOMES, outcomes)
    if not counts:
        return
    pairs = counts.items()
    messages = [((endpoint,), of.batches + of.duplicates + of.unreadable) for endpoint, of in pairs]
    yield from expose(_RECEIVED, messages)
    broken = [((endpoint,), of.disconnects + of.unreachable) for endpoint, of in pairs]
    yield from expose(_RECONNECTIONS, broken)
    errors = [((endpoint, "recv"), of.disconnects) for endpoint, of in pairs]
    errors += [((endpoint, "connect"), of.unreachable) for endpoint, of in pairs]
    yield from expose(_ERRORS, [(labels, times) for labels, times in errors if times])
    yield from expose(_SUBSCRIBERS, [((), len(counts))])
    yield from expose(_READERS, [((), 1)])
