"""What follows the cluster: the picker as a process, and its discovery in this one."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.child import Child, MeasurementFailed
from bench.kube.cluster import SENT, Order
from epp.adapters.kube.kube_discovery import KubeDiscovery
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.gateway.processes import Process, spawn
from epp.model.events import EndpointUpserted, Event
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher

READY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_LINE_LIMIT = 1 << 16
_GRACE_SECONDS = 10.0
"""Enough to let go of the lease, which the next one would wait for."""


class Cluster(Child):
    """The cluster's process, and orders to it."""

    def __init__(self, pods: int, kubeconfig: Path) -> None:
        super().__init__("bench.kube.cluster", _LINE_LIMIT, str(pods), str(kubeconfig))
        self.kubeconfig = kubeconfig

    async def order(self, order: Order) -> None:
        """Have pods changed; returns when all are."""
        self.tell(msgspec.json.encode(order))
        await self.answer()


@contextlib.asynccontextmanager
async def cluster(pods: int, directory: Path) -> AsyncIterator[Cluster]:
    """Start a cluster with this many pods, all ready."""
    async with Cluster(pods, directory / "kubeconfig") as made:
        await made.answer()
        yield made


class Served(NamedTuple):
    """A picker that serves; `ready_s` went by from its first request to the API until it was."""

    pid: int
    ready_s: float


@contextlib.asynccontextmanager
async def serving(kubeconfig: Path, directory: Path, *flags: str) -> AsyncIterator[Served]:
    """Run `epp serve` once it is ready."""
    argv = [
        *(sys.executable, "-m", "epp", "serve", "--bind-address=127.0.0.1"),
        *("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--log-format=json"),
        *("--pool-name=pool", f"--kubeconfig={kubeconfig}"),
        *flags,
    ]
    process = await spawn("epp", argv, log_dir=directory)
    try:
        yield Served(process.pid, await _ready_s(process))
    finally:
        await process.stop(_GRACE_SECONDS)


async def _ready_s(process: Process) -> float:
    try:
        async with asyncio.timeout(READY_SECONDS):
            while (times := _times(process.log_path)).keys() < {"kube.following", "ready"}:
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise MeasurementFailed(f"the picker is not ready after {READY_SECONDS:g} s") from None
    return (times["ready"] - times["kube.following"]).total_seconds()


def _times(log: Path) -> dict[str, datetime]:
    """When the log says what was waited for."""
    said = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return {
        each["event"]: datetime.fromisoformat(each["timestamp"])
        for each in said
        if each["event"] in {"kube.following", "ready"}
    }


class Follower:
    """A discovery that feeds a fleet; `delays` are in seconds, from a change to the next pick."""

    def __init__(self, kubeconfig: Path) -> None:
        self.delays: list[float] = []
        self._fleet = Fleet(BlockHasher(b"bench", TOKEN_BLOCK))
        access = KubeAccess(kubeconfig=str(kubeconfig), environ={})
        settings = KubeSettings(namespace="default", pool="pool", access=access)
        self._changed = asyncio.Event()
        self._discovery = KubeDiscovery(settings, self._apply, self._changed.set)

    def _apply(self, event: Event) -> None:
        self._fleet.apply(event, time.monotonic())
        if isinstance(event, EndpointUpserted):
            sent = int(event.endpoint.labels[SENT])
            self.delays.append((time.monotonic_ns() - sent) / 1e9)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the pool; what is listed first is not a delay."""
        await self._discovery.load()
        task = asyncio.create_task(self._discovery.run())
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not self._discovery.ready:
                    await self._changed.wait()
                    self._changed.clear()
            self.delays.clear()
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def heard(self, count: int) -> None:
        """Wait until this many changes were told."""
        async with asyncio.timeout(READY_SECONDS):
            while len(self.delays) < count:
                await asyncio.sleep(_POLL_SECONDS)
