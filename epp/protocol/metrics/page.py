"""A metrics page: the values of all engines that it reports, read once for all endpoints."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

from epp.protocol.metrics.metric_names import (
    BUILT_IN_ENGINES,
    EngineCatalog,
    EngineMetrics,
    Metric,
)
from epp.protocol.metrics.page_text import KnownLines, PageText, labels, number

MAX_RANKS: Final = 4096
"""Engines that a page may report; the endpoints file allows as many ranks."""
_MAX_TEXT: Final = 64
"""Bytes of a label's value that are kept."""
_NO_VALUE: Final = frozenset((b"", b"None"))

Labels = Mapping[bytes, bytes]


class MetricTable:
    """The values of one metric on a page, each by its rank.

    `impossible` has those that cannot be true, `texts` the text of a label, and `states` the
    labels of the newest sample, each with its value. `too_many` is whether ranks were left out,
    `empty` whether the family has no samples.
    """

    def __init__(self, metric: Metric, engine: EngineMetrics) -> None:
        self.metric = metric
        self._engine = engine
        self._adds = engine.adds and metric not in engine.kv_usage + engine.block_size
        self._ranks: set[bytes] = set()
        self.values: dict[bytes, float] = {}
        self.impossible: dict[bytes, str] = {}
        self.texts: dict[bytes, bytes] = {}
        self.states: dict[bytes, tuple[float, Labels]] = {}
        self._smallest: dict[bytes, float] = {}
        self.too_many = False
        self.empty = True

    def add(self, value: float, pairs: Labels) -> None:
        """Add a sample, unless its labels are not the metric's."""
        metric = self.metric
        self.empty = False
        if metric.where and any(pairs.get(label) != wanted for label, wanted in metric.where):
            return
        # vLLM `cache_config_info`: a field without a value is the label value "None".
        text = pairs.get(metric.label, b"")
        if metric.label and text in _NO_VALUE:
            return
        rank = pairs.get(self._engine.rank, b"")
        if rank not in self._ranks:
            if len(self._ranks) >= MAX_RANKS:
                self.too_many = True
                return
            self._ranks.add(rank)
        if metric is self._engine.adapters:
            self._set_state(rank, value, pairs)
        else:
            self._add_value(rank, text[:_MAX_TEXT], value)

    def _set_state(self, rank: bytes, value: float, pairs: Labels) -> None:
        if not 0.0 <= value <= self.metric.most:
            return
        smallest = self._smallest[rank] = min(value, self._smallest.get(rank, value))
        newest = self.states.get(rank, (0.0,))[0]
        if _mean_time(newest, smallest) <= _mean_time(value, smallest):
            self.states[rank] = value, pairs

    def _add_value(self, rank: bytes, text: bytes, value: float) -> None:
        if self.metric.label:
            value = number(text)
            self.texts.setdefault(rank, text)
        if not self.metric.least <= value <= self.metric.most:
            self.impossible[rank] = text.decode(errors="replace") or f"{value:g}"
        elif rank not in self.values:
            self.values[rank] = value
        else:
            both = self.values[rank], value
            total = sum(both) if self._adds else max(both)
            self.values[rank] = min(total, self.metric.most)


def _mean_time(total: float, smallest: float) -> float:
    """Return the mean of the Unix times that a sample adds up, one of each of vLLM's API servers.

    The `smallest` sample shows how many they are: a decade is little of the time since 1970.
    """
    return total / max(1, round(total / max(1.0, smallest)))


Tables = dict[EngineMetrics, dict[Metric, MetricTable]]
"""The values of an engine's metrics."""


class PageBefore:
    """The parts of a page that need not be read again on the next one of the same server."""

    def __init__(self) -> None:
        self.lines = KnownLines()
        self.tables: Tables = {}
        self.digests: dict[bytes, int] = {}


