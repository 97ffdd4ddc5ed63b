"""What reports once a second cost a policy that compares load, in virtual time.

python -m bench freshness --trace PATH
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.accuracy import mooncake
from bench.figures import Budget, Figure, Report
from bench.hold.runs import POD
from bench.options import Options
from bench.progress import Progress
from epp.errors import ConfigError
from epp.replay.plan import Policy, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.sweep import Task, on_cores

SEEDS, QUICK_SEEDS = 3, 1
MINUTES = (20, 31)
COPIES = 1.4
WARM_UP_SECONDS = 120.0
PODS = (POD,) * 8
_WITHIN = Budget(most=1.02)
NOTES = (
    f"Mooncake's conversation trace, minutes {MINUTES[0]} to {MINUTES[1]}, {COPIES} copies.",
    f"{len(PODS)} simulated servers like an 8B model on an H100, each with 1.6M tokens of cache.",
    "Servers publish their load after each step, without what came during it, as vLLM does.",
    "`as_reported` compares the last report as it came. A run is a seed: times, conversations.",
)


def _every(seconds: float, policy: Policy, *, as_reported: bool = False) -> Policy:
    return replace(policy, scrape_seconds=seconds, as_reported=as_reported)


_LINEAR = replace(NAMED["linear"], flow=None)
"""`linear` without flow control: each request is sent as soon as it comes."""

VARIANTS: Mapping[str, tuple[str, Policy]] = {
    "linear_1s": ("linear, reports every 1 s", _every(1.0, _LINEAR)),
    "linear_50ms": ("linear, reports every 50 ms", _every(0.05, _LINEAR)),
    "as_reported_1s": (
        "linear by reports only, every 1 s",
        _every(1.0, _LINEAR, as_reported=True),
    ),
    "as_reported_50ms": (
        "linear by reports only, every 50 ms",
        _every(0.05, _LINEAR, as_reported=True),
    ),
    "least_ttft": ("least-ttft, reports every 1 s", _every(1.0, NAMED["least-ttft"])),
}
_RATIOS = {
    "ttft_ratio_1s_to_50ms": ("linear_1s", "linear_50ms"),
    "ttft_ratio_1s_to_50ms_as_reported": ("linear_1s", "as_reported_50ms"),
}


async def measure(progress: Progress, options: Options) -> Report:
    """Replay the trace with each variant. Raises `ConfigError` without the trace."""
    seeds = range(QUICK_SEEDS if options.quick else SEEDS)
    tasks = tasks_of(_trace_at(options.traces), seeds)
    progress.step(f"{len(VARIANTS)} policies, {len(seeds)} seeds")
    ended = await asyncio.to_thread(lambda: dict(on_cores(tasks)))
    played = [ended[number].figures["ttft_mean"] for number in range(len(tasks))]
    means = {name: tuple(played[place :: len(VARIANTS)]) for place, name in enumerate(VARIANTS)}
    return Report(name="freshness", figures=(*_times(means), *_ratios(means)), notes=NOTES)


def tasks_of(trace: Path, seeds: Sequence[int]) -> list[Task]:
    """Return the runs of each seed one after another, in the order of `VARIANTS`."""
    return [
        Task(
            traffic=Traffic(source=str(trace), minutes=MINUTES, copies=COPIES, seed=seed),
            plan=RunPlan(policy=policy, pods=PODS, seed=seed),
            cell=trace.name,
            workload=trace.name,
            load=COPIES,
            warm_up=WARM_UP_SECONDS,
        )
        for seed in seeds
        for _, policy in VARIANTS.values()
    ]


def _times(means: Mapping[str, tuple[float, ...]]) -> list[Figure]:
    return [
        Figure(key=f"ttft_s_{name}", says=f"mean TTFT, {says}", unit="s", runs=means[name])
        for name, (says, _) in VARIANTS.items()
    ]


def _ratios(means: Mapping[str, tuple[float, ...]]) -> list[Figure]:
    return [
        Figure(
            key=key,
            says=f"mean TTFT: {VARIANTS[one][0]} ÷ {VARIANTS[other][0]}",
            unit="",
            runs=tuple(a / b for a, b in zip(means[one], means[other], strict=True)),
            budget=_WITHIN,
        )
        for key, (one, other) in _RATIOS.items()
    ]


def _trace_at(place: Path | None) -> Path:
    if place is None:
        raise ConfigError(f"freshness replays a trace: --trace PATH of {mooncake.NAME}")
    return mooncake.file_at(place)
