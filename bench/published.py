"""What issues and documents of llm-d-router say it costs, on the same work with this picker.

python -m bench published [--only ROW]
"""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean

from bench.accounting import Meter, idle_cores
from bench.child import MeasurementFailed
from bench.extproc.cpu import SIZES
from bench.extproc.load import Order
from bench.extproc.stack import TRANSPORT, Route, Stack, running
from bench.extproc.workload import Shape
from bench.figures import Figure, Grid, Report, single
from bench.options import Options
from bench.progress import Progress

ROUTE: Route = TRANSPORT
PODS, MANY = 10, 100
CLIENTS = {20: 154.0, 60: 426.0, 100: 724.0, 150: 1_096.0, 200: 1_453.0}
"""llm-d-router's issue 1109: mean ms to a response's head, 220 KB prompts, by clients at once."""
PLATEAU = 130.0
"""llm-d-router's issue 1109: requests a second, however many clients there are."""
IDLE_CORES = 7.5
"""llm-d-router's docs/operations.md: of a picker that nobody asks, with 100 endpoints."""
LONG_RATE, LONG_CORES, LONG_CHUNKS = 5.0, 3.82, 1_000
"""llm-d-router's docs/operations.md: prompts of 100,000 tokens, answers of 1,000, five a second."""
STREAMS, MAX_STREAMS = 1_500, 1_024
"""Envoy AI Gateway #1884: streamed requests at once, and how many of them are served."""
NOTES = (
    "Published figures are from other machines; only the work is the same.",
    (
        "Warmpick shares its machine with Envoy, the load and the model servers, which take part"
        " of the time. Model servers answer at once."
    ),
    "Cores are the picker's. 100,000 tokens are 400 KB; an answer's chunks are 10 ms apart.",
)

Seen = dict[str, list[float]]
"""Figures by key, one for each round."""


async def _large_prompts(seen: Seen, *, quick: bool) -> None:
    """220 KB prompts from more and more clients at once."""
    async with _stack(PODS) as stack:
        for clients in CLIENTS:
            order = Order(
                port=stack.port[ROUTE],
                shape=Shape(size=SIZES["220k"]),
                seconds=3.0 if quick else 8.0,
                connections=clients,
            )
            result = await stack.load.run(order)
            _all_served(result.statuses)
            seen.setdefault(f"ms_{clients}", []).append(fmean(result.first_byte_ms))
            seen.setdefault(f"rps_{clients}", []).append(result.requests / result.seconds)


async def _idle(seen: Seen, *, quick: bool) -> None:
    """Nobody asks anything of 100 endpoints."""
    async with _stack(MANY) as stack:
        cores = await idle_cores(stack.meter[ROUTE].pid, 4.0 if quick else 10.0)
        seen.setdefault("idle", []).append(cores)


async def _long_prompts(seen: Seen, *, quick: bool) -> None:
    """Prompts of 100,000 tokens and answers of 1,000, five a second."""
    async with _stack(MANY) as stack:
        meter = Meter(pid=stack.meter[ROUTE].pid)
        order = Order(
            port=stack.port[ROUTE],
            shape=Shape(size=SIZES["400k"], chunks=LONG_CHUNKS, interval_ms=10.0),
            seconds=5.0 if quick else 20.0,
            connections=64,
            rate=LONG_RATE,
            steady=True,
        )
        meter.start()
        result = await stack.load.run(order)
        # Those that began last end alone; what all took is what so many a second take.
        seen.setdefault("long", []).append(meter.stop() / result.requests * LONG_RATE)
        _all_served(result.statuses)


async def _streams(seen: Seen, *, quick: bool) -> None:
    """More streamed requests at once than some gateways take."""
    async with _stack(PODS) as stack:
        order = Order(
            port=stack.port[ROUTE],
            shape=Shape(size=SIZES["2k"], chunks=20, interval_ms=100.0 if quick else 250.0),
            seconds=60.0,
            connections=STREAMS,
            limit=STREAMS,
        )
        result = await stack.load.run(order)
        seen.setdefault("streams", []).append(result.statuses.get(200, 0))
        seen.setdefault("at_once", []).append(result.peak)


ROWS: dict[str, Callable[..., Awaitable[None]]] = {
    "large-prompts": _large_prompts,
    "idle": _idle,
    "long-prompts": _long_prompts,
    "streams": _streams,
}
_SAYS = (
    *(
        (f"ms_{n}", f"220 KB prompts, {n} clients: mean time to the response headers, ms", each)
        for n, each in CLIENTS.items()
    ),
    ("rps_200", "220 KB prompts, 200 clients: requests a second", PLATEAU),
    ("idle", "cores of a picker without requests, 100 endpoints", IDLE_CORES),
    ("long", "cores at 5 prompts of 100,000 tokens a second, answers of 1,000", LONG_CORES),
    ("streams", f"requests served of {STREAMS:,} streamed at once", MAX_STREAMS),
)


@asynccontextmanager
async def _stack(pods: int) -> AsyncIterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        async with running(Path(name), pods, (ROUTE,)) as stack:
            yield stack


def _all_served(statuses: dict[int, int]) -> None:
    """Raise `MeasurementFailed` if some request was not answered by a model server."""
    if set(statuses) != {200}:
        raise MeasurementFailed(f"not all requests were served: {statuses}")


async def measure(progress: Progress, options: Options) -> Report:
    """Measure each row, or `only` some. Raises `MeasurementFailed` for one that there is not."""
    if unknown := ", ".join(sorted(set(options.only) - set(ROWS))):
        raise MeasurementFailed(f"no row is {unknown}; there are {', '.join(ROWS)}")
    seen: Seen = {}
    for row in options.only or ROWS:
        for _ in range(1 if options.quick else 3):
            progress.step(row)
            await ROWS[row](seen, quick=options.quick)
    rows = [(key, says, published) for key, says, published in _SAYS if key in seen]
    figures = [
        each
        for key, says, published in rows
        for each in (
            single(f"{key}_published", says, "", published),
            Figure(key=key, says=says, unit="", runs=tuple(seen[key])),
        )
    ]
    grid = Grid(
        title="work",
        columns=("published by others", "Warmpick"),
        rows=tuple((says, (f"{key}_published", key)) for key, says, _ in rows),
    )
    return Report(name="published", figures=tuple(figures), grids=(grid,), notes=NOTES)
