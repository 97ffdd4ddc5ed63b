"""The object graph of a picker: what it knows, learns from and decides with. It opens no port."""

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cached_property

import msgspec

from epp.adapters.recording.recorder import Recorder
from epp.adapters.telemetry.debug_pages import DebugPage
from epp.adapters.telemetry.kv_event_counts import kv_event_counts
from epp.adapters.telemetry.loop_delay import LoopDelay
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.adapters.telemetry.pool_gauges import (
    affinity_metrics,
    media_metrics,
    rollout_metrics,
)
from epp.adapters.telemetry.queue_metrics import QueueMetrics
from epp.adapters.telemetry.series import FamilyText
from epp.app.cache_sources import (
    build_fleet,
    kv_events_or_none,
    replicas_or_none,
    tokenizer_or_none,
    untokenized_prompts,
)
from epp.app.console.pages import Console, ConsoleSources
from epp.app.console.picker_parts import PickerParts
from epp.app.data_sources import DataSources
from epp.app.director import PickerDirector, exchange_factory
from epp.app.discovery import build_discovery
from epp.app.exchanges import exchange_settings, models_page, resolve_by
from epp.app.fleet_log import FleetLog
from epp.app.flow import flow_metrics
from epp.app.observers import Faults, Observer, Observers
from epp.app.observing.decision_ring import DecisionRing
from epp.app.observing.pages import DebugPages
from epp.app.observing.recording import recording
from epp.app.observing.shadow import Shadow
from epp.app.observing.tracing import tracing_or_none
from epp.app.observing.views import DecisionView, decision_view
from epp.app.options import ServeOptions
from epp.app.plugin_timing import PluginTimes
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, ScrapeFailed
from epp.policy.explanations.ranking import measures
from epp.policy.flow.flow_control import FlowControl
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.exchange import Exchange

_FIRST_REPORTS_SECONDS = 0.3
"""How long a start waits for the first metrics pages; most endpoints answer within 0.1 s."""


