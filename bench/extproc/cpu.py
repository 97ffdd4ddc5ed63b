"""CPU per request and per streamed chunk, from the operating system's accounting."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from bench.accounting import Meter
from bench.extproc.load import Order, Result
from bench.extproc.samples import Effort, Samples
from bench.extproc.stack import (
    MAIN,
    PICKERS,
    Route,
    Stack,
    is_floor,
    rotated,
    running,
    transport_of,
)
from bench.extproc.workload import Shape

SIZES = {"2k": 2 << 10, "20k": 20 << 10, "220k": 220 << 10, "400k": 400 << 10}
CONNECTIONS = 16
WARM_UP_S = 1.0

STREAMS = 128
STREAM_RATE = 100.0
CHUNKS = 100
INTERVAL_MS = 10.0
ALONE_RATE = 300.0
"""Requests a second of the open loop, at which every one of them finds cold caches."""


async def cpu_us(stack: Stack, route: Route, order: Order) -> tuple[float, Result]:
    """Return the CPU of one request in microseconds, and what came back of all."""
    meter = stack.meter[route]
    meter.start()
    result = await stack.load.run(order)
    return meter.stop() / result.requests * 1e6, result


async def per_request(stack: Stack, effort: Effort, samples: Samples) -> None:
    """CPU per request at each size, and how many requests a second are served."""
    async for route, size, cost, result in _closed(stack, effort):
        samples.add(f"cpu_us_{size}_{transport_of(route)}", cost, route)
        if route in MAIN:
            samples.add(f"rps_{size}", result.requests / result.seconds, route)


async def among(stack: Stack, pods: int, effort: Effort, samples: Samples) -> None:
    """CPU per request at each size in a stack with another number of endpoints."""
    async for route, size, cost, _ in _closed(stack, effort):
        samples.add(f"cpu_us_{size}_among_{pods}", cost, route)


async def _closed(stack: Stack, effort: Effort) -> AsyncIterator[tuple[Route, str, float, Result]]:
    """Closed loop: each size on each route in turn, a round to warm up left out."""
    for size, length in SIZES.items():
        for turn in range(-1, effort.rounds):
            for route in rotated(stack.pickers, turn):
                order = Order(
                    port=stack.port[route],
                    shape=Shape(size=length),
                    seconds=effort.closed_s if turn >= 0 else WARM_UP_S,
                    connections=CONNECTIONS,
                )
                cost, result = await cpu_us(stack, route, order)
                if turn >= 0:
                    yield route, size, cost, result


async def per_chunk(stack: Stack, effort: Effort, samples: Samples) -> None:
    """Open loop of token streams: the slope of CPU per request over chunks per response.

    The same requests at the same moments, once with long responses, once with one chunk each;
    the difference in CPU per request over the difference in chunks is the cost of a chunk.
    """
    for turn in range(effort.slow_rounds):
        for route in rotated(PICKERS, turn):
            long, short = [
                (await cpu_us(stack, route, _stream_order(stack, route, effort, chunks)))[0]
                for chunks in (CHUNKS, 1)
            ]
            samples.add(f"cpu_us_chunk_{transport_of(route)}", (long - short) / (CHUNKS - 1), route)


def _stream_order(stack: Stack, route: Route, effort: Effort, chunks: int) -> Order:
    return Order(
        port=stack.port[route],
        shape=Shape(size=SIZES["2k"], chunks=chunks, interval_ms=INTERVAL_MS),
        seconds=effort.stream_s,
        connections=STREAMS,
        rate=STREAM_RATE,
    )


async def alone(pods: int, effort: Effort, log_dir: Path, samples: Samples) -> None:
    """CPU per request with one stack at a time, which has the processor's caches to itself.

    A stack with one picker is started, measured and stopped, then one with the other, and so on.
    """
    for turn in range(effort.rounds):
        for route in rotated(MAIN, turn):
            (place := log_dir / f"alone-{turn}-{route}").mkdir()
            async with running(place, pods, (route,)) as stack:
                _take_off_idling(stack.meter[route], pods, route, samples)
                for name, order in _alone_orders(stack.port[route], effort):
                    await stack.load.run(replace(order, seconds=WARM_UP_S))
                    cost, _ = await cpu_us(stack, route, order)
                    samples.add(f"cpu_us_{name}_alone", cost, route)


def _alone_orders(port: int, effort: Effort) -> Iterator[tuple[str, Order]]:
    closed = Order(port=port, shape=Shape(size=0), seconds=effort.closed_s, connections=CONNECTIONS)
    for size in ("2k", "20k", "220k"):
        yield size, replace(closed, shape=Shape(size=SIZES[size]))
    yield (
        "300",
        replace(closed, shape=Shape(size=SIZES["2k"]), rate=ALONE_RATE, seconds=effort.open_s),
    )


def _take_off_idling(meter: Meter, pods: int, route: Route, samples: Samples) -> None:
    """Have idling taken off as it was measured before; the floor polls nobody."""
    idle = samples.runs.get(f"idle_cores_{pods}_pods")
    meter.idle_cores = median(idle) if idle and not is_floor(route) else 0.0
