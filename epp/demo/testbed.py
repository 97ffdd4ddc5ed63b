"""The testbed of one run: model servers on loopback, and `epp up` in front of them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Literal

import msgspec

from epp.demo.pools import DemoPool
from epp.gateway.processes import Process, ProcessDied, free_port, spawn
from epp.system.race import race

PolicyName = Literal["round-robin", "least-ttft", "linear"]

UP_SECONDS = 30.0
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

    async def while_up(self, work: Coroutine[None, None, object]) -> None:
        """Await `work`. Raises `ProcessDied` as soon as any of the processes ends."""
        await race(work, *(process.watch() for process in self.processes))


@contextlib.asynccontextmanager
async def start_testbed(
    pool: DemoPool, policy: PolicyName, directory: Path
) -> AsyncIterator[Testbed]:
    """Start model servers and the gateway, and stop them when the context ends.

    Their logs go to a new folder in `directory`.
    """
    logs = directory / policy
    logs.mkdir()
    async with contextlib.AsyncExitStack() as stack:
        servers, targets = await start_servers(pool, logs, stack)
        port, metrics_port = free_port(), free_port()
        flags = (
            *(f"--port={port}", f"--metrics-port={metrics_port}", f"--policy={policy}"),
            *("--debug-headers", "--drain-timeout=0"),
        )
        urls = (f"http://{target}" for target in targets)
        gateway = await spawn(
            "up", [sys.executable, "-P", "-m", "epp", "up", *flags, *urls], log_dir=logs
        )
        stack.push_async_callback(gateway.stop)
        url = f"http://127.0.0.1:{port}"
        await gateway.wait_http(f"{url}/v1/models", UP_SECONDS)
        metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        yield Testbed(url, targets, metrics, (*servers, gateway))


async def prepare(pool: DemoPool, directory: Path) -> None:
    """Run the pool's `prepare` command. Raises `ProcessDied` if it fails or takes too long."""
    if not pool.prepare:
        return
    process = await spawn("prepare", pool.prepare, log_dir=directory)
    try:
        if await process.wait_exit(PREPARE_SECONDS) != 0:
            raise ProcessDied(f"preparing the model failed:\n{process.log_path.read_text()}")
    except TimeoutError:
        raise ProcessDied(f"preparing the model took {PREPARE_SECONDS:g} s and more") from None
    finally:
        await process.stop(0)


async def start_servers(
    pool: DemoPool, logs: Path, stack: contextlib.AsyncExitStack
) -> tuple[list[Process], tuple[str, ...]]:
    """Start the pool's model servers, with logs in a folder, until `stack` is closed.

    Returns them, and where they listen, as `ip:port`.
    """
    servers: list[Process] = []

    async def stop() -> None:
        await asyncio.gather(*(server.stop(GRACE_SECONDS[pool.kind]) for server in servers))

    stack.push_async_callback(stop)
    for number in range(1, pool.servers + 1):
        more = () if number % 2 else pool.every_second
        server = await spawn(f"server-{number}", (*pool.argv, *more), log_dir=logs)
        servers.append(server)
    return servers, tuple([await _listening(server, pool) for server in servers])


async def _listening(server: Process, pool: DemoPool) -> str:
    line = await server.wait_ready_line(pool.start_seconds)
    return f"127.0.0.1:{line['port']}"
