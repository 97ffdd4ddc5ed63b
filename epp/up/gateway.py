"""`epp up` at work: the picker and Envoy, started in order, watched over, drained and stopped."""

import asyncio
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import aiohttp

from epp.app.jobs import keep_running
from epp.app.process import file_of
from epp.gateway.children import Child, Hooks
from epp.gateway.envoy import envoy_binary
from epp.gateway.processes import Process, free_port
from epp.up.addresses import AddressBook
from epp.up.certificates import ServedCertificate, authorities, client_context
from epp.up.envoy_admin import EnvoyAdmin
from epp.up.figures import PickerPage, Window, picker_page, status_line
from epp.up.lines import NOT_RELAYED, Front, envoy_line, introduction, picker_line
from epp.up.listening import check_differ, free_listener, listening_ip
from epp.up.model_list import LIST_SECONDS, ModelList
from epp.up.options import UpOptions
from epp.up.pages import RELAY_SECONDS, PageRelay, ServerPages
from epp.up.probe import probe
from epp.up.proxy import ProxySettings, proxy_config
from epp.up.servers import any_https
from epp.up.terminal import Terminal

READY_SECONDS = 30.0
STATUS_SECONDS, PAGE_SECONDS = 1.0, 2.0
PAST_AFTER, HUNG_AFTER = 2, 4
"""Metrics pages of the picker that fail in a row before requests go past it, and before it counts
as hung. On a busy machine one is late now and then, while the picker answers requests."""
QUIET_SECONDS, DRAIN_POLL_SECONDS = 0.3, 0.05
"""How long there must have been no request before a drain ends: clients reuse connections."""
ENVOY_THREADS, ENVOY_GRACE_SECONDS = 4, 2.0


