"""The checked numbers of one endpoint on a metrics page."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from epp.protocol.metrics.metric_names import EngineMetrics, Metric
from epp.protocol.metrics.page import MAX_RANKS, Labels, MetricTable, Page
from epp.protocol.metrics.page_text import MAX_LINE_BYTES

T = TypeVar("T")


class MetricValues:
    """The values of one endpoint on a page: of all its engines, or of the one of `rank`.

    `warnings` has a message for each metric with an impossible value, and for what is missing.
    """

    def __init__(self, page: Page, engine: EngineMetrics, rank: int | None = None) -> None:
        self.warnings: dict[str, str] = {}
        self._page = page
        self._engine = engine
        self._rank = b"" if rank is None else str(rank).encode()

    def requests(self, metric: Metric | None, default: float) -> float:
        """Return a number of requests; a page without the endpoint's rank is recorded."""
        if metric is None:
            return default
        found = self.by_rank(metric)
        if not found and self._rank and not self._table(metric).empty:
            self.warnings["rank"] = f"the page has no engine {self._rank.decode()}"
        return min(sum(found.values()), metric.most) if found else default

    def has(self, metric: Metric | None) -> bool:
        """Return whether the page has a number of the endpoint's."""
        return metric is not None and bool(self.by_rank(metric))

    def total(self, metric: Metric | None, default: T) -> float | T:
        """Return the sum over the engines; `default` without samples."""
        found = self.by_rank(metric) if metric else {}
        return min(sum(found.values()), metric.most) if metric and found else default

    def whole(self, metrics: tuple[Metric, ...], most: int) -> int | None:
        """Return the first of these metrics with a whole number in 1..`most`; None without one."""
        for metric in metrics:
            refused = None
            for reported in self.by_rank(metric).values():
                if 1 <= reported <= most and reported.is_integer():
                    return int(reported)
                refused = reported
            if refused is not None:
                self.ignore(metric, f"{refused:g}")
        return None

    def first(self, metric: Metric) -> float | None:
        """Return the value of the first engine on the page; None without samples."""
        return next(iter(self.by_rank(metric).values()), None)

    def by_rank(self, metric: Metric, *, all_ranks: bool = False) -> Mapping[bytes, float]:
        """Return each engine's value by its rank; with `all_ranks` those of other endpoints too."""
        table = self._table(metric)
        if table.impossible and (impossible := self._mine(table.impossible)):
            self.ignore(metric, list(impossible.values())[-1])
        return table.values if all_ranks else self._mine(table.values)

    def text(self, metric: Metric | None) -> bytes:
        """Return the label's text of the first sample, cut at 64 bytes; empty without one."""
        if metric is None:
            return b""
        return next(iter(self._mine(self._table(metric).texts).values()), b"")

    def states(self, metric: Metric | None) -> Iterable[Labels]:
        """Return the labels of each engine's newest sample: the one of the greatest value."""
        if metric is None:
            return ()
        return [pairs for _, pairs in self._mine(self._table(metric).states).values()]

    def ignore(self, metric: Metric, value: str) -> None:
        """Record that a value is impossible, and ignored."""
        self.warnings[str(metric)] = f"{metric} is {value}, which is ignored"

    def _table(self, metric: Metric) -> MetricTable:
        table = self._page.table(metric, self._engine)
        if table.too_many:
            self.warnings["ranks"] = f"engines of the page after the first {MAX_RANKS} are ignored"
        if self._page.long_lines:
            self.warnings["lines"] = f"lines of more than {MAX_LINE_BYTES} bytes are ignored"
        return table

    def _mine(self, table: Mapping[bytes, T]) -> Mapping[bytes, T]:
        """Return what is of this endpoint's engines, or of no engine in particular."""
        if not self._rank:
            return table
        return {rank: table[rank] for rank in (b"", self._rank) if rank in table}
