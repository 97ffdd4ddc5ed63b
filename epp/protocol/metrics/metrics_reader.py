"""Reads the metrics pages of one endpoint into `Load`s.

`PageText` finds the lines of a family on a page; `Page` makes a `MetricTable` of them for each
metric of an engine, once for all endpoints. `MetricValues` are what the tables say of one endpoint,
checked; `MetricsReader` makes a `Load` of these, with `capacity.py` for the size of the cache.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Final

from msgspec.structs import replace

from epp.model.endpoint import OFFLOAD_LABEL, UNREPORTED, Endpoint, Load
from epp.protocol.metrics.capacity import MAX_CAPACITY_TOKENS, with_cache
from epp.protocol.metrics.metric_names import (
    MAX_ADAPTERS,
    RUNNING_ADAPTERS,
    STARTED,
    WAITING_ADAPTERS,
    EngineMetrics,
    Metric,
    configuration_of,
    polled,
)
from epp.protocol.metrics.page import Labels, Page
from epp.protocol.metrics.page_text import number
from epp.protocol.metrics.values import MetricValues
from epp.protocol.steps import finish
from epp.values import Value

_MAX_ADAPTERS = 1e6
"""A larger `max_lora` counts as none."""
_MAX_NAMED, _MAX_NAME = 4096, 256
"""Names of adapters that are read, and the characters of one."""
_MOST_SHARE = 2.0
"""A larger used share of the KV cache is not valid; engines may report a little above 1."""
_MAX_PROCESSES = 1024
"""Start times of earlier processes that are kept."""
_SAME_SECONDS = 2.0
"""Start times this close are of one process: a page may compute them anew each time."""
_BACK_SECONDS = 10.0
"""If a counter of one process falls, it takes longer than this to return to its old value."""


class Reading(Value):
    """The load that a page reports; `warnings` are messages to log, each returned once."""

    def __init__(self, load: Load, warnings: tuple[str, ...] = ()) -> None:
        self.load: Final = load
        self.warnings: Final = warnings


class MetricsReader:
    """Reads the pages of one endpoint, one after the other.

    `load` is the last load read; `unknown`: its page was not of a known engine. Never raises.

    - A metric without a plausible number (family missing, NaN, ±Inf, negative, garbage, absurdly
      large, a last line without its newline) keeps its previous value. Counts of requests are 0
      from the second such page on. What only an earlier process of the engine has reported is
      forgotten.
    - An endpoint whose pages are of several processes in turn (behind a balancer's address) starts
      once for each of them.
    - If an endpoint is one rank of a server, only that engine's samples count. Otherwise all its
      engines are one endpoint: counts are summed, and kv_usage is their mean. For pools of one size
      that is the used share of the sum; the maximum would call the server full if one engine is.
    """

    def __init__(self, endpoint: Endpoint, load: Load = UNREPORTED) -> None:
        self.load = load
        self.endpoint = endpoint
        self._engine: EngineMetrics | None = None
        self._configuration = 0
        self._reported: set[str] = set()
        self._processes: set[float] = set()  # when earlier ones started
        self._fell = (inf, -inf)  # from where `cache_queries` fell, and when
        self._mixed = False  # it went back there: pages are of several processes
        self._no_share = False  # what should be a share is not a valid one
        self.unknown = False

    def relabel(self, endpoint: Endpoint) -> None:
        """Set the endpoint with other labels, which may name another engine."""
        self.endpoint = endpoint
        self._engine = None
        self._no_share = False

    def reset_engine(self) -> None:
        """Reset the engine, because the server did not answer: the next page may be of another."""
        self._engine = None

    def read(self, page: Page, at: float) -> Reading:
        """Read a page scraped at `at` (seconds); one of no known engine lacks all metrics."""
        return finish(self.steps(page, at))

    def steps(self, page: Page, at: float) -> Generator[None, None, Reading]:
        """Read a page as `read` does, but yield after each step of at most some milliseconds."""
        first = self._engine is None
        self._engine = self._engine or (yield from page.engine(self.endpoint.labels))
        self.unknown = self._engine is None
        if self._engine is None:
            load = self.load if self.load.counted else self.load.uncounted(at)
            self.load = replace(load, counted=False, awake=True, emptied=False, at=at)
            return Reading(self.load)
        engine = self._engine
        values = MetricValues(page, engine, self.endpoint.rank)
        yield from page.prepare(polled(engine), engine)
        before = started = self.load.started_at
        if first or page.changed:
            started = min(values.by_rank(STARTED).values(), default=before)
            if before is not None and started is not None and started != before:
                started = self._process(values, started, before)
        yield from self._configure(page, values, engine)
        for older in engine.kv_usage[1:]:  # searched only on pages without the newer name
            if page.table(engine.kv_usage[0], engine).empty:
                yield from page.prepare((older,), engine)
        if not first and not page.changed:
            self.load = replace(self.load, at=at)
            return Reading(self.load)
        self.load = self._load(values, engine, started, at, first=first)
        if not values.warnings:
            return Reading(self.load)
        warnings = tuple(text for key, text in values.warnings.items() if key not in self._reported)
        self._reported.update(values.warnings)
        return Reading(self.load, warnings)

    def _process(self, values: MetricValues, started: float, before: float) -> float:
        """Return when the process started, on a page with another time than `before`."""
        if abs(started - before) <= _SAME_SECONDS:
            return before
        if any(abs(started - each) <= _SAME_SECONDS for each in self._processes):
            self._doubt_process(values, STARTED)
            return before
        if len(self._processes) >= _MAX_PROCESSES:
            self._processes.clear()
        self._processes.add(before)
        self._forget()
        return started

    @staticmethod
    def _doubt_process(values: MetricValues, metric: Metric) -> None:
        values.warnings["process"] = (
            f"its pages are of several processes in turn, as {metric} shows: "
            "its address may be that of a Service"
        )

    def _forget(self) -> None:
        """Forget what the last process reported and this one may never report: adapters, a tier."""
        load = self.load
        self._no_share = False
        self.load = replace(
            UNREPORTED,
            waiting=load.waiting,
            running=load.running,
            counted=load.counted,
            kv_usage=load.kv_usage,
        )

    def _configure(self, page: Page, values: MetricValues, engine: EngineMetrics) -> Iterator[None]:
        """Read the cache configuration again if any of its families changed."""
        families = {metric.family: None for metric in configuration_of(engine)}
        configuration = yield from page.digest(families)
        if configuration == self._configuration and engine.name == self.load.engine:
            return
        self._configuration = configuration
        yield from page.prepare((*configuration_of(engine), *engine.offload_signs), engine)
        self.load = with_cache(self.load, values, engine)
        tiers = any(values.by_rank(sign) for sign in engine.offload_signs)
        if tiers and self._offload(values, engine) is None:
            sized = engine.offload_tokens
            if sized is not None and (yield from page.declares(sized.family)):
                return  # samples come later, with the engine's first step
            values.warnings["offload"] = (
                f"the cache has a second tier, whose size in tokens is unknown: "
                f"the label {OFFLOAD_LABEL} can"
            )

    def _load(
        self,
        values: MetricValues,
        engine: EngineMetrics,
        started: float | None,
        at: float,
        *,
        first: bool,
    ) -> Load:
        """Return the load of a page; the load before already has the configuration.

        On the `first` one after the server did not answer, a counter may have fallen.
        """
        before = self.load
        running_adapters, waiting_adapters, max_adapters = _adapters(values, engine, before)
        awake = values.total(engine.awake, 1.0) > 0  # unless it says otherwise
        counted = values.has(engine.waiting) and values.has(engine.running)
        if before.counted and not counted:
            self._engine = None  # the next page shows whether it is still of this engine
        queries = values.total(engine.cache_queries, before.cache_queries)
        if not before.counted and queries:
            _doubt_counts(values, engine)
        if started is None and queries is not None and not first:
            self._compare(values, engine, queries, at)
        return replace(
            before,
            waiting=values.requests(engine.waiting, before.waiting if before.counted else 0.0),
            running=values.requests(engine.running, before.running if before.counted else 0.0),
            counted=counted,
            awake=awake,
            emptied=not awake and any(values.total(metric, 0.0) for metric in engine.emptied),
            kv_usage=self._kv_usage(values, engine),
            running_adapters=running_adapters,
            waiting_adapters=waiting_adapters,
            max_adapters=max_adapters,
            offload_tokens=self._offload(values, engine),
            cache_queries=None if self._mixed else queries,
            cache_hits=values.total(engine.cache_hits, before.cache_hits),
            started_at=started,
            attributes=_attributes(values, engine, before),
            at=at,
        )

    def _kv_usage(self, values: MetricValues, engine: EngineMetrics) -> float:
        """Return the used share of the cache; 0 from the first number on that is not a share."""
        for metric in engine.kv_usage:
            if shares := values.by_rank(metric).values():
                if (most := max(shares)) > _MOST_SHARE:
                    values.ignore(metric, f"{most:g}")
                    self._no_share = True
                return 0.0 if self._no_share else min(1.0, sum(shares) / len(shares))
        return self.load.kv_usage if self.load.counted else 0.0

    def _compare(
        self, values: MetricValues, engine: EngineMetrics, queries: float, at: float
    ) -> None:
        """Find out whether a counter is of one process: it may fall, but does not come back."""
        most, fell_at = self._fell
        if queries < (self.load.cache_queries or 0.0):
            self._fell = self.load.cache_queries or 0.0, at
        elif queries >= most and at - fell_at < _BACK_SECONDS and engine.cache_queries:
            self._mixed = True
            self._doubt_process(values, engine.cache_queries)

    def _offload(self, values: MetricValues, engine: EngineMetrics) -> int | None:
        """Return the tokens of the second tier: by the page, else by the label, else as before.

        vLLM's own page mostly has its bytes, without the number of bytes per token.
        """
        tokens = values.total(engine.offload_tokens, 0.0)
        blocks = values.total(engine.offload_blocks, 0.0)
        tokens += blocks * (self.load.block_size or 0)
        if 1 <= tokens <= MAX_CAPACITY_TOKENS:
            return int(tokens)
        return self.endpoint.offload_tokens or self.load.offload_tokens


def _doubt_counts(values: MetricValues, engine: EngineMetrics) -> None:
    """Record which counts of requests an engine that has computed prompts does not report."""
    for metric in (engine.waiting, engine.running):
        if metric is not None and not values.has(metric):
            values.warnings[f"{metric} absent"] = (
                f"its page has no number {metric}, so requests of other senders do not count"
            )


def _attributes(values: MetricValues, engine: EngineMetrics, before: Load) -> Mapping[str, float]:
    """Return the attributes that a user's configuration of the engine asks for."""
    if not engine.attributes:
        return before.attributes
    found = {key: values.first(metric) for key, metric in engine.attributes}
    present = {key: value for key, value in found.items() if value is not None}
    return {**before.attributes, **present}


def _adapters(
    values: MetricValues, engine: EngineMetrics, before: Load
) -> tuple[frozenset[str], frozenset[str], int]:
    """Return the running and the waiting LoRA adapters, and the most that may run."""
    states = values.states(engine.adapters)
    if not states:
        return before.running_adapters, before.waiting_adapters, before.max_adapters
    limits = [number(pairs.get(MAX_ADAPTERS, b"")) for pairs in states]
    return (
        _names(states, RUNNING_ADAPTERS),
        _names(states, WAITING_ADAPTERS),
        int(max((limit for limit in limits if 0 <= limit <= _MAX_ADAPTERS), default=0)),
    )


def _names(states: Iterable[Labels], label: bytes) -> frozenset[str]:
    joined = (state.get(label, b"").decode("utf-8", "replace").split(",") for state in states)
    names = (name.strip() for names in joined for name in names)
    return frozenset(name for name in islice(names, _MAX_NAMED) if 0 < len(name) <= _MAX_NAME)
