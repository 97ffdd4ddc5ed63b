"""The picker as a service: builds its core, makes it listen, and stops it in order."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from epp import compiled
from epp.adapters.extproc.contract import ExtProcServer, ExtProcSettings
from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.transports import health_server, server_class
from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.adapters.telemetry.profiles import PROFILES
from epp.app.core import PickerCore
from epp.app.discovery import build_reviewer
from epp.app.jobs import attempt, keep_running
from epp.app.options import ServeOptions, key_and_certificate, reader_tls
from epp.app.process import file_of, freeze_long_lived_objects, listening
from epp.system.logs import Log

_log = Log(__name__)

_QUIET_SECONDS = 1.0
"""How long no stream may have been open before a drain ends: gateways pick another replica late."""
_LAST_GRACE_SECONDS = 1.0
"""How long streams that are open after a drain may take to end before they are reset."""


class EndpointPicker:
    """One pool's endpoint picker: everything that `epp serve` runs."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._serving = self._announced = False
        self._readiness_changed = asyncio.Event()
        self._core = PickerCore(
            options, self._readiness_changed.set, streams=lambda: self._extproc.streams
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
            self._core.telemetry,
            lambda: self.ready and self._announced,
            options.bind_address if options.worker is None else options.worker.pages,
            options.metrics_port,
            OperatorSettings(
                review=self._reviewer.review if self._reviewer else None,
                profiles=PROFILES if options.profiles else {},
                debug=self._core.pages(),
                tls=self._reader_tls.context if self._reader_tls else None,
            ),
        )

    @property
    def ready(self) -> bool:
        """Whether traffic may come: endpoints are known, and no shutdown has begun.

        `/readyz` and the health services report it once the first metrics pages are there.
        """
        return self._core.ready and self._serving

    def _ext_proc_server(self) -> ExtProcServer:
        options = self._options
        longest_message = options.max_receive_bytes or options.max_body_bytes + (1 << 20)
        server = server_class(options.transport, options.tls_ciphers)(
            self._core.exchanges(),
            self._core.clock,
            ExtProcSettings(
                address=options.bind_address,
                port=options.grpc_port,
                passed=options.worker is not None,
                tls=key_and_certificate(options.cert_path) if options.secure else None,
                tls_min_version=options.tls_min_version,
                tls_ciphers=options.tls_ciphers,
                max_held_bytes=options.held_bytes,
                request_timeout=options.request_timeout,
                limits=PeerLimits(max_message_bytes=longest_message),
            ),
        )
        if options.health_on_grpc_port:
            server.offer_health(self._health)
        return server

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises `ConfigError` for what cannot start."""
        async with asyncio.TaskGroup() as tasks:
            with file_of(self._options.source_setting):
                await self._core.discovery.load()
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
        yield from self._core.jobs()
        yield "readiness", self._announce
        if self._options.worker is not None:
            yield "worker", self._options.worker.run
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
                await self._core.reported()
                freeze_long_lived_objects(collected=True)
            if self.ready != self._announced:
                self._announced = self.ready
                self._health.set_ready(ready=self.ready)
                _log.info(
                    "ready" if self.ready else "not_ready",
                    endpoints=len(self._core.fleet.endpoints),
                )

    async def _start(self) -> None:
        """Listen as NOT_SERVING, wait for metrics pages and other replicas, then accept streams."""
        options = self._options
        self._health.set_ready(ready=False)
        address = options.bind_address
        with listening("--metrics-port", address):
            await self._operators.start()
        with listening("--grpc-health-port", address):
            await self._health_server.start(address, options.health_port)
        freeze_long_lived_objects()  # while endpoints answer
        await self._core.reported()
        await self._core.warmed()  # a gateway may send requests before it checks readiness
        with listening("--grpc-port", address):
            await self._extproc.start()
        if options.worker is not None:
            options.worker.report_listening(listening=True)
        self._serving = True
        self._core.loop_delay.start()
        self._readiness_changed.set()
        ports = {} if options.worker is not None else self._ports()
        _log.info(
            "serving" if options.worker is None else "worker.serving",
            **ports,
            secure=options.secure,
            transport=self._extproc.transport,
            native=compiled.summary(),
            endpoints=len(self._core.fleet.endpoints),
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
        """Hand over, report NOT_SERVING, and serve until no more streams come."""
        timeout, began = self._options.drain_timeout, asyncio.get_running_loop().time()
        _log.info("draining", streams=self._extproc.streams, timeout=timeout)
        lease = self._core.discovery.lease
        if lease is not None:
            await lease.release()  # even if there is no time to drain
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + timeout / 2):  # the rest is for streams
                    await lease.handed_over()
        self._serving = False
        self._health.set_ready(ready=False)
        self._extproc.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(began + timeout):
                await self._extproc.quiet(_QUIET_SECONDS)

    async def _stop(self) -> None:
        self._core.loop_delay.stop()
        if self._options.worker is not None:
            self._options.worker.report_listening(listening=False)
        await attempt("director", self._core.director.stop())
        await attempt("ext_proc", self._extproc.stop(_LAST_GRACE_SECONDS))
        for name, stop in self._core.stops():
            await attempt(name, stop)
        await attempt("health", self._health_server.stop())
        await attempt("operators", self._operators.stop())
        if self._reviewer is not None:
            await attempt("reviewer", self._reviewer.close())
        _log.info("stopped")
