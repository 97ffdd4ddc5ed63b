"""Everything that runs during the measurement: backends, both pickers, an Envoy for each route."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeVar, get_args

from msgspec.structs import replace

from bench.accounting import Meter
from bench.envoy import EnvoySettings, start_envoy
from bench.extproc.generator import Generator
from bench.extproc.pickers import Floor, Product, endpoints_file
from epp.adapters.extproc.transports import Transport, native_fault
from epp.gateway.processes import Process, spawn

Route = Literal["native", "native_floor", "grpcio", "grpcio_floor", "none"]
"""The product on either transport, what is beneath it, and Envoy alone."""

READY_S = 10.0
T = TypeVar("T")


def transport_of(route: Route) -> Transport:
    """The transport of a route with a picker."""
    return "native" if route.startswith("native") else "grpcio"


def is_floor(route: Route) -> bool:
    """Whether a route's picker is the floor."""
    return route.endswith("_floor")


TRANSPORT: Transport = "grpcio" if native_fault() else "native"
"""The one that figures without a transport in their name are taken on."""

MAIN: tuple[Route, ...] = tuple(route for route in get_args(Route) if route.startswith(TRANSPORT))
PICKERS: tuple[Route, ...] = tuple(
    route for route in get_args(Route) if route.startswith((TRANSPORT, "grpcio"))
)
ROUTES: tuple[Route, ...] = (*PICKERS, "none")


class Stack:
    """What a measurement needs: a port per route, a meter per picker, a load generator."""

    def __init__(self, load: Generator) -> None:
        self.load = load
        self.port: dict[Route, int] = {}
        self.meter: dict[Route, Meter] = {}

    @property
    def pickers(self) -> Sequence[Route]:
        """The routes that have a picker."""
        return tuple(self.meter)


def rotated(each: Sequence[T], turn: int) -> Sequence[T]:
    """All in an order that rotates from round to round, so that none is always first."""
    start = turn % len(each)
    return [*each[start:], *each[:start]]


async def start_backends(count: int, log_dir: Path) -> tuple[Process, list[int]]:
    """Start canned model servers; their process and ports."""
    argv = (sys.executable, "-m", "bench.extproc.backends", "--count", str(count))
    process = await spawn(f"backends-{count}", argv, log_dir=log_dir)
    return process, list((await process.wait_ready_line(READY_S))["ports"])


def before(ports: Sequence[int], epp_port: int) -> EnvoySettings:
    """Return the settings of an Envoy before model servers at these ports, beside a picker."""
    endpoints = tuple(f"127.0.0.1:{port}" for port in ports)
    return EnvoySettings(endpoints=endpoints, epp_port=epp_port)


@asynccontextmanager
async def envoy(name: str, log_dir: Path, settings: EnvoySettings) -> AsyncIterator[int]:
    """Start an Envoy; the port at which it listens."""
    process = await start_envoy(settings, log_dir=log_dir, name=f"envoy-{name}")
    try:
        yield settings.listen_port
    finally:
        await process.stop()


@asynccontextmanager
async def running(
    log_dir: Path, pods: int, routes: Sequence[Route] = ROUTES
) -> AsyncIterator[Stack]:
    """Start it all, with this many endpoints; everything is stopped on the way out."""
    async with AsyncExitStack() as exits:
        backends, ports = await start_backends(pods, log_dir)
        exits.push_async_callback(backends.stop)
        stack = Stack(await exits.enter_async_context(Generator()))
        endpoints = endpoints_file(ports, log_dir / "endpoints.yaml")
        pickers: dict[Route, Product | Floor] = {
            route: Floor(ports[0], transport_of(route))
            if is_floor(route)
            else Product(endpoints, transport_of(route))
            for route in routes
            if route != "none"
        }
        for route, picker in pickers.items():
            process = await picker.start(log_dir, route)
            exits.push_async_callback(process.stop)
            stack.meter[route] = Meter(pid=process.pid)
        grpc_ports = {route: picker.grpc_port for route, picker in pickers.items()}
        for route in routes:
            settings = before(ports, grpc_ports.get(route, 0))
            if route == "none":
                settings = replace(settings, routing="round_robin")
            stack.port[route] = await exits.enter_async_context(envoy(route, log_dir, settings))
        yield stack