class Page:
    """One page, of one of the engines of a catalog.

    `text` is the whole page. `before` is of the server's last page, and afterwards of this one.
    `changed`: something that was read differs from the page before, or may differ.
    """

    def __init__(
        self,
        text: bytes,
        before: PageBefore | None = None,
        engines: EngineCatalog = BUILT_IN_ENGINES,
    ) -> None:
        before = before or PageBefore()
        self.text = text
        self.changed = False
        self._text = PageText(text, before.lines)
        self._engines = engines
        self._recognized: EngineMetrics | None = None
        self._searched = False  # whether that was looked for
        self._known_tables, self._known_digests = before.tables, before.digests
        self._tables: Tables = {}
        self._digests: dict[bytes, int] = {}
        self._kept_tables: Tables = {}
        before.tables, before.digests = self._kept_tables, self._digests

    @property
    def long_lines(self) -> bool:
        """Whether a sample was skipped because its line is too long."""
        return self._text.long_lines

    def table(self, metric: Metric, engine: EngineMetrics) -> MetricTable:
        """Return a metric's values."""
        found = self._tables.get(engine, {}).get(metric)
        if found is not None:
            return found
        for _ in self.prepare((metric,), engine):
            pass
        return self._tables[engine][metric]

    def prepare(self, metrics: Iterable[Metric], engine: EngineMetrics) -> Iterator[None]:
        """Read metrics in steps, so that `table` returns each at once."""
        tables, kept = self._tables.setdefault(engine, {}), self._kept_tables.setdefault(engine, {})
        before = self._known_tables.get(engine, {})
        unread: dict[bytes, list[MetricTable]] = {}
        for metric in metrics:
            if metric in tables:
                continue
            looked_at = not metric.rare or self._text.rare(metric.family)
            known = before.get(metric)
            if known is not None and (not looked_at or self._text.unchanged(metric.family)):
                tables[metric] = kept[metric] = known
                continue
            self.changed = True
            table = tables[metric] = MetricTable(metric, engine)
            if looked_at:
                unread.setdefault(metric.family, []).append(table)
            else:
                kept[metric] = table
        for family, wanted in unread.items():
            yield from self._read(family, wanted)
            if self._text.kept(family):
                kept |= {table.metric: table for table in wanted}

    def _read(self, family: bytes, tables: list[MetricTable]) -> Iterator[None]:
        wanted = self._engines.read_labels
        for sample in self._text.samples(family):
            if sample is None:
                yield
                continue
            raw, text = sample
            pairs, value = labels(raw, wanted), number(text)
            for table in tables:
                table.add(value, pairs)
            if tables[0].too_many:
                return

    def samples(
        self, family: bytes, wanted: frozenset[bytes]
    ) -> Iterator[tuple[float, Labels] | None]:
        """Yield the value and the wanted labels of a family's samples, and None to pause."""
        for sample in self._text.samples(family):
            yield None if sample is None else (number(sample[1]), labels(sample[0], wanted))

    def digest(self, families: Iterable[bytes]) -> Generator[None, None, int]:
        """Return a number that changes with the samples of these families, in steps."""
        found = []
        for family in families:
            if family not in self._digests:
                known = self._known_digests.get(family)
                if known is None or not self._text.unchanged(family):
                    known = yield from self._digest(family)
                self._digests[family] = known
            found.append(self._digests[family])
        return hash(tuple(found))

    def _digest(self, family: bytes) -> Generator[None, None, int]:
        digest = 0
        for sample in self._text.samples(family):
            if sample is None:
                yield
            else:
                digest = hash((digest, sample))
        return digest

    def declares(self, family: bytes) -> Generator[None, None, bool]:
        """Return whether the page has a family, though maybe without samples, in steps."""
        return self._text.has_line(b"# TYPE %b " % family)

    def engine(self, labels: Mapping[str, str]) -> Generator[None, None, EngineMetrics | None]:
        """Return a pod's engine, by its labels, else by the names on its page, in steps.

        None if neither is known: no metric of the page can be read then.
        """
        if named := self._engines.named(labels):
            return named
        if not self._searched:
            self._recognized = yield from self._recognize()
            self._searched = True
        return self._recognized

    def _recognize(self) -> Generator[None, None, EngineMetrics | None]:
        for engine in self._engines.engines.values():
            for sign in engine.signs:
                if not (yield from self._text.has_line(sign)):
                    continue
                if not (engine.foreign and (yield from self._text.has_line(engine.foreign))):
                    return engine
                break
        return None
