"""What a request, a chunk, a start and an idle second cost in instructions, beside time.

python -m bench exchange
python -m bench exchange --against main
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.child import MeasurementFailed
from bench.exchange import callgrind
from bench.exchange.parts import NAMES, REST, Cost
from bench.exchange.plan import CHUNKS, NUMBER, SIZES
from bench.exchange.runs import Stage
from bench.exchange.trees import ROOT, built, prepare
from bench.figures import Figure, Grid, Report, single
from bench.options import Options
from bench.progress import Progress
from epp.adapters.extproc.transports import native_fault

NOTES = (
    "Instructions by callgrind, of one thread, the same in each run. No system calls are in them.",
    "Bytes that Envoy sends go into the transport and replies come out; nine requests in flight.",
    "Ten endpoints, `epp serve` with its defaults. A stream has 24 chunks, each read alone.",
    "Polls of metrics pages and rounds of garbage collection are in the idle seconds alone.",
    "Allocations are calls of malloc, Python's and C's; objects are those that are collected.",
)
SHAPES = tuple(f"{kind}_{size}" for kind in CHUNKS for size in reversed(SIZES))
SAYS = {
    **{each: "a request, {} answer, {} body".format(*each.split("_")) for each in SHAPES},
    "chunk": "a chunk of a stream",
    "idle_10": "an idle second, 10 endpoints",
    "idle_100": "an idle second, 100 endpoints",
    "start": "the start, until it is ready",
}
_HERE = "here"


async def measure(progress: Progress, options: Options) -> Report:
    """Count once and time in turn. Raises `MeasurementFailed` if `fault` says why it cannot."""
    if why := fault():
        raise MeasurementFailed(f"nothing can be counted: {why}")
    trees = {_HERE: ROOT}
    if options.against is not None:
        progress.step(f"building {options.against}")
        trees[options.against] = built(options.against)
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        folder = Path(name)
        stage = Stage(folder, NUMBER)
        prepared = {
            key: prepare(tree, folder / f"tree-{number}")
            for number, (key, tree) in enumerate(trees.items())
        }
        times: dict[str, list[dict[str, float]]] = {key: [] for key in trees}
        progress.step("time, in turn")
        for _ in range(5 if options.quick else 15):
            for key, tree in prepared.items():
                times[key].append(await stage.times(tree))
        costs = {}
        for key, tree in prepared.items():
            progress.step(f"instructions, {key}")
            costs[key] = await stage.costs(tree)
    figures = [each for key in trees for each in _figures(key, costs[key], times[key])]
    return Report(
        name="exchange", figures=tuple(figures), notes=NOTES, grids=tuple(_grids(list(trees)))
    )


def fault() -> str:
    """Return why this tree cannot be played and counted; empty if it can."""
    return callgrind.fault() or native_fault()


def _figures(
    tree: str, costs: Mapping[str, Cost], times: list[dict[str, float]]
) -> Iterator[Figure]:
    for name, says in SAYS.items():
        cost = costs[name]
        yield single(_key(tree, name, "instructions"), says, "", cost.instructions)
        yield single(_key(tree, name, "allocations"), says, "", cost.allocations)
        yield single(_key(tree, name, "objects"), says, "", cost.objects)
        runs = tuple(each.get(name, 0.0) * 1e6 for each in times)
        if any(runs):
            yield Figure(key=_key(tree, name, "us"), says=says, unit="µs", runs=runs)
        for part, spent in cost.parts.items() if name in SHAPES else ():
            yield single(_key(tree, name, part), f"{says}: {part}", "", spent)


def _key(tree: str, name: str, what: str) -> str:
    return f"{name} {what}" if tree == _HERE else f"{name} {what} {tree}"


def _grids(trees: list[str]) -> Iterator[Grid]:
    for tree in trees:
        beside = "" if tree == _HERE else f", {tree}"
        columns = ("instructions", "allocations", "objects", "us")
        rows = [
            (says, tuple(_key(tree, name, column) for column in columns))
            for name, says in SAYS.items()
        ]
        yield Grid(
            f"what one costs{beside}",
            ("instructions", "allocations", "objects", "CPU time"),
            tuple(rows),
        )
        parts = [
            (part, tuple(_key(tree, name, part) for name in SHAPES)) for part in (*NAMES, REST)
        ]
        yield Grid(
            f"instructions by part{beside}",
            tuple(each.replace("_", " ") for each in SHAPES),
            tuple(parts),
        )
