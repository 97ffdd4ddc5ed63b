"""Figures of the pool, its caches and what plug-ins count, computed when a page is written."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import Family, FamilyText, counter, expose, gauge
from epp.model.endpoint import CacheStats, Endpoint, Load

if TYPE_CHECKING:  # they are rarely used, and take long to load
    from epp.policy.disaggregation.rollout import Rollout
    from epp.policy.producers.media_cache import MediaCaches

PoolView = Callable[[], Sequence[tuple[Endpoint, Load, bool]]]
"""Returns each endpoint with its load and whether it can be picked."""

CacheView = Callable[[], Sequence[CacheStats]]
"""Returns the modelled state of each endpoint's cache."""

_CACHE_GAUGES: tuple[tuple[Family, Callable[[CacheStats], float]], ...] = (
    (families.CACHE_TRUST, lambda cache_stats: cache_stats.trust),
    (families.CACHE_CAPACITY, lambda cache_stats: cache_stats.capacity),
    (families.CACHE_USED, lambda cache_stats: cache_stats.used),
    (families.CACHE_BLOCKS, lambda cache_stats: cache_stats.blocks),
    (families.CACHE_LIVE, lambda cache_stats: cache_stats.live),
)

_ROLLOUT_TYPE: Final = "disaggregatedset-rollout-screener"
_MEDIA_TYPE: Final = "mm-embeddings-cache-producer"
_MODALITY: Final = "unknown"
"""Of all media: what kind a digest is of is not known."""
_SCREENER: Final = ("plugin_type", "plugin_name")
SHARES: Final = gauge(
    "llm_d_epp_disaggregatedset_revision_gating_share",
    "Share of requests (0..1) that each revision gets; 0 if a required role has no pod.",
    *_SCREENER,
    "mode",
    "revision",
)
UNMATCHED: Final = counter(
    "llm_d_epp_disaggregatedset_strict_header_no_match_total",
    "Requests whose strict header no endpoint matched, by selector.",
    *_SCREENER,
    "selector",
)


def is_reported(load: Load) -> bool:
    """Whether a load was ever reported."""
    return math.isfinite(load.at)


class PoolGauges:
    """Gauges over the endpoints of the pool `name`.

    Means and deviations are of `fresh` loads: an endpoint that does not show its metrics any more
    does not count there with what it showed last.
    """

    def __init__(
        self, name: str, view: PoolView, caches: CacheView, fresh: Callable[[Load], bool]
    ) -> None:
        self._name = name
        self._view = view
        self._caches = caches
        self._fresh = fresh

    def collect(self) -> Iterator[FamilyText]:
        """Yield the gauges; means and deviations only if an endpoint's load is fresh."""
        pool = self._view()
        yield from expose(families.READY, [((self._name,), sum(ready for *_, ready in pool))])
        queues = [((self._name, endpoint.name), load.waiting) for endpoint, load, _ in pool]
        yield from expose(families.ENDPOINT_QUEUE, queues)
        loads = [load for _, load, ready in pool if ready and self._fresh(load)]
        yield from self._summary(
            families.AVERAGE_KV, families.DEVIATION_KV, [load.kv_usage for load in loads]
        )
        yield from self._summary(
            families.AVERAGE_QUEUE, families.DEVIATION_QUEUE, [load.waiting for load in loads]
        )
        yield from self._summary(
            families.AVERAGE_RUNNING, families.DEVIATION_RUNNING, [load.running for load in loads]
        )
        yield from self._cache_gauges()

    def _cache_gauges(self) -> Iterator[FamilyText]:
        cache_stats = self._caches()
        for family, value in _CACHE_GAUGES:
            rows = [((self._name, each.endpoint.name), value(each)) for each in cache_stats]
            yield from expose(family, rows)

    def _summary(
        self, mean: Family, deviation: Family, values: list[float]
    ) -> Iterator[FamilyText]:
        """Yield mean and deviation of values."""
        # llm-d-router computes the standard deviation of a sample, too: it divides by n - 1.
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            yield from expose(mean, [((self._name,), statistics.fmean(values))])
            yield from expose(deviation, [((self._name,), spread)])


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
