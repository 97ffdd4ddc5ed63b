"""Metrics pages of one endpoint as `Load`s. This file knows no transport and no pod."""

from collections.abc import Iterable, Mapping
from math import inf

import msgspec
from msgspec.structs import replace

from epp.model.endpoint import OFFLOAD_LABEL, UNREPORTED, Endpoint, Load
from epp.protocol.metrics.capacity import MAX_CAPACITY, CacheConfig, read_facts
from epp.protocol.metrics.metric_names import STARTED, EngineMetrics, configuration_of, engine_of
from epp.protocol.metrics.page import Page, Sample, number
from epp.protocol.metrics.values import MetricValues

_MAX_ADAPTERS = 1e6


class Reading(msgspec.Struct, frozen=True):
    """What a page said; `doubts` are what it said and is not believed, each told once."""

    load: Load
    doubts: tuple[str, ...] = ()


class MetricsReader:
    """Reads the pages of one endpoint, one after the other.

    `load` is what the last one said, `unknown` whether it was of no known engine.
    Never raises. What a page does not hold as a number that can be true (family missing, NaN,
    ±Inf, negative, garbage, absurdly large, a last line without its newline) keeps the value
    that it had. Where an endpoint is one rank of a server, only that engine's samples count.
    Otherwise all its engines are one endpoint: counts are summed, and kv_usage is their mean,
    which for pools of one size is the used share of the sum, where the maximum would call the
    server full while its other engines are empty.
    """

    def __init__(self, endpoint: Endpoint, load: Load = UNREPORTED) -> None:
        self.load = load
        self.endpoint = endpoint
        self._engine: EngineMetrics | None = None
        self._facts = CacheConfig.of(load)
        self._configuration: list[list[Sample]] = []
        self._told: set[str] = set()
        self.unknown = False

    def relabel(self, endpoint: Endpoint) -> None:
        """Take in other labels of the endpoint, which may name another engine."""
        self.endpoint = endpoint
        self._engine = None

    def lost(self) -> None:
        """Take note that the server did not answer: another engine may, next."""
        self._engine = None

    def read(self, page: Page, at: float) -> Reading:
        """Read a page scraped at `at`; one without any known metric tells the last load again."""
        self._engine = self._engine or engine_of(self.endpoint.labels, page)
        self.unknown = self._engine is None
        if self._engine is None:
            self.load = replace(self.load, at=at)
            return Reading(self.load)
        figures = MetricValues(page, self._engine, self.endpoint.rank)
        self._configure(page, figures, self._engine)
        self.load = self._load(figures, self._engine, at)
        if not figures.doubts:
            return Reading(self.load)
        told = tuple(text for key, text in figures.doubts.items() if key not in self._told)
        self._told.update(figures.doubts)
        return Reading(self.load, told)

    def _configure(self, page: Page, figures: MetricValues, engine: EngineMetrics) -> None:
        """Read anew what changes with the configuration, where any of it has changed."""
        configuration = [page.samples(family) for family in configuration_of(engine)]
        if configuration == self._configuration and engine.name == self._facts.engine:
            return
        self._configuration = configuration
        self._facts = read_facts(figures, engine, self._facts)
        self.load = self._facts.put(self.load)
        tiers = any(figures.by_rank(sign) for sign in engine.offload_signs)
        if tiers and self._offload(figures, engine) is None:
            figures.doubts["offload"] = (
                f"the cache has a second tier, whose size in tokens is not told: "
                f"the label {OFFLOAD_LABEL} can"
            )

    def _load(self, figures: MetricValues, engine: EngineMetrics, at: float) -> Load:
        before, facts = self.load, self._facts
        usage = figures.by_rank(engine.kv_usage).values() if engine.kv_usage else ()
        running_adapters, waiting_adapters, max_adapters = _adapters(figures, engine, before)
        return Load(
            waiting=figures.requests(engine.waiting, before.waiting),
            running=figures.requests(engine.running, before.running),
            kv_usage=min(1.0, sum(usage) / len(usage)) if usage else before.kv_usage,
            running_adapters=running_adapters,
            waiting_adapters=waiting_adapters,
            max_adapters=max_adapters,
            engine=facts.engine,
            ranks=facts.ranks,
            block_size=facts.block_size,
            num_blocks=facts.num_blocks,
            spread=facts.spread,
            max_tokens=facts.max_tokens,
            caching=facts.caching,
            match_unit=facts.match_unit,
            sliding_window=facts.sliding_window,
            offload_tokens=self._offload(figures, engine),
            cache_queries=figures.total(engine.cache_queries, before.cache_queries),
            cache_hits=figures.total(engine.cache_hits, before.cache_hits),
            started_at=min(figures.by_rank(STARTED).values(), default=before.started_at),
            at=at,
        )

    def _offload(self, figures: MetricValues, engine: EngineMetrics) -> int | None:
        """Tell the size of the second tier: from the page, else from the label, else as before.

        vLLM's own page mostly gives its bytes, of which nothing says how many make a token.
        """
        tokens = figures.total(engine.offload_tokens, 0.0)
        blocks = figures.total(engine.offload_blocks, 0.0)
        tokens += blocks * (self._facts.block_size or 0)
        if 1 <= tokens <= MAX_CAPACITY:
            return int(tokens)
        return self.endpoint.offload_tokens or self.load.offload_tokens


def _adapters(
    figures: MetricValues, engine: EngineMetrics, before: Load
) -> tuple[frozenset[str], frozenset[str], int]:
    """Read running, waiting and maximum number of LoRA adapters.

    vLLM leaves the series of past states on the page and gives each its Unix time as value: the
    newest of each engine counts.
    """
    newest: dict[bytes, tuple[float, Mapping[bytes, bytes]]] = {}
    for rank, value, pairs in figures.states(engine.adapters):
        if newest.get(rank, (0.0,))[0] <= value < inf:
            newest[rank] = (value, pairs)
    if not newest:
        return before.running_adapters, before.waiting_adapters, before.max_adapters
    states = [pairs for _, pairs in newest.values()]
    limits = [number(pairs.get(b"max_lora", b"")) for pairs in states]
    return (
        _names(states, b"running_lora_adapters"),
        _names(states, b"waiting_lora_adapters"),
        int(max((limit for limit in limits if 0 <= limit <= _MAX_ADAPTERS), default=0)),
    )


def _names(states: Iterable[Mapping[bytes, bytes]], label: bytes) -> frozenset[str]:
    joined = (state.get(label, b"").decode("utf-8", "replace").split(",") for state in states)
    return frozenset(name.strip() for names in joined for name in names if name.strip())
