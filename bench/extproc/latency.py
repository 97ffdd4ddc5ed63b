"""Time to the response's head that a picker adds over Envoy alone, open loop."""

import asyncio

from bench.extproc.cpu import SIZES
from bench.extproc.generator import Generator
from bench.extproc.load import Order, Result
from bench.extproc.samples import Effort, Samples
from bench.extproc.stack import MAIN, Route, Stack, rotated
from bench.extproc.workload import Shape
from epp.replay.results.measures import percentile

ROUTES: tuple[Route, ...] = (*MAIN, "none")
RATES = {"2k": 300.0, "220k": 60.0}
CONNECTIONS = 32
LARGE = Shape(size=20 << 20)
LARGE_RATE = 1.0


async def added(stack: Stack, effort: Effort, samples: Samples) -> None:
    """Median and 99th percentile, less those of Envoy alone in the same round."""
    for size in RATES:
        for turn in range(effort.slow_rounds):
            seen = {
                route: (await stack.load.run(_order(stack, route, size, effort, turn)))
                for route in rotated(ROUTES, turn)
            }
            for percent in (50, 99):
                _add(samples, f"added_p{percent}_ms_{size}", percent, seen)


async def added_beside_large(stack: Stack, effort: Effort, samples: Samples) -> None:
    """The 99th percentile of small requests while a 20 MB body arrives once a second."""
    async with Generator() as other:
        for turn in range(effort.slow_rounds):
            seen: dict[Route, Result] = {}
            for route in rotated(ROUTES, turn):
                large = Order(
                    port=stack.port[route],
                    shape=LARGE,
                    seconds=effort.open_s,
                    connections=2,
                    rate=LARGE_RATE,
                    steady=True,
                )
                small = _order(stack, route, "2k", effort, turn)
                _, seen[route] = await asyncio.gather(other.run(large), stack.load.run(small))
            _add(samples, "added_p99_ms_2k_beside_20mb", 99, seen)


def _order(stack: Stack, route: Route, size: str, effort: Effort, turn: int) -> Order:
    return Order(
        port=stack.port[route],
        shape=Shape(size=SIZES[size]),
        seconds=effort.open_s,
        connections=CONNECTIONS,
        rate=RATES[size],
        seed=turn,
    )


def _add(samples: Samples, key: str, percent: float, seen: dict[Route, Result]) -> None:
    alone = percentile(seen["none"].first_byte_ms, percent)
    for route in MAIN:
        samples.add(key, percentile(seen[route].first_byte_ms, percent) - alone, route)
