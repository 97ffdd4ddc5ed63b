"""What it is worth that requests wait in the picker, in virtual time, and what it costs.

python -m bench hold [--trace PATH]
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bench.child import printed
from bench.figures import Budget, Figure, Report
from bench.hold import beside, fleets, loads, picture, waiting
from bench.hold.beside import BATCH, FLOODED, GOOD, INTERACTIVE, WITH_BATCH, WITHOUT_BATCH
from bench.hold.loads import AT_ONCE, COMPARED, HOLDING, OTHER
from bench.hold.runs import Case, Got, Result, on_cores
from bench.options import Options
from bench.progress import Progress

SEEDS, QUICK_SEEDS = 3, 1
NOTES = (
    f"{loads.PODS} simulated servers like an 8B model on an H100, each with 1.6M tokens of cache.",
    f"{loads.SECONDS / 60:.0f} minutes of requests; those of the first two are not counted.",
    "100 % is what servers serve in order of arrival while more comes (`bench.hold.loads`).",
    f"60 and 95 % are compared with {AT_ONCE}, 120 % with {OTHER}. A run is a seed.",
    f"A flood is {beside.TIMES} times the client beside it, both 1.3 times what servers serve.",
    "Batches: 1,000 requests at once, three times, beside 15 interactive ones a second;",
    "all of them 512 tokens in and 128 out, on two servers of gpt-oss-120b.",
    "Long answers: inference-perf's reasoning, on two servers with 416,000 tokens of cache each.",
    "CPU and memory are those of 2 KB chats that wait for ten endpoints.",
)
_WITHIN = Budget(most=1.02)
FIGURES: Mapping[str, tuple[str, str, Budget | None]] = {
    **{
        f"ttft_ratio_{load}": (f"mean TTFT at {load} % ÷ {AT_ONCE}", "", _WITHIN)
        for load in (60, 95)
    },
    "ttft_ratio_120": (f"mean TTFT at 120 % ÷ {OTHER}", "", Budget(most=0.25)),
    "e2e_ratio_120": (f"mean end to end at 120 % ÷ {OTHER}", "", Budget(most=0.5)),
    "p99_ratio_120": (f"TTFT p99 at 120 % ÷ {OTHER}", "", Budget(most=1)),
    "hit_ratio_120": (f"share of prompt tokens cached at 120 % ÷ {OTHER}", "", Budget(least=1.05)),
    "refused_120": ("requests refused at 120 %", "", Budget(most=0)),
    **fleets.FIGURES,
    "tenant_ratio": ("a client's mean TTFT beside a flood ÷ alone", "", Budget(most=1.3)),
    "batch_p95_ratio": ("interactive TTFT p95 beside batches ÷ alone", "", Budget(most=1.3)),
    "batch_done": ("share of the batches that was completed", "", Budget(least=1)),
    "us_per_release_10k": ("CPU to release a request, 10,000 waiting", "µs", Budget(most=50)),
    "us_per_look_10k": ("CPU to look for room when there is none", "µs", None),
    "bytes_per_waiting": ("memory of a waiting request, with its quote", "B", Budget(most=2048)),
    "bytes_per_waiting_exchange": ("the same with its exchange, without its body", "B", None),
}


async def measure(progress: Progress, options: Options) -> Report:
    """Play all runs of each seed. Raises `ConfigError` if the trace cannot be read."""
    runs: defaultdict[str, list[float]] = defaultdict(list)
    seeds = range(QUICK_SEEDS if options.quick else SEEDS)
    progress.step(f"{waiting.WAITING:,} requests wait")
    cost = await printed(waiting.__name__, waiting.Cost)
    runs["us_per_release_10k"].append(cost.us_per_release)
    runs["us_per_look_10k"].append(cost.us_per_look)
    runs["bytes_per_waiting"].append(cost.bytes_per_waiting)
    runs["bytes_per_waiting_exchange"].append(cost.bytes_per_exchange)
    cases = [(name, case) for seed in seeds for name, case in _cases(options.traces, seed)]
    progress.step(
        f"{len(cases)} runs: three loads, other fleets, a flood, batches; {len(seeds)} seeds"
    )
    found = await asyncio.to_thread(lambda: list(on_cores([case for _, case in cases])))
    a_seed = len(cases) // len(seeds)
    drawn: dict[str, Result] = {}
    for first in range(0, len(cases), a_seed):
        part = slice(first, first + a_seed)
        names = [name for name, _ in cases[part]]
        drawn = dict(zip(names, found[part], strict=True))
        for key, value in (*_of_loads(drawn), *fleets.figures(drawn), *_of_clients(drawn)):
            runs[key].append(value)
    figures = tuple(
        Figure(key=key, says=says, unit=unit, runs=tuple(runs[key]), budget=budget)
        for key, (says, unit, budget) in FIGURES.items()
    )
    return Report(name="hold", figures=figures, notes=NOTES, picture=picture.draw(drawn))


def _cases(trace: Path | None, seed: int) -> Iterator[tuple[str, Case]]:
    for (load, policy), case in loads.cases(trace, seed):
        yield f"{policy} {load}", case
    yield from fleets.cases(seed)
    yield from beside.cases(seed)


def _of_loads(results: Mapping[str, Result]) -> Iterable[tuple[str, float]]:
    pairs = {
        load: [_only(results[f"{policy} {load}"]) for policy in (HOLDING, other)]
        for load, other in COMPARED.items()
    }
    for load, (ours, other) in pairs.items():
        yield f"ttft_ratio_{load}", ours.ttft / other.ttft
    ours, other = pairs[120]
    yield "e2e_ratio_120", ours.end_to_end / other.end_to_end
    yield "p99_ratio_120", ours.ttft_percentile(99) / other.ttft_percentile(99)
    yield "hit_ratio_120", ours.cached / other.cached
    yield "refused_120", ours.refused + ours.unfinished


def _of_clients(results: Mapping[str, Result]) -> Iterable[tuple[str, float]]:
    flooded, alone = (results[name][GOOD] for name in (FLOODED, beside.ALONE))
    yield "tenant_ratio", flooded.ttft / alone.ttft
    busy, quiet = (results[name][INTERACTIVE] for name in (WITH_BATCH, WITHOUT_BATCH))
    yield "batch_p95_ratio", busy.ttft_percentile(95) / quiet.ttft_percentile(95)
    batch = results[WITH_BATCH][BATCH]
    yield "batch_done", 1 - (batch.refused + batch.unfinished) / batch.requests


def _only(result: Result) -> Got:
    (got,) = result.values()
    return got