class PickerCore:
    """What one pool's picker knows, learns from and decides with; it opens no port.

    `changed` is called when `ready` may have changed. `streams` counts open ext_proc streams, for
    metrics; None: there are none. `clock` returns seconds and never goes back; `chance` breaks ties
    and makes ids of requests. With `quiet` no request is logged. Nothing is read until the `jobs`
    run. Raises `ConfigError`.
    """

    def __init__(  # noqa: PLR0913 (what it has from outside)
        self,
        options: ServeOptions,
        changed: Callable[[], None],
        *,
        streams: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
        quiet: bool = False,
    ) -> None:
        settings, scheduling = options.settings, options.settings.scheduling
        self._options = options
        self.clock = clock
        self._chance = chance or random.Random()  # noqa: S311 (chance, not secrets)
        self._faults = faults = Faults()

        # What it knows, and what it learns that from.
        self.fleet = build_fleet(
            settings, options.hash_secret, options.eject_after, faults, options.index_bytes
        )
        self._tokenizer = tokenizer_or_none(settings.tokens, self.fleet)
        self._sources = DataSources(
            settings.data_layer, options.scrape_interval, self._apply, clock
        )
        self._kv_events = kv_events_or_none(
            settings.kv_events,
            settings.base_model,
            self._tokenizer,
            self._apply,
            self._sources.answered,
        )
        self._replicas = replicas_or_none(options, self.fleet, clock, changed, faults)
        self.discovery = build_discovery(
            options.source,
            self._apply,
            changed,
            protocol_fault=settings.parsers.fault,
            host_names=settings.host_names,
        )

        # What observes it.
        self.loop_delay = LoopDelay()
        self._plugin_times = PluginTimes(scheduling.plugin_names)
        self._tracing = tracing_or_none(options.tracing, scheduling, clock)
        self.decisions = DecisionRing(self.fleet, measures(scheduling.profiles))
        self._observers = observers = Observers(tuple(self._observing()))
        self.telemetry = Telemetry(self._metric_sources(streams))
        self._queues = QueueMetrics(options.pool_name)

        # What decides: a request goes from the director to flow control to the scheduler.
        scheduler = Scheduler(
            self.fleet,
            scheduling,
            self._chance.randrange,
            quoted=observers.quoted,
            committing=observers.committing,
            on_fault=faults,
            unseen=None if self._replicas is None else self._replicas.unseen,
        )
        flow = msgspec.structs.replace(options.flow, stale_seconds=self._sources.stale_after)
        self._flow = FlowControl(scheduler, self.fleet, flow, self._queues.count)
        if self._replicas is not None:
            self._replicas.share(self._flow.line)
        self.director = PickerDirector(
            self._flow,
            self.fleet.apply,
            self.telemetry,
            clock,
            self._tokenizer,
            timer=self._plugin_times,
            ended=observers.ended,
            on_fault=faults,
            poll_now=self._sources.poll_now,
            needs_end=self._flow.needs_end if options.observation.auto else None,
            quiet=quiet,
        )
        self.fleet.subscribe(
            (EndpointUpserted, EndpointRemoved, ScrapeFailed), self._follow, "endpoints"
        )

    @property
    def ready(self) -> bool:
        """Whether all endpoints are known, and what other replicas know."""
        warm = self._replicas is None or self._replicas.warm
        return self.fleet.synced and self.discovery.ready and warm

    def exchanges(self) -> Callable[[float], Exchange]:
        """Return a function that makes an exchange, given the time."""
        settings = exchange_settings(
            self._options,
            resolve_by(self.discovery, self._chance.randrange),
            keep_body=self._tokenizer is not None,
            begin_span=self._tracing.begin if self._tracing else None,
            list_models=models_page(self._options, self.fleet),
        )
        observation = self._options.observation
        return exchange_factory(self.director, settings, observation, self._chance)

    def jobs(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Start all observers; yield what runs as long as the picker, by name."""
        yield "endpoints", self.discovery.run
        yield "scrape", self._sources.run
        yield from self._observers.start()
        if self._kv_events is not None:
            yield "kv events", self._kv_events.run

    async def reported(self) -> None:
        """Wait briefly for the first metrics pages of the known endpoints."""
        await self._sources.polled_once(_FIRST_REPORTS_SECONDS)

    async def warmed(self) -> None:
        """Wait for what other replicas know."""
        if self._replicas is not None:
            await self._replicas.warmed()

    def stops(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """Yield awaitables, by name, for once no request is open."""
        yield from self._observers.stops()
        if self._tokenizer is not None:
            yield "tokenizer", self._tokenizer.close()

    def pages(self) -> Mapping[bytes, DebugPage]:
        """Return the pages of the operators' port that show decisions, by path."""
        pool, scheduling = self._options.pool_name, self._options.settings.scheduling
        debug = DebugPages(pool, self.decisions, self.fleet, scheduling, self.clock)
        sources = ConsoleSources(
            pool=pool,
            ring=self.decisions,
            fleet=self.fleet,
            clock=self.clock,
            reuse=self.telemetry.reuse,
            parts=PickerParts(self._flow, self.director.held, self._replicas, self._shadow),
        )
        return {**debug.pages, **Console(sources).pages}

    def explain(self, request: str) -> tuple[DecisionView, ...]:
        """Return the kept decisions on a request, by the picker's id of it or its client's."""
        clock_began, ring = time.time() - self.clock(), self.decisions
        found = ring.find(request)
        return tuple(
            decision_view(each, each.explain(ring.measures), clock_began) for each in found
        )

    def _observing(self) -> Iterator[Observer]:
        """Yield the observers of requests, of the fleet and of faults."""
        options = self._options
        yield Observer(name="faults", collect=self._faults.collect)
        yield FleetLog(self.fleet).observer
        yield Observer(name="flow-control", collect=self._collect_flow)
        if self._replicas is not None:
            yield self._replicas.observer
        if options.recording:
            yield recording(Recorder(options.recording, self.clock), self.fleet)
        if self._tracing is not None:
            yield self._tracing.observer
        yield self.decisions.observer
        if self._shadow is not None:
            yield self._shadow.observer

    @cached_property
    def _shadow(self) -> Shadow | None:
        return Shadow(*self._options.shadow, self.fleet) if self._options.shadow else None

    def _collect_flow(self) -> Iterator[FamilyText]:
        yield from flow_metrics.collect(
            self._flow, self.director.held, self._queues, self.fleet, self.clock()
        )

    def _metric_sources(self, streams: Callable[[], int] | None) -> MetricSources:
        """Return the sources of the metrics page's values."""
        return MetricSources(
            self._options.pool_name,
            self.fleet.loads,
            self.fleet.cache_stats,
            lambda: self.fleet.indexed_blocks,
            tuple(self._other_metrics()),
            self.fleet.in_flight.__contains__,
            in_flight=lambda: [
                (name, part.pod.endpoint, part.unprefilled)
                for name, each in self.fleet.in_flight.items()
                for part in each.parts
            ],
            fresh=lambda load: self.clock() - load.at <= self._sources.stale_after,
            streams=streams if self._options.stream_metrics else None,
            predicted_latency=self._options.settings.predicted_latency,
            profile_handler=self._options.settings.profile_handler,
            precise_producer=self._options.settings.precise_producer,
            is_adapter=self.fleet.pods.adapters.__contains__,
            former_names=self._options.former_metrics,
            clock=self.clock,
            fairness_ids=self._options.fairness_ids,
        )

    def _other_metrics(self) -> Iterator[Callable[[], Iterator[FamilyText]]]:
        """Yield the writers of the families that are not about requests."""
        settings, kv_events, tokenizer = self._options.settings, self._kv_events, self._tokenizer
        yield lambda: rollout_metrics(settings.rollouts)
        yield lambda: media_metrics(settings.media_caches)
        yield lambda: affinity_metrics(settings.affinity_filters)
        yield self._sources.collect
        yield self._plugin_times.collect
        yield self._observers.collect
        yield self.loop_delay.collect
        if kv_events is not None:
            yield lambda: kv_event_counts(kv_events.counts(), self.fleet.pods.kv_events)
        if tokenizer is not None:
            yield lambda: untokenized_prompts(tokenizer)

    def _apply(self, event: Event) -> None:
        self.fleet.apply(event, self.clock())

    def _follow(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Scrape the known endpoints, and subscribe to their KV events."""
        if isinstance(event, EndpointUpserted):
            self._sources.watch(event.endpoint)
            if self._kv_events is not None:
                self._kv_events.watch(event.endpoint)
        elif isinstance(event, EndpointRemoved):
            self._sources.unwatch(event.endpoint_id)
            self.director.forget(event.endpoint_id)
            if self._kv_events is not None:
                self._kv_events.unwatch(event.endpoint_id)
        elif isinstance(event, ScrapeFailed):
            self.telemetry.scrape_failed()
