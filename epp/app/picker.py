"""The composition root: builds the object graph, runs it, stops it in order."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property

import msgspec
import structlog

from epp import compiled
from epp.adapters.extproc.contract import ExtProcServer, ExtProcSettings
from epp.adapters.extproc.transports import health_server, server_class
from epp.adapters.health import HealthServices
from epp.adapters.recording.recorder import Recorder
from epp.adapters.telemetry.debug_pages import DebugPage
from epp.adapters.telemetry.http import OperatorServer, Readers
from epp.adapters.telemetry.loop_delay import LoopDelay
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.adapters.telemetry.queue_metrics import QueueMetrics
from epp.adapters.telemetry.series import FamilyText
from epp.app.cache_sources import (
    build_fleet,
    kv_event_batches,
    kv_events_or_none,
    replicas_or_none,
    tokenizer_or_none,
    untokenized_prompts,
)
from epp.app.console.optional_parts import OptionalParts
from epp.app.console.pages import Console, ConsoleSources
from epp.app.data_sources import DataSources
from epp.app.director import PickerDirector, exchange_factory
from epp.app.discovery import build_discovery, build_reviewer
from epp.app.exchanges import exchange_settings, resolve_by
from epp.app.fleet_log import FleetLog
from epp.app.flow import flow_metrics
from epp.app.jobs import attempt, keep_running
from epp.app.observers import Faults, Observer, Observers
from epp.app.observing.decision_ring import DecisionRing
from epp.app.observing.pages import DebugPages
from epp.app.observing.recording import recording
from epp.app.observing.shadow import Shadow
from epp.app.observing.tracing import tracing_or_none
from epp.app.options import ServeOptions, key_and_certificate, reader_tls
from epp.app.plugin_timing import PluginTimes
from epp.app.process import freeze_long_lived_objects
from epp.errors import ConfigError, reason
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, ScrapeFailed
from epp.policy.explanations.ranking import measures
from epp.policy.flow.flow_control import FlowControl
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.health import ServingStatus

_log = structlog.get_logger(__name__)

_QUIET_SECONDS = 1.0
"""How long no stream may have been open before a drain ends: gateways pick another replica late."""
_LAST_GRACE_SECONDS = 1.0
"""How long streams that are open after a drain may take to end before they are reset."""
_STATUS = {True: ServingStatus.SERVING, False: ServingStatus.NOT_SERVING}
_FIRST_REPORTS_SECONDS = 0.3
"""How long a start waits for the first metrics pages; most endpoints answer within 0.1 s."""


class EndpointPicker:
    """One pool's endpoint picker: everything that `epp serve` runs."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._clock = time.monotonic
        self._serving = self._announced = False
        self._faults = faults = Faults()
        self._fleet = build_fleet(
            options.settings, options.hash_secret, options.eject_after, faults
        )
        self._tokenizer = tokenizer_or_none(options.settings.tokens, self._fleet)
        self._kv_events = kv_events_or_none(
            options.settings.kv_events,
            options.settings.base_model,
            self._tokenizer,
            self._apply,
        )
        self._loop_delay = LoopDelay()
        scheduling = options.settings.scheduling
        self._plugin_times = PluginTimes(scheduling.plugin_names)
        self._sources = DataSources(
            options.settings.data_layer, options.scrape_interval, self._apply, self._clock
        )
        self._tracing = tracing_or_none(options.tracing, scheduling, self._clock)
        self._readiness_changed = asyncio.Event()
        self._replicas = replicas_or_none(
            options, self._fleet, self._clock, self._readiness_changed.set
        )
        self._decisions = DecisionRing(self._fleet, measures(scheduling.profiles))
        self._observers = observers = Observers(tuple(self._observing()))
        self._telemetry = Telemetry(self._metric_sources())
        scheduler = Scheduler(
            self._fleet,
            scheduling,
            random.Random().randrange,  # noqa: S311 (chance, not secrets)
            quoted=observers.quoted,
            committing=observers.committing,
            on_fault=faults,
            unseen=None if self._replicas is None else self._replicas.unseen,
        )
        self._queues = QueueMetrics(options.pool_name)
        flow = msgspec.structs.replace(options.flow, stale_seconds=self._sources.stale_after)
        self._flow = FlowControl(scheduler, self._fleet, flow, self._queues.count)
        self._director = PickerDirector(
            scheduler,
            self._fleet.apply,
            self._telemetry,
            self._clock,
            self._tokenizer,
            timer=self._plugin_times,
            ended=observers.ended,
            on_fault=faults,
            poll_now=self._sources.poll_now,
            needs_end=self._flow.needs_end if options.observation.auto else None,
            flow=self._flow,
        )
        self._fleet.subscribe(
            (EndpointUpserted, EndpointRemoved, ScrapeFailed), self._follow, "endpoints"
        )
        self._discovery = build_discovery(
            options.source,
            self._apply,
            self._readiness_changed.set,
            protocol_fault=options.settings.parsers.fault,
            host_names=options.settings.host_names,
        )
        self._health = HealthServices()
        self._extproc = self._ext_proc_server()
        self._health_server = (
            health_server(self._extproc.transport, self._health)
            if options.worker is None
            else options.worker.join(self._extproc, self._health)
        )
        self._reviewer = build_reviewer(options.metrics_access)
        self._reader_tls = reader_tls(options)
        self._operators = OperatorServer(
            self._telemetry,
            lambda: self.ready,
            options.bind_address if options.worker is None else options.worker.pages,
            options.metrics_port,
            Readers(
                review=self._reviewer.review if self._reviewer else None,
                profiles=options.profiles,
                debug=self._debug_pages(),
                tls=self._reader_tls.context if self._reader_tls else None,
            ),
        )

    def _observing(self) -> Iterator[Observer]:
        """Yield the observers of requests, of the fleet and of faults."""
        options = self._options
        yield Observer(name="faults", collect=self._faults.collect)
        yield FleetLog(self._fleet).observer
        yield Observer(name="flow-control", collect=self._collect_flow)
        if self._replicas is not None:
            yield self._replicas.observer
        if options.recording:
            yield recording(Recorder(options.recording, self._clock), self._fleet)
        if self._tracing is not None:
            yield self._tracing.observer
        yield self._decisions.observer
        if self._shadow is not None:
            yield self._shadow.observer

    @cached_property
    def _shadow(self) -> Shadow | None:
        return Shadow(*self._options.shadow, self._fleet) if self._options.shadow else None

    def _debug_pages(self) -> Mapping[bytes, DebugPage]:
        pool, scheduling = self._options.pool_name, self._options.settings.scheduling
        debug = DebugPages(pool, self._decisions, self._fleet, scheduling, self._clock)
        sources = ConsoleSources(
            pool=pool,
            ring=self._decisions,
            fleet=self._fleet,
            clock=self._clock,
            reuse=self._telemetry.reuse,
            optional=OptionalParts(self._flow, self._director.held, self._replicas, self._shadow),
        )
        return {**debug.pages, **Console(sources).pages}

    def _collect_flow(self) -> Iterator[FamilyText]:
        if self._director.held is not None:
            yield from flow_metrics.collect(
                self._flow, self._director.held, self._queues, self._fleet, self._clock()
            )

    def _metric_sources(self) -> MetricSources:
        """Return the sources of the metrics page's values."""
        return MetricSources(
            self._options.pool_name,
            self._fleet.loads,
            self._fleet.cache_stats,
            lambda: self._fleet.indexed_blocks,
            lambda: kv_event_batches(self._kv_events),
            lambda: untokenized_prompts(self._tokenizer),
            self._fleet.in_flight.__contains__,
            self._loop_delay.collect,
            in_flight=lambda: [
                (name, part.pod.endpoint, part.unprefilled)
                for name, each in self._fleet.in_flight.items()
                for part in each.parts
            ],
            plugins=self._plugin_times.collect,
            observers=self._observers.collect,
            poll_errors=self._sources.errors,
            extract_errors=self._sources.unknown,
            fresh=lambda load: self._clock() - load.at <= self._sources.stale_after,
            streams=(lambda: self._extproc.streams) if self._options.stream_metrics else None,
            predicts_latency=self._options.settings.predicts_latency,
            precise_producer=self._options.settings.precise_producer,
            is_adapter=self._fleet.pods.adapters.__contains__,
            former_names=self._options.former_metrics,
            fairness_ids=self._options.fairness_ids,
        )

    @property
    def ready(self) -> bool:
        """Whether traffic may come: endpoints are known, and no shutdown has begun."""
        warm = self._replicas is None or self._replicas.warm
        return self._fleet.synced and self._discovery.ready and self._serving and warm

    def _ext_proc_server(self) -> ExtProcServer:
        options = self._options
        server = server_class(options.transport, options.tls_ciphers)(
            self._exchanges(),
            self._clock,
            ExtProcSettings(
                address=options.bind_address,
                port=options.grpc_port,
                passed=options.worker is not None,
                tls=key_and_certificate(options.cert_path) if options.secure else None,
                tls_min_version=options.tls_min_version,
                tls_ciphers=options.tls_ciphers,
                max_receive_bytes=options.max_receive_bytes or options.max_body_bytes + (1 << 20),
                max_held_bytes=options.held_bytes,
                request_timeout=options.request_timeout,
            ),
        )
        if options.health_on_grpc_port:
            server.offer_health(self._health)
        return server

    def _exchanges(self) -> Callable[[float], Exchange]:
        options, chance = self._options, random.Random()  # noqa: S311 (as above)
        settings = exchange_settings(
            options.settings,
            resolve_by(self._discovery, chance.randrange),
            max_body_bytes=options.max_body_bytes,
            show_decision=options.show_decision,
            request_orca=options.request_orca,
            emit_scores=options.emit_scores,
            heed_subset=options.heed_subset,
            keep_body=self._tokenizer is not None,
            most_wait=options.buffered_wait,
            begin_span=self._tracing.begin if self._tracing else None,
        )
        return exchange_factory(self._director, settings, options.observation, chance)

    def _apply(self, event: Event) -> None:
        self._fleet.apply(event, self._clock())

    def _follow(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Scrape the known endpoints, and subscribe to their KV events."""
        if isinstance(event, EndpointUpserted):
            self._sources.watch(event.endpoint)
            if self._kv_events is not None:
                self._kv_events.watch(event.endpoint)
        elif isinstance(event, EndpointRemoved):
            self._sources.unwatch(event.endpoint_id)
            self._director.forget(event.endpoint_id)
            if self._kv_events is not None:
                self._kv_events.unwatch(event.endpoint_id)
        elif isinstance(event, ScrapeFailed):
            self._telemetry.scrape_failed()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises `ConfigError` for what cannot start."""
        async with asyncio.TaskGroup() as tasks:
            await self._discovery.load()
            jobs = ((name, keep_running(name, job)) for name, job in self._jobs())
            running = [tasks.create_task(job, name=name) for name, job in jobs]
            await self._start()
            try:
                await stop.wait()
                await attempt("drain", self._drain())
            finally:
                await self._stop()
                for task in running:
                    task.cancel()

    def _jobs(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield "endpoints", self._discovery.run
        yield "readiness", self._announce
        yield "scrape", self._sources.run
        if self._options.worker is not None:
            yield "worker", self._options.worker.run
        yield from self._observers.jobs()
        if self._kv_events is not None:
            yield "kv events", self._kv_events.run
        if self._options.secure and self._options.cert_path is not None:
            from epp.adapters.tls import CertificateWatch  # noqa: PLC0415 (see `reader_tls`)

            watch = CertificateWatch(self._options.cert_path, self._extproc.renew)
            yield "certificate", watch.run
        if self._reader_tls is not None:
            yield "metrics certificate", self._reader_tls.watch().run

    async def _announce(self) -> None:
        """Set the health services' status whenever `ready` changes."""
        while True:
            await self._readiness_changed.wait()
            self._readiness_changed.clear()
            if self.ready and not self._announced:
                await self._sources.polled_once(_FIRST_REPORTS_SECONDS)
                freeze_long_lived_objects(collected=True)
            if self.ready != self._announced:
                self._announced = self.ready
                self._health.set_status(_STATUS[self.ready])
                _log.info(
                    "ready" if self.ready else "not_ready", endpoints=len(self._fleet.endpoints)
                )

    async def _start(self) -> None:
        """Listen as NOT_SERVING, wait for metrics pages and other replicas, then accept streams."""
        options = self._options
        self._health.set_status(ServingStatus.NOT_SERVING)
        try:
            await self._operators.start()
            await self._health_server.start(options.bind_address, options.health_port)
            freeze_long_lived_objects()  # while endpoints answer
            await self._sources.polled_once(_FIRST_REPORTS_SECONDS)
            if self._replicas is not None:  # a gateway may ask before it checks who is ready
                self._replicas.share(self._flow.line)
                await self._replicas.warmed()
            await self._extproc.start()
            if options.worker is not None:
                options.worker.listening = True
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"cannot listen: {reason(error)}") from error
        self._serving = True
        self._loop_delay.start()
        self._readiness_changed.set()
        ports = {} if options.worker is not None else self._ports()
        _log.info(
            "serving" if options.worker is None else "worker.serving",
            **ports,
            secure=options.secure,
            transport=self._extproc.transport,
            native=compiled.summary(),
            endpoints=len(self._fleet.endpoints),
            profile=options.settings.profile.name,
            picker=type(options.settings.profile.picker).__name__,
        )

    def _ports(self) -> dict[str, int]:
        return {
            "grpc_port": self._extproc.port,
            "health_port": self._health_server.port,
            "metrics_port": self._operators.port,
        }

    async def _drain(self) -> None:
        """Report NOT_SERVING, and serve streams that still come until there are none."""
        self._serving = False
        self._health.set_status(ServingStatus.NOT_SERVING)
        _log.info("draining", streams=self._extproc.streams, timeout=self._options.drain_timeout)
        self._extproc.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_timeout):
                quiet = self._extproc.quiet(_QUIET_SECONDS)
                await asyncio.gather(self._discovery.release_lease(), quiet)

    async def _stop(self) -> None:
        self._loop_delay.stop()
        if self._options.worker is not None:
            self._options.worker.listening = False
        await attempt("director", self._director.stop())
        await attempt("ext_proc", self._extproc.stop(_LAST_GRACE_SECONDS))
        for name, stop in self._observers.stops():
            await attempt(name, stop)
        await attempt("health", self._health_server.stop())
        await attempt("operators", self._operators.stop())
        if self._reviewer is not None:
            await attempt("reviewer", self._reviewer.close())
        if self._tokenizer is not None:
            await attempt("tokenizer", self._tokenizer.close())
        _log.info("stopped")
