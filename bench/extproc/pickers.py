"""The two pickers under measurement: the product as an operator starts it, and the floor."""

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from epp.adapters.extproc.transports import Transport
from epp.gateway.processes import Process, free_port, spawn

READY_S = 30.0


def endpoints_file(ports: Sequence[int], path: Path) -> Path:
    """Write a file of endpoints on the loopback address."""
    endpoints = [
        {"name": f"pod-{number}", "namespace": "bench", "address": "127.0.0.1", "port": port}
        for number, port in enumerate(ports)
    ]
    path.write_text(yaml.safe_dump({"endpoints": endpoints}), encoding="utf-8")
    return path


class Product:
    """`epp serve` with its defaults except `flags`, over plaintext: default policy, scraping."""

    def __init__(self, endpoints: Path, transport: Transport, *flags: str) -> None:
        self.grpc_port, self.health_port = free_port(), free_port()
        self._metrics_port = free_port()
        self.ready_url = f"http://127.0.0.1:{self._metrics_port}/readyz"
        self.metrics_url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        self.argv = (
            *(sys.executable, "-m", "epp", "serve"),
            *("--endpoints-file", str(endpoints)),
            *("--bind-address", "127.0.0.1"),
            *("--grpc-port", str(self.grpc_port)),
            *("--grpc-health-port", str(self.health_port)),
            *("--metrics-port", str(self._metrics_port)),
            "--secure-serving=false",
            f"--transport={transport}",
            *flags,
        )

    async def start(self, log_dir: Path, name: str) -> Process:
        """Start it and wait until it calls itself ready."""
        process = await spawn(name, self.argv, log_dir=log_dir)
        await process.wait_http(self.ready_url, READY_S)
        return process


class Floor:
    """The product's transport and codec around a handler that only parses the body."""

    def __init__(self, port: int, transport: Transport) -> None:
        self.grpc_port = free_port()
        self.argv = (
            *(sys.executable, "-m", "bench.floor"),
            *("--port", str(self.grpc_port)),
            *("--target", f"127.0.0.1:{port}"),
            *("--transport", transport),
        )

    async def start(self, log_dir: Path, name: str) -> Process:
        """Start it and wait until it listens."""
        process = await spawn(name, self.argv, log_dir=log_dir)
        await process.wait_ready_line(READY_S)
        return process
