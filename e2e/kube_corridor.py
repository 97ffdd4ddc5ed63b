"""The way of a request where endpoints are pods: an API server beside client, Envoy and picker.

Pods have addresses of their own on the loopback network and share one port, as pods do.
"""

import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from e2e.corridor import (
    DEADLINE,
    SERVER_NAMES,
    START_SECONDS,
    TRANSPORT,
    Corridor,
    Plan,
    quiet_port,
    until,
)
from epp.gateway.processes import Process, spawn
from tests.kubeapi import FakeKubernetes

CRDS = sorted((Path(__file__).parents[1] / "manifests" / "crds").glob("inference*.yaml"))
LABELS = {"app": "vllm"}
READY_ENDPOINTS = "llm_d_epp_ready_endpoints"


class KubeCorridor(Corridor):
    """A corridor whose picker follows the InferencePool `pool` of `api`."""

    def __init__(
        self, plan: Plan, directory: Path, client: aiohttp.ClientSession, api: FakeKubernetes
    ) -> None:
        super().__init__(plan, directory, client)
        self.api = api
        self.pod_port = quiet_port()
        self._addresses: dict[str, str] = {}
        self._unused = (f"127.0.{third}.{last}" for third in range(1, 9) for last in range(1, 250))
        self.kubeconfig = api.kubeconfig(directory / "kubeconfig")

    def source_flags(self) -> tuple[str, ...]:
        """Follow the pool."""
        return (
            *("--pool-name=pool", f"--kubeconfig={self.kubeconfig}"),
            "--metrics-endpoint-auth=false",  # the test reads them
        )

    def put_pool(self) -> None:
        """Have the InferencePool."""
        spec = {
            "selector": {"matchLabels": LABELS},
            "targetPorts": [{"number": self.pod_port}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        }
        self.api.put(
            {
                "apiVersion": "inference.networking.k8s.io/v1",
                "kind": "InferencePool",
                "metadata": {"name": "pool"},
                "spec": spec,
            }
        )

    async def start_pod(self, name: str) -> None:
        """Start a model server, then have its pod, ready."""
        self._addresses[name] = next(self._unused)
        await self.start_container(name)
        self.api.put(_pod(name, self._addresses[name]))

    async def start_container(self, name: str) -> None:
        """Start a pod's model server, of which the API hears nothing."""
        address = self._addresses[name]
        where = ("--host", address, "--port", str(self.pod_port), "--name", name)
        argv = (sys.executable, "-m", SERVER_NAMES, *where, *self.plan.server_flags)
        self.servers[name] = await spawn(f"server-{name}", argv, log_dir=self.directory)
        await self.servers[name].wait_ready_line(START_SECONDS * 10)

    def kill_container(self, name: str) -> None:
        """Kill a pod's model server; the pod says that it is ready all the same."""
        self.signal(self.servers.pop(name), signal.SIGKILL)

    def unready(self, name: str) -> None:
        """Have a pod that is on its way out: its requests go on, no more should come."""
        condition = {"type": "Ready", "status": "False"}
        self.api.patch("Pod", name, {"status": {"conditions": [condition]}})

    async def kill_pod(self, name: str) -> None:
        """Have a pod gone, and its model server with it."""
        self.api.delete("Pod", name)
        self.kill_container(name)

    async def second_picker(self, name: str) -> tuple[Process, str]:
        """Start another replica of the picker; give it, and its operators' URL."""
        ports = [quiet_port() for _ in range(3)]
        argv = [
            *(sys.executable, "-m", "epp", "serve", "--bind-address=127.0.0.1"),
            *self.source_flags(),
            *(f"--{flag}={port}" for flag, port in zip(_PORTS, ports, strict=True)),
            *("--secure-serving=false", f"--transport={TRANSPORT}", "--log-format=json"),
            *self.plan.picker_flags,
        ]
        process = await spawn(name, argv, log_dir=self.directory)
        self._stop.push_async_callback(process.stop, 0)
        return process, f"http://127.0.0.1:{ports[2]}"

    async def endpoints_become(self, count: int) -> None:
        """Wait until the picker knows so many endpoints, and they answer it."""
        await self.metric_becomes(count, READY_ENDPOINTS)

    async def answers(self, url: str, status: int) -> None:
        """Wait until a URL answers so."""

        async def asked() -> bool:
            try:
                async with self.client.get(url) as response:
                    return response.status == status
            except aiohttp.ClientConnectionError:
                return False

        await until(asked)


_PORTS = ("grpc-port", "grpc-health-port", "metrics-port")


def _pod(name: str, address: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"containers": [{"name": "vllm", "image": "vllm"}]},
        "status": {
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@contextlib.asynccontextmanager
async def kube_corridor(
    plan: Plan, directory: Path, kind: type[KubeCorridor] = KubeCorridor
) -> AsyncIterator[KubeCorridor]:
    """Start an API server without a pool, and a picker and a gateway; no picker is ready."""
    limit = aiohttp.ClientTimeout(total=DEADLINE * 2)
    async with (
        FakeKubernetes(crds=CRDS) as api,
        aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        made = kind(plan, directory, client, api)
        try:
            yield made
        finally:
            await made.stop()
