"""The whole way of a request on loopback: client, real Envoy, `epp serve`, model servers."""

import asyncio
import contextlib
import io
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest
from multidict import CIMultiDictProxy
from prometheus_client.parser import text_string_to_metric_families

from bench.envoy import EnvoySettings, Routing, start_envoy
from epp.adapters.extproc.transports import Transport
from epp.gateway.envoy import BodyMode, envoy_binary
from epp.gateway.processes import Process, spawn
from epp.model.endpoint import H2C
from tests.native.built import FAULTS

START_SECONDS = 30
DEADLINE = 30
POLL_SECONDS = 0.02
TRANSPORT: Transport = "grpcio" if os.environ.get("WARMPICK_TRANSPORT") == "grpcio" else "native"
UNTESTED = "NOT TESTED: %s: grpcio %s; unset WARMPICK_TRANSPORT"
MODEL = "sim-model"
CHAT = "/v1/chat/completions"
DECISION = "x-warmpick-decision"
REASON = "x-warmpick-reason"
SERVER = "x-sim-name"
HELD = "warmpick_event_loop_held_seconds"
MAX_HELD = "1" if FAULTS else "0.1"
"""Seconds, of what is compiled; the sources of that take longer."""
WATCHED = ("--observe-responses=all",)
"""Flags of a picker that leaves no response, however it is shown."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) + 1
"""Processes that run tests beside each other, and one that stands for one of them that died."""
QUIET_PORTS = range(20_000 + _WORKER % _WORKERS, 32_000, _WORKERS)
"""Of this process alone: another may have been given a port that nothing has bound yet."""
_untried_ports = iter(secrets.SystemRandom().sample(QUIET_PORTS, len(QUIET_PORTS)))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `simulators` are names, `others` are `ip:port` of endpoints already there.

    `argv` starts one model server and prints where it listens; it has `stop_seconds` to end.
    """

    simulators: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    argv: tuple[str, ...] = (sys.executable, "-m", "model_server.simulator", "--port", "0")
    server_flags: tuple[str, ...] = ()
    stop_seconds: float = 0
    routing: Routing = "override_host"
    h2c: bool = False
    request_body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    response_body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    response_headers: bool = True
    tls: bool = False
    failure_mode_allow: bool = False
    message_timeout_s: float = 10
    stream_idle_timeout_s: float = 30
    picker_flags: tuple[str, ...] = ()
    envoy_threads: int = 1


