"""The process that starts workers: it has their ports, and serves pages about all of them."""

import asyncio
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.native_health import NativeHealthServer
from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.app.discovery import build_reviewer
from epp.app.jobs import attempt, first_error, keep_running
from epp.app.options import ServeOptions, reader_tls
from epp.app.process import listening, stop_signals
from epp.app.workers.pages import MergedPages
from epp.app.workers.supervisor import Supervisor, WorkerEnded
from epp.errors import ConfigError
from epp.system.logs import Log
from epp.system.port import Port
from epp.system.temporary import temporary_folder_wanted

_log = Log(__name__)

_LAST_GRACE_SECONDS: Final = 10.0
"""How long workers may take to end, beyond their drain, before they are killed."""
_LONGEST_FOLDER: Final = 90
"""Bytes of the path of a folder whose sockets can be bound: with their names they have 107."""


async def serve(options: ServeOptions) -> int:
    """Run `options.workers` workers until SIGTERM, SIGINT or SIGHUP; return the status.

    Raises `ConfigError` if it cannot listen, or has no folder for temporary files. A worker that
    cannot start has said why.
    """
    for warning in options.settings.warnings:
        _log.warning("config.warning", warning=warning)
    stop = asyncio.Event()
    parent = _Parent(options)

    def at_once() -> None:
        parent.supervisor.kill()
        shutil.rmtree(parent.folder, ignore_errors=True)

    status = 0
    with stop_signals(stop, at_once):
        try:
            await parent.run(stop)
        except* WorkerEnded as ended:
            status = cast("WorkerEnded", first_error(ended)).status
        finally:
            shutil.rmtree(parent.folder, ignore_errors=True)
    return status


def _folder() -> Path:
    """Make the folder of the workers' sockets. Raises `ConfigError` if there is no place for it."""
    with temporary_folder_wanted():
        folder = Path(tempfile.mkdtemp(prefix="warmpick-workers-"))
    if len(bytes(folder)) > _LONGEST_FOLDER:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            f"the path of the folder for temporary files, {folder.parent}, is too long for sockets;"
            " set TMPDIR to a shorter one"
        )
    return folder


class _Parent:
    """The ports of all workers, and the workers."""

    def __init__(self, options: ServeOptions) -> None:
        self._options: Final = options
        self._tls: Final = reader_tls(options)
        self.folder: Final = _folder()  # nothing after this raises `ConfigError`
        command = [sys.executable, *sys.orig_argv[1:]]  # as this process was started
        self.supervisor: Final = Supervisor(options.workers, self.folder, command, self._changed)
        self._health: Final = HealthServices()
        self._health_server: Final = NativeHealthServer(self._health)
        self._reviewer: Final = build_reviewer(options.metrics_access)
        self._pages: Final = MergedPages(self.supervisor.workers)
        self._operators: Final = OperatorServer(
            self._pages,
            lambda: self._ready,
            options.bind_address,
            options.metrics_port,
            OperatorSettings(
                review=self._reviewer.review if self._reviewer else None,
                profiles=self._pages.profiles if options.profiles else {},
                debug=self._pages.debug,
                tls=self._tls.context if self._tls else None,
            ),
        )
        self._port: Port | None = None
        self._ready = self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then let all workers drain."""
        await self._listen()
        async with asyncio.TaskGroup() as tasks:
            background = []
            if self._tls is not None:
                watch = keep_running("metrics certificate", self._tls.watch().run)
                background.append(tasks.create_task(watch))
            running = tasks.create_task(self.supervisor.run(), name="workers")
            stopping = tasks.create_task(stop.wait(), name="stop")
            try:
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    await self._drain(running)
            finally:
                for each in (stopping, *background):
                    each.cancel()
                await self._close()
        _log.info("stopped")

    async def _listen(self) -> None:
        """Bind all ports; that of ext_proc refuses connections until a worker takes them."""
        options, address = self._options, self._options.bind_address
        self._health.set_ready(ready=False)
        try:
            with listening("--grpc-port", address):
                self._port = Port(address, options.grpc_port, self._deal)
            with listening("--metrics-port", address):
                await self._operators.start()
            with listening("--grpc-health-port", address):
                await self._health_server.start(address, options.health_port)
        except ConfigError:
            await self._close()
            raise

    def _deal(self, connection: socket.socket) -> None:
        with connection:  # the worker has its own descriptor
            self.supervisor.deal(connection)

    def _changed(self) -> None:
        """Act on the workers' states."""
        if self.supervisor.listening and not self.supervisor.served and self._port is not None:
            self.supervisor.served = True
            self._port.open()
            self._log_serving(self._port.port)
        ready = self.supervisor.ready and not self._stopping
        if ready != self._ready:
            self._ready = ready
            self._health.set_ready(ready=ready)
            there = sum(each.state.ready for each in self.supervisor.workers)
            _log.info("ready" if ready else "not_ready", workers=there)

    def _log_serving(self, grpc_port: int) -> None:
        _log.info(
            "serving",
            grpc_port=grpc_port,
            health_port=self._health_server.port,
            metrics_port=self._operators.port,
            secure=self._options.secure,
            transport=self._options.transport,
            workers=self._options.workers,
        )

    async def _drain(self, running: asyncio.Task[None]) -> None:
        """Report NOT_SERVING; let all workers drain, and kill those that take too long."""
        self._stopping = True
        timeout = self._options.drain_timeout
        _log.info("draining", workers=self._options.workers, timeout=timeout)
        self._changed()
        self.supervisor.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout + _LAST_GRACE_SECONDS):
                await asyncio.shield(running)
        self.supervisor.kill()

    async def _close(self) -> None:
        if self._port is not None:
            self._port.close()
        await attempt("pages", self._pages.close())
        await attempt("health", self._health_server.stop())
        await attempt("operators", self._operators.stop())
        if self._reviewer is not None:
            await attempt("reviewer", self._reviewer.close())
