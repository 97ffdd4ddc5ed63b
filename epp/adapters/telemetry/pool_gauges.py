"""Figures of the pool, its caches and what plug-ins count, computed when a page is written."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import (
    DeprecatedAlias,
    Family,
    FamilyText,
    alias_of,
    counter,
    expose,
    gauge,
)
from epp.model.endpoint import CacheStats, Endpoint, Load

if TYPE_CHECKING:  # they are rarely used, and take long to load
    from epp.policy.disaggregation.rollout import Rollout
    from epp.policy.filters.caches import UntilSaturated
    from epp.policy.producers.media_cache import MediaCaches


def _of_endpoint(name: str, text: str, alias: DeprecatedAlias | None = None) -> Family:
    return gauge(name, text, "name", "model_server_endpoint", alias=alias)


def _of_loads(name: str, text: str) -> tuple[Family, Family]:
    """Return the gauges of the mean and the standard deviation of a figure."""
    former = alias_of(f"inference_pool_average_{name}", "name")
    return (
        gauge(f"llm_d_epp_average_{name}", f"Mean {text}.", "name", alias=former),
        gauge(f"llm_d_epp_std_dev_{name}", f"Standard deviation of the {text}.", "name"),
    )


READY: Final = gauge(
    "llm_d_epp_ready_endpoints",
    "Endpoints that can be picked.",
    "name",
    alias=alias_of("inference_pool_ready_pods", "name"),
)
ENDPOINT_QUEUE: Final = _of_endpoint(
    "llm_d_epp_per_endpoint_queue_size",
    "Requests that wait in an endpoint.",
    alias_of("inference_pool_per_pod_queue_size", "name", "model_server_pod=model_server_endpoint"),
)
LOADS: Final = {
    "kv_usage": _of_loads("kv_cache_utilization", "share (0..1) of KV cache in use"),
    "waiting": _of_loads("queue_size", "number of requests that wait in an endpoint"),
    "running": _of_loads("running_requests", "number of requests that run in an endpoint"),
}
"""By the field of `Load`."""
CACHES: Final = {
    "trust": _of_endpoint(
        "warmpick_endpoint_cache_trust",
        "How far (0..1) recent predictions for an endpoint's cache held.",
    ),
    "capacity": _of_endpoint(
        "warmpick_endpoint_cache_capacity_tokens", "Size of an endpoint's cache, as believed."
    ),
    "used": _of_endpoint(
        "warmpick_endpoint_cache_used_tokens",
        "Tokens of an endpoint's cache that requests in flight are believed to hold.",
    ),
    "blocks": _of_endpoint(
        "warmpick_endpoint_cache_blocks",
        "Blocks that an endpoint's cache is believed to hold.",
    ),
    "live": _of_endpoint(
        "warmpick_endpoint_cache_events_live",
        "Whether (0 or 1) an endpoint's own events correct what is believed of it.",
    ),
}
"""By the field of `CacheStats`."""
_ROLLOUT_TYPE: Final = "disaggregatedset-rollout-screener"
_MEDIA_TYPE: Final = "mm-embeddings-cache-producer"
_MODALITY: Final = "unknown"
"""For media of all kinds together, as a digest does not show its kind."""
SHARES: Final = gauge(
    "llm_d_epp_disaggregatedset_revision_gating_share",
    "Share of requests (0..1) that each revision gets; 0 if a required role has no pod.",
    *(*families.OF_TYPE, "mode", "revision"),
)
UNMATCHED: Final = counter(
    "llm_d_epp_disaggregatedset_strict_header_no_match_total",
    "Requests whose strict header no endpoint matched, by selector.",
    *(*families.OF_TYPE, "selector"),
)


def pool_gauges(
    name: str,
    pool: Sequence[tuple[Endpoint, Load, bool]],
    caches: Sequence[CacheStats],
    fresh: Callable[[Load], bool],
) -> Iterator[FamilyText]:
    """Yield the gauges over the endpoints of the pool `name`.

    Means and deviations are of `fresh` loads: an endpoint that does not show its metrics any more
    does not count there with what it showed last.
    """
    yield from expose(READY, [((name,), sum(ready for *_, ready in pool))])
    queues = [((name, endpoint.name), load.waiting) for endpoint, load, _ in pool]
    yield from expose(ENDPOINT_QUEUE, queues)
    loads = [load for _, load, ready in pool if ready and fresh(load)]
    for field, (mean, deviation) in LOADS.items() if loads else ():
        values = [getattr(load, field) for load in loads]
        usual = math.fsum(values) / len(values)
        yield from expose(mean, [((name,), usual)])
        # llm-d-router computes the standard deviation of a sample, too: it divides by n - 1.
        spread = math.hypot(*[value - usual for value in values])
        yield from expose(deviation, [((name,), spread / math.sqrt(max(1, len(values) - 1)))])
    for field, family in CACHES.items():
        rows = [((name, each.endpoint.name), getattr(each, field)) for each in caches]
        yield from expose(family, rows)


def rollout_metrics(rollouts: "Mapping[str, Rollout]") -> Iterator[FamilyText]:
    """Yield the families of `disaggregatedset-rollout-screener`s, by their names."""
    shares = [
        ((_ROLLOUT_TYPE, name, each.mode, revision), share)
        for name, each in rollouts.items()
        for revision, share in each.shares().items()
    ]
    yield from expose(SHARES, shares)
    unmatched = [
        ((_ROLLOUT_TYPE, name, selector), times)
        for name, each in rollouts.items()
        for selector, times in each.unmatched.items()
    ]
    yield from expose(UNMATCHED, unmatched)


def affinity_metrics(filters: "Mapping[str, UntilSaturated]") -> Iterator[FamilyText]:
    """Yield the family of `prefix-cache-affinity-filter`s, by their names."""
    decisions = [
        ((name, outcome), times)
        for name, each in filters.items()
        for outcome, times in each.outcomes.items()
    ]
    yield from expose(families.AFFINITY_DECISIONS, decisions)


def media_metrics(producers: "Mapping[str, MediaCaches]") -> Iterator[FamilyText]:
    """Yield the families of `mm-embeddings-cache-producer`s, by their names, once used."""
    used = [((_MEDIA_TYPE, name), each) for name, each in producers.items() if each.queries]
    queries = [((*labels, _MODALITY), each.queries) for labels, each in used]
    yield from expose(families.ENCODER_QUERIES, queries)
    hits = [
        ((*labels, endpoint_id, _MODALITY), times)
        for labels, each in used
        for endpoint_id, times in each.hits.items()
    ]
    yield from expose(families.ENCODER_HITS, hits)
    ratios: list[tuple[tuple[str, ...], Histogram]] = []
    for labels, each in used:
        ratio = Histogram(families.HIT_RATIO_BOUNDS)
        ratio.counts, ratio.total = [*each.tenths, 0], each.shares
        ratios.append((labels, ratio))
    yield from expose(families.ENCODER_HIT_RATIO, ratios)
