"""A million requests through Envoy, and what the picker's memory does meanwhile.

python -m bench soak
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression

from bench.accounting import resident_mb
from bench.chart import GOOD, OTHER, drawing, png
from bench.extproc.cpu import CONNECTIONS, SIZES
from bench.extproc.load import Order
from bench.extproc.stack import MAIN, Stack, running
from bench.extproc.workload import Shape
from bench.figures import Budget, Report, single
from bench.options import Options
from bench.progress import Progress

REQUESTS, QUICK_REQUESTS = 1_000_000, 60_000
_SLICES = 50
SETTLED = 0.4
"""By this share of a run everything that is bounded is full: caches, known lengths, generated."""
_LONGEST_S = 600.0
_PODS = 10
NOTES = (
    "2 KB chats with JSON responses through Envoy, 16 connections, closed loop, ten endpoints.",
    f"Growth is that of a straight line from {SETTLED:.0%} of the run to its end.",
    "A quick run ends before caches are full: its memory still grows.",
)

Sample = tuple[float, float]
"""Requests answered so far, or seconds, and resident memory in MB."""


async def measure(progress: Progress, options: Options) -> Report:
    """Send them. Raises `MeasurementFailed` if one was not answered with 200."""
    count = QUICK_REQUESTS if options.quick else REQUESTS
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        async with running(Path(name), _PODS) as stack:
            samples, seconds = await _soak(stack, count, progress)
    settled = [sample for sample in samples if sample[0] >= count * SETTLED]
    budget = None if options.quick else Budget(most=2)
    return Report(
        name="soak",
        figures=(
            single("requests", "requests answered, all with 200", "", count),
            single("rps", "requests a second over the whole run", "/s", count / seconds),
            single("rss_mb_settled", "memory once caches are full", "MB", settled[0][1]),
            single("rss_mb_end", "memory at the end", "MB", samples[-1][1]),
            single("growth_mb", "growth from there to the end", "MB", growth(settled), budget),
        ),
        notes=NOTES,
        picture=draw([samples], settled[0][0], "requests answered"),
    )


async def _soak(stack: Stack, count: int, progress: Progress) -> tuple[list[Sample], float]:
    route = MAIN[0]
    samples: list[Sample] = [(0, resident_mb(stack.meter[route].pid))]
    seconds = 0.0
    for part in range(1, _SLICES + 1):
        done = int(samples[-1][0])
        order = Order(
            port=stack.port[route],
            shape=Shape(size=SIZES["2k"]),
            seconds=_LONGEST_S,
            connections=CONNECTIONS,
            limit=count * part // _SLICES - done,
        )
        result = await stack.load.run(order)
        seconds += result.seconds
        samples.append((done + result.requests, resident_mb(stack.meter[route].pid)))
        progress.step(f"{samples[-1][0]:,} of {count:,} requests, {samples[-1][1]:.0f} MB")
    return samples, seconds


def growth(samples: Sequence[Sample]) -> float:
    """Return how far the straight line nearest to samples rises from first to last, in MB."""
    passed, memory = [each[0] for each in samples], [each[1] for each in samples]
    return linear_regression(passed, memory).slope * (passed[-1] - passed[0])


def draw(processes: Sequence[Sequence[Sample]], settled: float, over: str) -> bytes:
    """Draw the memory of each process over what has passed, and when everything was full."""
    with drawing(7.2, 2.8) as figure:
        axes = figure.subplots()
        for samples in processes:
            axes.plot(*zip(*samples, strict=True), color=GOOD, marker=".", markersize=3)
        axes.axvline(settled, color=OTHER, linewidth=1, linestyle="--")
        axes.set(xlabel=over, ylabel="resident memory, MB", ylim=(0, None))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        return png(figure)
