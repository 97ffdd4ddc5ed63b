"""Gauges over the pool and its endpoints' caches, computed when a page is written."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from epp.adapters.telemetry import families
from epp.adapters.telemetry.series import Family, FamilyText, expose
from epp.model.endpoint import CacheStats, Endpoint, Load

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
