"""Replicas behind one Envoy, killed and stopped in turn while conversations go on.

Everything is a process of its own: pickers, Envoy, simulated model servers. Envoy buffers requests,
streams responses, asks another picker if one does not answer, and goes on without one that fails
all the same, as its users have it who would rather be served. Buffered responses would hide from
pickers when first tokens come, and so how fast endpoints are.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from bench.envoy import EnvoySettings, PickerPorts, start_envoy
from bench.extproc.pickers import Product, endpoints_file
from bench.extproc.stack import TRANSPORT
from epp.adapters.extproc.transports import Transport
from epp.demo.client import Player
from epp.demo.figures import Sample, summarize
from epp.demo.pools import Size, choose_pool
from epp.demo.testbed import start_servers
from epp.demo.workload import conversations, shipped_sections
from epp.gateway.processes import Process, free_port

REPLICAS = 3
EVERY_S = 20.0
PAUSE_S = 30.0
_SECRET = b"a secret of the benchmark, long enough"
_HERE = "127.0.0.1"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What clients had of one run: `cached` in 0..1, times in seconds."""

    requests: int
    failed: int
    first_error: str
    cached: float
    ttft_mean: float
    ttft_p99: float
    struck: int


class Replicas:
    """Pickers that are replicas of each other, each a process that can be started again.

    Unless they are `told`, each knows of its own requests alone.
    """

    def __init__(
        self,
        ports: Sequence[int],
        transport: Transport,
        folder: Path,
        count: int = REPLICAS,
        *,
        told: bool = True,
    ) -> None:
        secret = folder / "secret"
        secret.write_bytes(_SECRET)
        endpoints = endpoints_file(ports, folder / "endpoints.yaml")
        own = [free_port() for _ in range(count)]
        peers = ",".join(f"{_HERE}:{port}" for port in own)
        shared = (f"--hash-secret-file={secret}", f"--replicas={peers}")
        flags = [(*shared, f"--replicas-port={port}") if told else () for port in own]
        self._folder = folder
        self._products = [Product(endpoints, transport, *each) for each in flags]
        self._processes: list[Process] = []
        self._starts = 0

    @property
    def ports(self) -> tuple[PickerPorts, ...]:
        """Where they listen."""
        return tuple(PickerPorts(each.grpc_port, each.health_port) for each in self._products)

    @property
    def metrics_urls(self) -> tuple[str, ...]:
        """Their pages of metrics."""
        return tuple(each.metrics_url for each in self._products)

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that run."""
        return tuple(self._processes)

    async def start(self) -> None:
        """Start all of them, and wait until they are ready."""
        for number in range(len(self._products)):
            self._processes.append(await self._started(number))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have all of them run, and be ready."""
        try:
            await self.start()
            yield
        finally:
            for process in self._processes:
                await process.stop(0)

    async def kill(self, number: int) -> None:
        """Kill one, and start it again."""
        os.kill(self._processes[number].pid, signal.SIGKILL)
        await self._processes[number].stop(0)
        self._processes[number] = await self._started(number)

    async def pause(self, number: int) -> None:
        """Stop one for half a minute, and have it go on."""
        pid = self._processes[number].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _started(self, number: int) -> Process:
        self._starts += 1
        name = f"picker-{number}-{self._starts}"
        return await self._products[number].start(self._folder, name)


Strike = Callable[[Replicas, int], Awaitable[None]]
STRIKES: dict[str, Strike | None] = {
    "calm": None,
    "killed": Replicas.kill,
    "paused": Replicas.pause,
}


async def play(
    strike: Strike | None, seconds: float, folder: Path, transport: Transport = TRANSPORT
) -> Outcome:
    """Play conversations for `seconds`, while a replica is struck every 20 seconds."""
    pool = choose_pool("simulator", Size(seconds=seconds), folder)
    plan = conversations(shipped_sections(), pool.workload, 0)
    samples: list[Sample] = []
    async with AsyncExitStack() as stack:
        _, targets = await start_servers(pool, folder, stack)
        ports = [int(target.rpartition(":")[2]) for target in targets]
        replicas = Replicas(ports, transport, folder)
        await stack.enter_async_context(replicas.running())
        settings = EnvoySettings(
            pickers=replicas.ports,
            endpoints=targets,
            failure_mode_allow=True,
            request_body_mode="BUFFERED",
            response_body_mode="STREAMED",
        )
        envoy = await start_envoy(settings, log_dir=folder)
        stack.push_async_callback(envoy.stop, 0)
        async with asyncio.TaskGroup() as group:
            strikes = group.create_task(_strikes(strike, replicas, seconds))
            group.create_task(Player(settings.url, pool.model, samples.append).play(plan))
    figures = summarize(samples, targets, pool.block_size)
    return Outcome(
        requests=figures.requests,
        failed=figures.failed,
        first_error=next((each.error for each in samples if each.error), ""),
        cached=figures.cached_ratio,
        ttft_mean=figures.ttft_mean,
        ttft_p99=figures.ttft_p99,
        struck=strikes.result(),
    )


async def _strikes(strike: Strike | None, replicas: Replicas, seconds: float) -> int:
    """Strike one after another until there is no time left; return how often."""
    loop, struck = asyncio.get_running_loop(), 0
    end = loop.time() + seconds - EVERY_S / 2
    while strike is not None and loop.time() < end:
        began = loop.time()
        await strike(replicas, struck % REPLICAS)
        struck += 1
        await asyncio.sleep(max(0.0, began + EVERY_S - loop.time()))
    return struck