class Answer(msgspec.Struct, frozen=True):
    """What a client got."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The message of an error in OpenAI's form."""
        return str(self.json["error"]["message"])

    @property
    def events(self) -> list[Any]:
        """The JSON events of a complete stream."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-2:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


class Corridor:
    """Everything that runs, and a client in front of it."""

    def __init__(self, plan: Plan, directory: Path, client: aiohttp.ClientSession) -> None:
        self.plan = plan
        self.directory = directory
        self.client = client
        self.servers: dict[str, Process] = {}
        self.targets: dict[str, str] = {}
        self.endpoints_path = directory / "endpoints.yaml"
        ports = [quiet_port() for _ in range(5)]
        self.grpc_port, self.health_port, self.metrics_port, self.port, self.admin_port = ports
        self.picker: Process
        self.envoy: Process
        self._stop = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start model servers, picker and gateway."""
        plan = self.plan
        for name, target in enumerate(plan.others):
            self.targets[f"other-{name}"] = target
        self._stop.push_async_callback(self._stop_servers)
        await asyncio.gather(*(self.start_server(name) for name in plan.simulators))
        self.write_endpoints(*self.targets)
        await self.start_picker()
        await self.start_gateway()

    async def start_gateway(self) -> None:
        """Start Envoy, and wait until it is ready."""
        plan = self.plan
        settings = EnvoySettings(
            listen_port=self.port,
            admin_port=self.admin_port,
            epp_port=self.grpc_port,
            endpoints=tuple(self.targets.values()) or (f"127.0.0.1:{quiet_port()}",),
            routing=plan.routing,
            h2c=plan.h2c,
            epp_tls=plan.tls,
            failure_mode_allow=plan.failure_mode_allow,
            request_body_mode=plan.request_body_mode,
            response_body_mode=plan.response_body_mode,
            response_headers=plan.response_headers,
            message_timeout_s=plan.message_timeout_s,
            stream_idle_timeout_s=plan.stream_idle_timeout_s,
            concurrency=plan.envoy_threads,
            reuse_port=plan.envoy_threads > 1,
        )
        self.envoy = await start_envoy(settings, log_dir=self.directory)
        self._stop.push_async_callback(self.envoy.stop, 0)

    async def spawn_envoy(self, config: str, *flags: str) -> None:
        """Start Envoy with a configuration as it stands, and wait until it is ready."""
        path = self.directory / "envoy.json"
        path.write_text(config)
        argv = [
            *(str(envoy_binary()), "--config-path", str(path), "--log-level", "warn", *flags),
            *("--concurrency", "1", "--disable-hot-restart"),
        ]
        self.envoy = await spawn("envoy", argv, log_dir=self.directory)
        self._stop.push_async_callback(self.envoy.stop, 0)
        await self.envoy.wait_http(f"http://127.0.0.1:{self.admin_port}/ready", START_SECONDS)

    async def reconfigure(self, change: Callable[[Any], object]) -> None:
        """Have the manager of client connections in Envoy's configuration be another one."""
        config = json.loads((self.directory / "envoy.json").read_text())
        (listener,) = config["static_resources"]["listeners"]
        change(listener["filter_chains"][0]["filters"][0]["typed_config"])
        await self.envoy.stop(0)
        await self.spawn_envoy(json.dumps(config))

    async def start_server(self, name: str) -> None:
        """Start one model server; it is in no endpoints file yet."""
        flags = ("--name", name) if SERVER_NAMES in self.plan.argv else ()
        argv = (*self.plan.argv, *flags, *self.plan.server_flags)
        server = await spawn(f"server-{name}", argv, log_dir=self.directory)
        self.servers[name] = server
        line = await server.wait_ready_line(START_SECONDS * 10)
        self.targets[name] = f"127.0.0.1:{line['port']}"

    async def _stop_servers(self) -> None:
        grace = self.plan.stop_seconds
        await asyncio.gather(*(server.stop(grace) for server in self.servers.values()))

    async def start_picker(self) -> None:
        """Start the picker on its ports, again where it has died, and wait until it is ready."""
        await self.spawn_picker()
        await self.picker.wait_http(self.operator_url("/readyz"), START_SECONDS)

    async def spawn_picker(self) -> None:
        """Start the picker on its ports."""
        plan = self.plan
        argv = [
            *(sys.executable, "-m", "epp", "serve", "--bind-address=127.0.0.1"),
            *self.source_flags(),
            f"--grpc-port={self.grpc_port}",
            f"--grpc-health-port={self.health_port}",
            f"--metrics-port={self.metrics_port}",
            f"--secure-serving={str(plan.tls).lower()}",
            f"--transport={TRANSPORT}",
            *("--log-format=json", "--scrape-interval=200ms", "--debug-headers"),
            *plan.picker_flags,
        ]
        self.picker = await spawn("epp", argv, log_dir=self.directory)
        self._stop.push_async_callback(self.picker.stop, 0)

    def source_flags(self) -> tuple[str, ...]:
        """Say where the picker's endpoints come from."""
        return (f"--endpoints-file={self.endpoints_path}",)

    async def stop(self) -> None:
        """Kill everything, the gateway first. Raises `AssertionError` where the loop was held."""
        try:
            if hasattr(self, "picker") and self.picker.alive():
                await self._never_held()
        finally:
            await self._stop.aclose()

    async def _never_held(self) -> None:
        """Check that nothing has held the picker's event loop for longer than `MAX_HELD`."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # it may be on its way out
            samples = await self.metric(f"{HELD}_count")
            short = await self.metric(f"{HELD}_bucket", le=MAX_HELD)
            # Samples that were taken between the two can only be more of the short ones.
            assert samples <= short, f"the event loop was held {samples - short:g} times"

    def write_endpoints(self, *names: str) -> None:
        """Put these endpoints in the file that the picker follows, in one step."""
        entries = [
            {"name": name, "address": "127.0.0.1", "port": int(self.targets[name][10:])}
            | ({"appProtocol": H2C} if self.plan.h2c else {})
            for name in names
        ]
        draft = self.endpoints_path.with_suffix(".draft")
        draft.write_text(json.dumps({"endpoints": entries}))
        draft.replace(self.endpoints_path)

    def signal(self, process: Process, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(process.pid, number)

    # What a client does.

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        """POST bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers}
        async with self.client.post(
            self.url + path, data=io.BytesIO(data), headers=sent
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str) -> Answer:
        """GET through the gateway."""
        async with self.client.get(self.url + path) as response:
            return Answer(response.status, response.headers, await response.read())

    def stream(self, path: str, body: Any, **headers: str) -> aiohttp.client._RequestContextManager:
        """POST, for a response that is read piece by piece."""
        return self.client.post(self.url + path, json=body, headers=headers)

    # What an operator sees.

    def operator_url(self, path: str) -> str:
        """Where the picker answers operators."""
        return f"http://127.0.0.1:{self.metrics_port}{path}"

    async def page(self) -> str:
        """Read the picker's metrics page."""
        async with self.client.get(self.operator_url("/metrics")) as response:
            assert response.status == 200
            return await response.text()

    async def metric(self, name: str, **labels: str) -> float:
        """Add up the samples of the picker's metrics page that have a name and these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(await self.page())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def metric_becomes(self, wanted: float, name: str, **labels: str) -> None:
        """Wait until a metric has a value."""
        await until(lambda: self._is(wanted, name, labels))

    async def _is(self, wanted: float, name: str, labels: dict[str, str]) -> bool:
        return await self.metric(name, **labels) == wanted

    async def idle(self) -> bool:
        """Whether no request is with a model server."""
        return await self.metric("llm_d_epp_request_running") == 0

    async def kill_server_of(self, response: aiohttp.ClientResponse) -> None:
        """Kill the model server amid a response; see that the others serve, and it is left alone.

        There are two of them.
        """
        victim = response.headers[SERVER]
        self.signal(self.servers[victim], signal.SIGKILL)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await self.metric_becomes(1, "llm_d_epp_ready_endpoints")
        (survivor,) = set(self.servers) - {victim}
        for _ in range(3):
            answer = await self.post(CHAT, chat("hello"))
            assert (answer.status, answer.headers[SERVER]) == (200, survivor)
        await until(self.idle)

    def log_lines(self) -> list[Any]:
        """Everything that the picker has logged, read."""
        whole, _, _ = self.picker.log_path.read_text().rpartition("\n")  # one is being written
        return [json.loads(line) for line in whole.splitlines()]


C = TypeVar("C", bound=Corridor)

SERVER_NAMES = "model_server.simulator"
"""The module whose servers can be given a name."""


def quiet_port() -> int:
    """Find a free port that the kernel gives to no outgoing connection.

    One that it does give may be taken while the process that owns it is down. No port is
    given twice in a run: who got it may not have bound it yet.
    """
    for port in _untried_ports:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is left")


@contextlib.asynccontextmanager
async def running(kind: type[C], plan: Plan, directory: Path) -> AsyncIterator[C]:
    """Start what a plan says, in a corridor of a kind; stop it at the end, logs stay."""
    limit = aiohttp.ClientTimeout(total=DEADLINE * 2)
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    async with aiohttp.ClientSession(timeout=limit, connector=connector) as client:
        made = kind(plan, directory, client)
        try:
            await made.start()
            yield made
        finally:
            await made.stop()


def corridor(plan: Plan, directory: Path) -> AbstractAsyncContextManager[Corridor]:
    """Start what a plan says; stop it at the end, logs stay in the directory."""
    return running(Corridor, plan, directory)


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not await condition():
            await asyncio.sleep(POLL_SECONDS)


def chat(*texts: str, **options: Any) -> dict[str, Any]:
    """Build a chat of alternating turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(texts)]
    return {"model": MODEL, "messages": messages, "max_tokens": 4, "ignore_eos": True, **options}


def decision(answer: Answer) -> Any:
    """Read what the picker says it decided."""
    return json.loads(answer.headers[DECISION])
