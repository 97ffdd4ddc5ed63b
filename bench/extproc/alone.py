"""CPU per request with one stack at a time, which has the processor's caches to itself."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from bench.accounting import Meter
from bench.extproc.cpu import CONNECTIONS, SIZES, WARM_UP_S, cpu_us
from bench.extproc.effort import Effort
from bench.extproc.load import Order
from bench.extproc.samples import Samples
from bench.extproc.stack import MAIN, Route, is_floor, rotated, running
from bench.extproc.workload import Shape

RATE = 300.0
"""Requests a second of the open loop, at which every one of them finds cold caches."""


async def alone(pods: int, effort: Effort, log_dir: Path, samples: Samples) -> None:
    """Start a stack with one picker, measure, stop it; then one with the other, and so on."""
    for turn in range(effort.rounds):
        for route in rotated(MAIN, turn):
            (place := log_dir / f"alone-{turn}-{route}").mkdir()
            async with running(place, pods, (route,)) as stack:
                _take_off_idling(stack.meter[route], pods, route, samples)
                for name, order in _orders(stack.port[route], effort):
                    await stack.load.run(replace(order, seconds=WARM_UP_S))
                    cost, _ = await cpu_us(stack, route, order)
                    samples.add(f"cpu_us_{name}_alone", cost, route)


def _orders(port: int, effort: Effort) -> Iterator[tuple[str, Order]]:
    closed = Order(port=port, shape=Shape(size=0), seconds=effort.closed_s, connections=CONNECTIONS)
    for size in ("2k", "20k", "220k"):
        yield size, replace(closed, shape=Shape(size=SIZES[size]))
    yield "300", replace(closed, shape=Shape(size=SIZES["2k"]), rate=RATE, seconds=effort.open_s)


def _take_off_idling(meter: Meter, pods: int, route: Route, samples: Samples) -> None:
    """Have idling taken off as it was measured before; the floor polls nobody."""
    idle = samples.runs.get(f"idle_cores_{pods}_pods")
    meter.idle_cores = median(idle) if idle and not is_floor(route) else 0.0
