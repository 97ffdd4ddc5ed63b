"""The checked numbers of one endpoint on a metrics page."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from epp.protocol.metrics.metric_names import EngineMetrics, Metric
from epp.protocol.metrics.page import Page, labels, number

T = TypeVar("T")

_NO_VALUE = frozenset((b"", b"None"))
_MAX_VALUE = 1e15
"""Larger values of any metric are ignored: the counters of years are smaller."""
_MAX_REQUESTS = 1e9
"""Larger numbers of waiting or running requests are ignored."""


class MetricValues:
    """The values of one endpoint on a page: of all its engines, or of the one of `rank`.

    `warnings` has a message for each metric with an impossible value, and for what is missing.
    """

    def __init__(self, page: Page, engine: EngineMetrics, rank: int | None = None) -> None:
        self.warnings: dict[str, str] = {}
        self._page = page
        self._engine = engine
        self._rank = b"" if rank is None else str(rank).encode()

    def requests(self, metric: Metric, default: float) -> float:
        """Return a number of requests; a page without the endpoint's rank is recorded."""
        found = self.by_rank(metric, most=_MAX_REQUESTS)
        if not found and self._rank and self._page.samples(metric.family):
            self.warnings["rank"] = f"the page has no engine {self._rank.decode()}"
        return sum(found.values()) if found else default

    def total(self, metric: Metric | None, default: T) -> float | T:
        """Return the sum over the engines; `default` without samples."""
        found = self.by_rank(metric) if metric else {}
        return sum(found.values()) if found else default

    def whole(self, metrics: tuple[Metric, ...], most: int) -> int | None:
        """Return the first of these metrics with a whole number in 1..`most`; None without one."""
        for metric in metrics:
            for reported in self.by_rank(metric).values():
                if 1 <= reported <= most and reported.is_integer():
                    return int(reported)
                self.ignore(metric, f"{reported:g}")
        return None

    def by_rank(
        self, metric: Metric, *, most: float = _MAX_VALUE, all_ranks: bool = False
    ) -> dict[bytes, float]:
        """Return each engine's value by its rank; with `all_ranks` those of other endpoints too."""
        found: dict[bytes, float] = {}
        for rank, value, pairs in self._samples(metric, all_ranks=all_ranks):
            reported = number(pairs[metric.label]) if metric.label else value
            if not 0 <= reported <= most:
                text = pairs.get(metric.label, b"").decode(errors="replace")
                self.ignore(metric, text or f"{value:g}")
            elif rank not in found:
                found[rank] = reported
            else:
                both = found[rank], reported
                found[rank] = sum(both) if self._engine.adds else max(both)
        return found

    def text(self, metric: Metric | None) -> bytes:
        """Return the label's text of the first sample; empty without one."""
        if metric is None:
            return b""
        return next((pairs[metric.label] for _, _, pairs in self._samples(metric)), b"")

    def states(self, metric: Metric | None) -> Iterator[tuple[bytes, float, Mapping[bytes, bytes]]]:
        """Yield rank, value and labels of every sample."""
        return self._samples(metric) if metric else iter(())

    def ignore(self, metric: Metric, value: str) -> None:
        """Record that a value is impossible, and ignored."""
        self.warnings[str(metric)] = f"{metric} is {value}, which is ignored"

    def _samples(
        self, metric: Metric, *, all_ranks: bool = False
    ) -> Iterator[tuple[bytes, float, Mapping[bytes, bytes]]]:
        """Yield rank, value and labels of the samples of this endpoint's engines."""
        page = self._page
        samples = page.rare(metric.family) if metric.rare else page.samples(metric.family)
        for raw, value in samples:
            pairs = labels(raw)
            rank = pairs.get(self._engine.rank, b"")
            if rank and self._rank and rank != self._rank and not all_ranks:
                continue
            if metric.where and pairs.get(metric.where[0]) != metric.where[1]:
                continue
            # vLLM `cache_config_info`: a field without a value is the label value "None".
            if not metric.label or pairs.get(metric.label, b"") not in _NO_VALUE:
                yield rank, value, pairs
