"""The testbed of one run: model servers, picker and Envoy on loopback."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from epp.demo.pools import DemoPool
from epp.gateway.envoy import EnvoySettings, start_envoy
from epp.gateway.processes import Process, ProcessDied, free_port, spawn

PolicyName = Literal["round-robin", "least-ttft", "linear"]

EPP_SECONDS = 20.0
PREPARE_SECONDS = 120.0
GRACE_SECONDS = {"simulator": 2.0, "vllm": 20.0}


class Testbed(msgspec.Struct, frozen=True):
    """A running testbed.

    `url` is the gateway's, `metrics` the picker's; `servers` are `ip:port`.
    """

    url: str
    servers: tuple[str, ...]
    metrics: str
    processes: tuple[Process, ...]

    async def watch(self) -> NoReturn:
        """Raise `ProcessDied` as soon as any of the processes ends."""
        async with asyncio.TaskGroup() as group:
            for process in self.processes:
                group.create_task(process.watch())
        raise ProcessDied("there is nothing to watch")


@contextlib.asynccontextmanager
async def start_testbed(
    pool: DemoPool, policy: PolicyName, directory: Path
) -> AsyncIterator[Testbed]:
    """Start model servers, picker and gateway, and stop them when the context ends.

    Their logs go to a new folder in `directory`.
    """
    logs = _folder(directory, policy)
    async with contextlib.AsyncExitStack() as stack:
        servers = await _start_servers(pool, logs, stack)
        targets = tuple([await _listening(server, pool) for server in servers])
        ports = [free_port() for _ in range(5)]
        endpoints = logs / "endpoints.yaml"
        endpoints.write_text(_endpoints_file(targets))
        picker = await spawn("epp", _picker_argv(policy, endpoints, ports), log_dir=logs)
        stack.push_async_callback(picker.stop)
        await picker.wait_http(f"http://127.0.0.1:{ports[2]}/readyz", EPP_SECONDS)
        settings = EnvoySettings(
            listen_port=ports[3], admin_port=ports[4], epp_port=ports[0], endpoints=targets
        )
        envoy = await start_envoy(settings, log_dir=logs)
        stack.push_async_callback(envoy.stop)
        metrics = f"http://127.0.0.1:{ports[2]}/metrics"
        yield Testbed(settings.url, targets, metrics, (*servers, picker, envoy))


async def prepare(pool: DemoPool, directory: Path) -> None:
    """Run the pool's `prepare` command. Raises `ProcessDied` where it fails."""
    if not pool.prepare:
        return
    process = await spawn("prepare", pool.prepare, log_dir=directory)
    try:
        if await process.wait_exit(PREPARE_SECONDS) != 0:
            raise ProcessDied(f"preparing the model failed:\n{process.log_path.read_text()}")
    finally:
        await process.stop(0)


async def _start_servers(
    pool: DemoPool, directory: Path, stack: contextlib.AsyncExitStack
) -> list[Process]:
    servers: list[Process] = []

    async def stop() -> None:
        await asyncio.gather(*(server.stop(GRACE_SECONDS[pool.kind]) for server in servers))

    stack.push_async_callback(stop)
    for number in range(1, pool.servers + 1):
        server = await spawn(f"server-{number}", pool.argv, log_dir=directory)
        servers.append(server)
    return servers


async def _listening(server: Process, pool: DemoPool) -> str:
    line = await server.wait_ready_line(pool.start_seconds)
    return f"127.0.0.1:{line['port']}"


def _folder(directory: Path, name: str) -> Path:
    path = directory / name
    path.mkdir()
    return path


def _endpoints_file(targets: tuple[str, ...]) -> str:
    """Return the picker's endpoints file as JSON, which is YAML too."""
    return json.dumps(
        {
            "endpoints": [
                {"name": f"server-{number}", "address": "127.0.0.1", "port": int(target[10:])}
                for number, target in enumerate(targets, start=1)
            ]
        }
    )


def _picker_argv(policy: PolicyName, endpoints: Path, ports: list[int]) -> list[str]:
    flags = {
        "--endpoints-file": endpoints,
        "--policy": policy,
        "--bind-address": "127.0.0.1",
        "--grpc-port": ports[0],
        "--grpc-health-port": ports[1],
        "--metrics-port": ports[2],
        "--secure-serving": "false",
        "--log-level": "warning",
    }
    pairs = [f"{name}={value}" for name, value in flags.items()]
    return [sys.executable, "-m", "epp", "serve", *pairs, "--debug-headers"]
