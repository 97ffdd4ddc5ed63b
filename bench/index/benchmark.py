"""Measures what is compiled and its source in turn, each in a process of its own.

python -m bench index
"""

from collections.abc import Mapping, Sequence
from statistics import median

from bench.child import printed
from bench.figures import Budget, Figure, Grid, Report
from bench.index import memory, picture, speed
from bench.options import Options
from bench.progress import Progress
from epp import compiled

MODULES = (
    "epp.model.caches.block_pool.pool",
    "epp.model.prefix_index.index",
    "epp.model.prompts.hashing",
)
_ROUNDS, _QUICK_ROUNDS = 7, 3
_SOURCE = "_python"
_SIDES = {"": "on", _SOURCE: "off"}

_SPEEDS: tuple[tuple[str, str, str, Budget | None], ...] = (
    *(
        (f"hash_us_{size}kb", f"cut and hash {size} KB of text, 20 messages", "µs", budget)
        for size, budget in zip(speed.SIZES_KB, (None, None, None, Budget(most=100)), strict=True)
    ),
    (
        "matches_per_s",
        "matches of 512 blocks, 32 endpoints of 10,240",
        "/s",
        Budget(least=100_000),
    ),
    ("walks_per_s", "the same, if caches may have gaps", "/s", None),
    *(
        (f"matches_per_s_{count}", f"matches of 512 blocks, {count} endpoints", "/s", None)
        for count in speed.FLEETS
    ),
    (
        "blocks_applied_per_s",
        "blocks added to or removed from a full index",
        "/s",
        Budget(least=4_000_000),
    ),
    ("blocks_served_per_s", "blocks of prompts through full pools and the index", "/s", None),
)
_BYTES = ("bytes_per_block", "memory of pool and index, per held block", "B", Budget(most=48))
_MEMORY: tuple[tuple[str, str, str, Budget | None], ...] = (
    ("rss_mb_100x35k", "memory of a process with 100 x 35,000 held blocks", "MB", Budget(most=400)),
    ("stall_ms", "slowest prompt of 500 blocks while filling it", "ms", None),
)
NOTES = (
    "Python: the same work with WARMPICK_NATIVE=off. Both in turn, each in a process of its own.",
    "CPU time of one thread. 1 KB is 1,000 bytes; a match asks all endpoints at once.",
    "Memory: growth of resident memory; no block is held twice, which is the worst case.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure everything; what is compiled only where it was built."""
    missing = {name: why for name in MODULES if (why := compiled.fault(name))}
    sides = [_SOURCE] if len(missing) == len(MODULES) else list(_SIDES)
    runs: dict[str, list[float]] = {}
    rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    for turn in range(rounds):
        for side in sides:
            progress.step(f"round {turn + 1} of {rounds}{side.replace('_', ', ')}")
            native = _SIDES[side]
            found = await printed(speed.__name__, dict[str, float], WARMPICK_NATIVE=native)
            for key, value in found.items():
                runs.setdefault(key + side, []).append(value)
    curves = {}
    for side in sides:
        progress.step(f"100 endpoints with 35,000 blocks each{side.replace('_', ', ')}")
        filled = await printed(memory.__name__, memory.Filled, WARMPICK_NATIVE=_SIDES[side])
        curves[side] = filled.curve
        runs[f"bytes_per_block{side}"] = [filled.bytes_per_block]
        runs[f"rss_mb_100x35k{side}"] = [filled.rss_mb]
        runs[f"stall_ms{side}"] = [filled.stall_ms]
    return report(runs, curves, [f"Not compiled: {each}: {missing[each]}." for each in missing])


def report(
    runs: Mapping[str, Sequence[float]],
    curves: Mapping[str, picture.Curve],
    remarks: Sequence[str],
) -> Report:
    """Tell what was measured, by key."""
    return Report(
        name="index",
        figures=_figures(runs),
        notes=(*NOTES, *remarks),
        grids=(_grid(),),
        picture=picture.draw({key: median(values) for key, values in runs.items()}, curves),
    )


def _figures(runs: Mapping[str, Sequence[float]]) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            key=key + side,
            says=says + (", Python" if side else ""),
            unit=unit,
            runs=tuple(runs[key + side]),
            budget=None if side else budget,
        )
        for key, says, unit, budget in (*_SPEEDS, _BYTES, *_MEMORY)
        for side in _SIDES
        if key + side in runs
    )


def _grid() -> Grid:
    rows = tuple((says, (key, key + _SOURCE)) for key, says, _, _ in (*_SPEEDS, _BYTES))
    return Grid("what", ("compiled", "Python"), rows)