class Gateway:
    """Everything that runs, with its files in `folder`.

    Raises `ConfigError` for options that cannot be used.
    """

    def __init__(self, options: UpOptions, folder: Path, terminal: Terminal) -> None:
        self.started = False
        self._options, self._folder, self._terminal = options, folder, terminal
        ip = listening_ip(options.host)
        self._port = free_listener(ip, options.port, "--port")
        self._metrics_port = free_listener("127.0.0.1", options.metrics_port, "--metrics-port")
        check_differ(ip, self._port, self._metrics_port)
        self._picker_port, self._health_port = free_port(), free_port()
        self._settings = ProxySettings(
            ip=ip,
            port=self._port,
            picker_port=self._picker_port,
            models_port=free_port(),
            folder=folder,
            servers=options.servers,
            tls=options.tls_cert is not None,
            ca_file=self._authorities(),
            api_key_env=options.api_key_env,
        )
        self._certificate = self._served_certificate()
        self._addresses = AddressBook(options.servers, options.endpoints_path, folder, terminal.say)
        self._relay: PageRelay | None = None
        self._models: ModelList | None = None
        self._picker = Child("picker", self._picker_argv(), folder, self._picker_hooks())
        self._envoy = Child("envoy", self._envoy_argv(), folder, self._envoy_hooks())
        self._admin = EnvoyAdmin(folder)
        limit = aiohttp.ClientTimeout(total=PAGE_SECONDS)
        self._client = aiohttp.ClientSession(timeout=limit)
        self._picker_up = False
        self._page_failures = 0
        self._window = Window()

    def _authorities(self) -> Path | None:
        options = self._options
        if not any_https(options.servers) or options.insecure_upstream:
            return None
        return authorities(options.ca_file)

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        """The TLS with which this process itself speaks to servers."""
        secure = any_https(self._options.servers)
        return client_context(self._settings.ca_file) if secure else None

    @property
    def _api_key(self) -> str:
        name = self._options.api_key_env
        return os.environ.get(name, "") if name else ""

    def _served_certificate(self) -> ServedCertificate | None:
        chain, key = self._options.tls_cert, self._options.tls_key
        if chain is None or key is None:
            return None
        served = ServedCertificate(chain, key, self._folder)
        served.load()
        return served

    # The two processes.

    def _picker_argv(self) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "epp", "serve"),
            f"--endpoints-file={self._addresses.endpoints_path}",
            "--bind-address=127.0.0.1",
            f"--grpc-port={self._picker_port}",
            f"--grpc-health-port={self._health_port}",
            f"--metrics-port={self._metrics_port}",
            "--metrics-endpoint-auth=false",
            "--secure-serving=false",
            "--log-format=json",
            f"--log-level={'debug' if self._options.log_level == 'debug' else 'info'}",
            *self._options.picker_flags,
        ]

    def _envoy_argv(self) -> list[str]:
        path = self._folder / "envoy.json"
        path.write_text(proxy_config(self._settings))
        return [
            *(str(envoy_binary()), "--config-path", str(path), "--disable-hot-restart"),
            *("--concurrency", str(min(os.cpu_count() or 1, ENVOY_THREADS))),
            # ext_proc warns of every request while the picker is away.
            *("--log-level", "warning", "--component-log-level", "ext_proc:error"),
        ]

    def _picker_hooks(self) -> Hooks:
        async def ready(process: Process) -> None:
            await process.wait_http(f"{self._metrics_url()}/readyz", READY_SECONDS)

        async def changed(up: bool) -> None:  # noqa: FBT001 (see `Hooks`)
            self._picker_up, self._page_failures = up, 0
            await self._steer()

        def line(text: str) -> None:
            relayed = self._relay.relayed if self._relay else NOT_RELAYED
            if told := picker_line(text, self._options.log_level, relayed):
                self._terminal.say(told)

        return Hooks(ready, changed, self._terminal.say, line)

    def _envoy_hooks(self) -> Hooks:
        async def ready(process: Process) -> None:
            await process.before_exit(self._admin.ready(), "was not ready", READY_SECONDS)

        async def changed(up: bool) -> None:  # noqa: FBT001 (see `Hooks`)
            if up:
                self._admin.started()
                await self._steer()

        def line(text: str) -> None:
            self._terminal.say(envoy_line(text))

        return Hooks(ready, changed, self._terminal.say, line)

    def _metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._metrics_port}"

    # The run.

    async def run(self) -> NoReturn:
        """Start everything, print that, and watch over it until cancelled.

        Raises `ConfigError` for an endpoints file that cannot be read, `ProcessDied` if a
        process does not start.
        """
        with file_of(self._options.endpoints_setting):
            self._relay = self._new_relay()
            await self._addresses.load(self._relay)
        how = self._options.servers, self._tls, self._api_key
        probing = probe(self._addresses.addresses, *how)
        self._models = await self._started_models()
        probes, _ = await asyncio.gather(probing, self._picker.start())
        await self._envoy.start()
        self.started = True
        self._terminal.introduce(introduction(self._front(), probes))
        pauses = STATUS_SECONDS, STATUS_SECONDS
        keep = partial(keep_running, failed=self._job_failed, pauses=pauses)
        await asyncio.gather(*(keep(name, job) for name, job in self._jobs()))
        raise AssertionError("none of the jobs ends")

    def _jobs(self) -> Iterator[tuple[str, Callable[[], Awaitable[NoReturn]]]]:
        yield "following addresses", self._addresses.run
        for child in (self._picker, self._envoy):
            yield f"watching over {child.name}", child.run
            yield f"the log of {child.name}", child.follow_log
        yield "status", self._show_status
        if self._certificate is not None:
            certificate = self._certificate
            yield "following the certificate", lambda: certificate.run(self._terminal.say)

    def _job_failed(self, name: str, error: BaseException | None, _wait: float) -> None:
        self._terminal.say(f"{name} failed and is started again: {error!r}")

    def _new_relay(self) -> PageRelay | None:
        """Return the relay that gets pages for the picker, which knows neither keys nor names."""
        servers = self._options.servers
        if any_https(servers) or (servers and self._api_key):
            return PageRelay(ServerPages(servers, self._tls, self._api_key, RELAY_SECONDS))
        return None

    async def _started_models(self) -> ModelList:
        """Return the list of all servers' models; clients bring their own keys."""
        pages = ServerPages(self._options.servers, self._tls, "", LIST_SECONDS)
        addresses = self._addresses
        models = ModelList(pages, lambda: addresses.addresses, self._settings.models_port)
        await models.start()
        return models

    def _front(self) -> Front:
        options = self._options
        return Front(
            ip=self._settings.ip,
            port=self._port,
            tls=self._settings.tls,
            metrics_port=self._metrics_port,
            policy=options.policy,
            key_added=bool(options.api_key_env),
            endpoints_file=options.endpoints_path,
        )

    async def _show_status(self) -> NoReturn:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            page, proxy = await asyncio.gather(self._picker_page(), self._admin.requests())
            lost = self._picker_up and page is None
            self._page_failures = self._page_failures + 1 if lost else 0
            await self._steer()
            if self._page_failures == HUNG_AFTER:
                self._terminal.say("the picker does not answer and is killed")
                self._picker.kill()
            self._window.add(time.monotonic(), page, proxy)
            count = len(self._addresses.addresses)
            picking = self._admin.picking is not False
            self._terminal.show(status_line(self._window.figures(), count, picking=picking))

    async def _steer(self) -> None:
        """Make Envoy ask the picker while the picker answers, and bypass it otherwise."""
        await self._admin.set_picking(lambda: self._picker_up and self._page_failures < PAST_AFTER)

    async def _picker_page(self) -> PickerPage | None:
        try:
            async with self._client.get(f"{self._metrics_url()}/metrics") as response:
                return picker_page(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    # The end.

    async def drain(self) -> None:
        """Accept no new connections; return when open requests have ended, or their time is up."""
        limit = self._options.drain_timeout
        self._terminal.say(
            f"draining: requests under way have {limit:g} s to end; Ctrl-C again stops at once"
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._drained()
                return
        page = await self._admin.requests()
        if page is not None and page.active:
            cut = f"{page.active} request{' was' if page.active == 1 else 's were'}"
            self._terminal.say(f"{cut} cut off after {limit:g} s")

    async def _drained(self) -> None:
        """Make Envoy drain; return when it has ended, or no request is open any more.

        An Envoy that does not answer may have requests under way: the machine may be busy.
        """
        told, quiet_since = False, time.monotonic()
        while not self._envoy.ended:
            told = told or await self._admin.drain()
            page = await self._admin.requests() if told else None
            if page is None or page.active:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= QUIET_SECONDS:
                return
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def stop(self, *, at_once: bool) -> None:
        """End both processes, and everything that is open."""
        await self._envoy.stop(0 if at_once else ENVOY_GRACE_SECONDS)
        await self._picker.stop(0)
        await self._admin.close()
        await self._client.close()
        for served in (self._relay, self._models):
            if served is not None:
                await served.close()
