"""The numbers that a metrics page holds for one endpoint, checked. Knows what none of them is."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from epp.protocol.metrics.metric_names import EngineMetrics, Metric
from epp.protocol.metrics.page import Page, labels, number

T = TypeVar("T")

_UNSAID = frozenset((b"", b"None"))
_MOST = 1e15
_MOST_REQUESTS = 1e9


class MetricValues:
    """One page, as far as it speaks of one endpoint: of all engines, or of that of rank `rank`.

    `doubts` are what stands there and cannot be true, by the name of the metric.
    """

    def __init__(self, page: Page, engine: EngineMetrics, rank: int | None = None) -> None:
        self.doubts: dict[str, str] = {}
        self._page = page
        self._engine = engine
        self._rank = b"" if rank is None else str(rank).encode()

    def requests(self, metric: Metric, default: float) -> float:
        """Count requests, within reason; a page without the endpoint's rank is doubted."""
        found = self.by_rank(metric, most=_MOST_REQUESTS)
        if not found and self._rank and self._page.samples(metric.family):
            self.doubts["rank"] = f"the page speaks of no engine {self._rank.decode()}"
        return sum(found.values()) if found else default

    def total(self, metric: Metric | None, default: T) -> float | T:
        """Sum over the engines; `default` where none says."""
        found = self.by_rank(metric) if metric else {}
        return sum(found.values()) if found else default

    def whole(self, metrics: tuple[Metric, ...], most: int) -> int | None:
        """Give the first of these that the page tells: a whole number, the same for all."""
        for metric in metrics:
            for figure in self.by_rank(metric).values():
                if 1 <= figure <= most and figure.is_integer():
                    return int(figure)
                self.doubt(metric, f"{figure:g}")
        return None

    def by_rank(
        self, metric: Metric, *, most: float = _MOST, everyone: bool = False
    ) -> dict[bytes, float]:
        """Give each engine's number by its rank; with `everyone`, of other endpoints' too."""
        found: dict[bytes, float] = {}
        for rank, value, pairs in self._samples(metric, everyone=everyone):
            figure = number(pairs[metric.label]) if metric.label else value
            if not 0 <= figure <= most:
                said = pairs.get(metric.label, b"").decode(errors="replace")
                self.doubt(metric, said or f"{value:g}")
            elif rank not in found:
                found[rank] = figure
            else:
                both = found[rank], figure
                found[rank] = sum(both) if self._engine.adds else max(both)
        return found

    def text(self, metric: Metric | None) -> bytes:
        """Give the label's text of the first sample; empty where there is none."""
        if metric is None:
            return b""
        return next((pairs[metric.label] for _, _, pairs in self._samples(metric)), b"")

    def states(self, metric: Metric | None) -> Iterator[tuple[bytes, float, Mapping[bytes, bytes]]]:
        """Give rank, value and labels of every sample."""
        return self._samples(metric) if metric else iter(())

    def doubt(self, metric: Metric, said: str) -> None:
        """Note that a value is not believed."""
        self.doubts[str(metric)] = f"{metric} is {said}, which is ignored"

    def _samples(
        self, metric: Metric, *, everyone: bool = False
    ) -> Iterator[tuple[bytes, float, Mapping[bytes, bytes]]]:
        """Give what is said of this endpoint's engines; "None" is how vLLM says nothing."""
        page = self._page
        samples = page.rare(metric.family) if metric.rare else page.samples(metric.family)
        for raw, value in samples:
            pairs = labels(raw)
            rank = pairs.get(self._engine.rank, b"")
            if rank and self._rank and rank != self._rank and not everyone:
                continue
            if metric.where and pairs.get(metric.where[0]) != metric.where[1]:
                continue
            if not metric.label or pairs.get(metric.label, b"") not in _UNSAID:
                yield rank, value, pairs
