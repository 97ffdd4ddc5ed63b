"""The composition root: builds the object graph, runs it, shuts it down in order."""

import asyncio
import gc
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from uuid import UUID

import msgspec
import structlog

from epp.adapters.endpoints_file import EndpointsFile
from epp.adapters.extproc import ExtProcServer, ExtProcSettings
from epp.adapters.health import Health, HealthServices, serve_health
from epp.adapters.scrape import Scraper, ScrapeSettings
from epp.adapters.telemetry.http import OperatorServer
from epp.adapters.telemetry.logs import ExchangeLog
from epp.adapters.telemetry.metrics import Sources, Telemetry
from epp.adapters.tls import certificate
from epp.config import Settings
from epp.errors import ConfigError
from epp.model.blocks import BlockHasher
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, ScrapeFailed
from epp.model.fleet import Fleet
from epp.model.request import Decision, InferenceRequest, RequestId, RequestRecord
from epp.policy.scheduler import Scheduler
from epp.protocol.exchange import Exchange, ExchangeSettings

_log = structlog.get_logger(__name__)

_SECRET_BYTES = 32
_GC_THRESHOLDS = (50_000, 20, 100)
_QUIET_SECONDS = 1.0
_LAST_GRACE_SECONDS = 1.0


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. Durations are in seconds, sizes in bytes, port 0 is any."""

    settings: Settings
    endpoints_file: Path
    pool_name: str = "default"
    bind_address: str = "0.0.0.0"  # noqa: S104 (a pod is reached from outside)
    grpc_port: int = 9002
    health_port: int = 9003
    metrics_port: int = 9090
    secure: bool = True
    cert_path: Path | None = None
    health_on_grpc_port: bool = False
    max_body_bytes: int = 64 << 20
    scrape_interval: float = 1.0
    drain_timeout: float = 30.0
    show_decision: bool = False
    request_orca: bool = False
    hash_secret: bytes = b""


class Service:
    """The director of all exchanges: the scheduler, with telemetry beside it."""

    def __init__(
        self, scheduler: Scheduler, telemetry: Telemetry, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._telemetry = telemetry
        self._clock = clock
        self._log = ExchangeLog(clock)
        self.observe = scheduler.observe

    def route(self, request: InferenceRequest, now: float) -> Decision:
        """Decide, and say how long that took."""
        decision = self._scheduler.route(request, now)
        self._telemetry.scheduled(request, decision, self._clock() - now)
        return decision

    def close(self, record: RequestRecord) -> None:
        """Count and log an exchange that is over."""
        self._telemetry.finished(record)
        self._log.log_exchange(record)


class Picker:
    """One pool's endpoint picker: everything that `epp serve` runs."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._clock = time.monotonic
        self._draining = False
        self._fleet = Fleet(BlockHasher(options.hash_secret or os.urandom(_SECRET_BYTES)))
        self._telemetry = Telemetry(
            Sources(
                options.pool_name,
                self._fleet.loads,
                self._fleet.beliefs,
                lambda: self._fleet.indexed_blocks,
            )
        )
        scheduler = Scheduler(self._fleet, options.settings.profile, random.Random().randrange)  # noqa: S311 (chance, not secrets)
        self._service = Service(scheduler, self._telemetry, self._clock)
        self._scraper = Scraper(
            self._apply, self._clock, ScrapeSettings(interval=options.scrape_interval)
        )
        self._source = EndpointsFile(options.endpoints_file, self._apply)
        self._health = HealthServices()
        self._extproc = self._ext_proc_server()
        self._operators = OperatorServer(
            self._telemetry,
            lambda: self.ready,
            options.bind_address,
            options.metrics_port,
        )

    @property
    def ready(self) -> bool:
        """Whether traffic may come: endpoints are known, and no shutdown has begun."""
        return self._fleet.synced and not self._draining

    def _ext_proc_server(self) -> ExtProcServer:
        options = self._options
        server = ExtProcServer(
            self._exchanges(),
            self._clock,
            ExtProcSettings(
                address=options.bind_address,
                port=options.grpc_port,
                tls=certificate(options.cert_path) if options.secure else None,
                max_receive_bytes=options.max_body_bytes + (1 << 20),
            ),
        )
        if options.health_on_grpc_port:
            self._health.attach(server.server)
        return server

    def _exchanges(self) -> Callable[[float], Exchange]:
        options, service, draw = self._options, self._service, random.Random().getrandbits  # noqa: S311
        settings = ExchangeSettings(
            max_body_bytes=options.max_body_bytes,
            show_decision=options.show_decision,
            request_orca=options.request_orca,
        )
        return lambda now: Exchange(
            service, settings, RequestId(str(UUID(int=draw(128), version=4))), now
        )

    def _apply(self, event: Event) -> None:
        """Let the fleet know, and keep the scraper in step with its endpoints."""
        self._fleet.apply(event, self._clock())
        if isinstance(event, EndpointUpserted):
            self._scraper.watch(event.endpoint)
        elif isinstance(event, EndpointRemoved):
            self._scraper.forget(event.endpoint_id)
        elif isinstance(event, ScrapeFailed):
            self._telemetry.scrape_failed()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises `ConfigError` for what cannot start."""
        async with asyncio.TaskGroup() as tasks:
            self._source.load()
            running = [
                tasks.create_task(_forever(job), name=name)
                for name, job in (("endpoints", self._source.run), ("scrape", self._scraper.run))
            ]
            await self._start()
            try:
                await stop.wait()
                await self._drain()
            finally:
                await self._stop()
                for task in running:
                    task.cancel()

    async def _start(self) -> None:
        options = self._options
        try:
            await self._operators.start()
            await self._health.tell(Health.NOT_SERVING)
            where = f"{options.bind_address}:{options.health_port}"
            self._health_server, health_port = await serve_health(self._health, where)
            await self._extproc.start()
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"cannot listen: {error}") from error
        await self._health.tell(Health.SERVING)
        _settle_memory()
        _log.info(
            "serving",
            grpc_port=self._extproc.port,
            health_port=health_port,
            metrics_port=self._operators.port,
            secure=options.secure,
            endpoints=len(self._fleet.endpoints),
            profile=options.settings.profile.name,
            picker=type(options.settings.profile.picker).__name__,
        )

    async def _drain(self) -> None:
        """Say that no more should come; serve what comes all the same, until it is quiet."""
        self._draining = True
        await self._health.tell(Health.NOT_SERVING)
        _log.info("draining", streams=self._extproc.streams, timeout=self._options.drain_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_timeout):
                await self._extproc.quiet(_QUIET_SECONDS)

    async def _stop(self) -> None:
        await self._extproc.stop(_LAST_GRACE_SECONDS)
        await self._health_server.stop(0)
        await self._operators.stop()
        _log.info("stopped")


def _settle_memory() -> None:
    """Keep the collector from going through what lives as long as the process, again and again.

    Exchanges are freed by their reference counts; what is left for it is rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _forever(job: Callable[[], Awaitable[None]]) -> None:
    await job()
    raise RuntimeError("a job that never ends has ended")


@contextmanager
def _stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    heard = count()

    def hear(number: int) -> None:
        if next(heard):
            os._exit(128 + number)
        stop.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, hear, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def serve(options: ServeOptions) -> None:
    """Run a picker until SIGTERM or SIGINT. Raises `ConfigError`."""
    stop = asyncio.Event()
    with _stop_on_signals(stop):
        try:
            await Picker(options).run(stop)
        except* ConfigError as group:
            raise group.exceptions[0] from None
