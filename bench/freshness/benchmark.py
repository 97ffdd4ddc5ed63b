"""What reports once a second cost a policy that compares load, in virtual time.

python -m bench freshness --trace PATH
"""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bench.accuracy import mooncake
from bench.figures import Budget, Figure, Report
from bench.freshness.replay import PODS, TimedReplay
from bench.freshness.traffic import COPIES, MINUTES, read, traffic
from bench.options import Options
from bench.progress import Progress
from epp.config.file import POLICIES, load
from epp.errors import ConfigError
from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest
from epp.policy.plugins import Scorer
from epp.policy.profile import Profile, Scheduling, WeightedScorer

SEEDS, QUICK_SEEDS = 3, 1
_WITHIN = Budget(most=1.02)
NOTES = (
    f"Mooncake's conversation trace, minutes {MINUTES[0]} to {MINUTES[1]}, {COPIES} copies.",
    f"{PODS} simulated servers like an 8B model on an H100, each with 1.6M tokens of cache.",
    "Servers publish their load after each step, without what came during it, as vLLM does.",
    "`as_reported` compares the last report as it came. A run is a seed: times, conversations.",
)


class Variant(NamedTuple):
    """A policy, and how many seconds lie between two reports."""

    policy: str
    interval: float
    as_reported: bool = False


VARIANTS: Mapping[str, tuple[str, Variant]] = {
    "linear_1s": ("linear, reports every 1 s", Variant("linear", 1.0)),
    "linear_50ms": ("linear, reports every 50 ms", Variant("linear", 0.05)),
    "as_reported_1s": ("linear by reports alone, every 1 s", Variant("linear", 1.0, True)),  # noqa: FBT003
    "as_reported_50ms": ("linear by reports alone, every 50 ms", Variant("linear", 0.05, True)),  # noqa: FBT003
    "least_ttft": ("least-ttft, reports every 1 s", Variant("least-ttft", 1.0)),
}
_RATIOS = {
    "ttft_ratio_1s_to_50ms": ("linear_1s", "linear_50ms"),
    "ttft_ratio_1s_to_50ms_as_reported": ("linear_1s", "as_reported_50ms"),
}


class _AsReported(msgspec.Struct, frozen=True):
    """A scorer that sees the last report in place of the load of the moment."""

    scorer: Scorer

    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> Sequence[float]:
        """Return the scores of the same candidates as they were reported."""
        return self.scorer.score(request, [replace(each, current=None) for each in candidates])


async def measure(progress: Progress, options: Options) -> Report:
    """Replay the trace with each variant. Raises `ConfigError` without the trace."""
    path = _trace_at(options.traces)
    seeds = range(QUICK_SEEDS if options.quick else SEEDS)
    progress.step(f"{len(VARIANTS)} policies, {len(seeds)} seeds")
    spawn = multiprocessing.get_context("spawn")
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        jobs = {
            name: [loop.run_in_executor(pool, play, path, variant, seed) for seed in seeds]
            for name, (_, variant) in VARIANTS.items()
        }
        means = {name: tuple(await asyncio.gather(*runs)) for name, runs in jobs.items()}
    return Report(name="freshness", figures=(*_times(means), *_ratios(means)), notes=NOTES)


def play(path: Path, variant: Variant, seed: int) -> float:
    """Return the mean TTFT of one run, in seconds."""
    scheduling = load(POLICIES[variant.policy]).scheduling
    if variant.as_reported:
        scheduling = _of_scorers(scheduling, _AsReported)
    return TimedReplay(traffic(read(path), seed), scheduling, variant.interval, seed).run()


def _of_scorers(scheduling: Scheduling, wrap: Callable[[Scorer], Scorer]) -> Scheduling:
    def wrapped(profile: Profile) -> Profile:
        scorers = [
            WeightedScorer(each.name, each.weight, wrap(each.scorer)) for each in profile.scorers
        ]
        return replace(profile, scorers=tuple(scorers))

    profiles = {name: wrapped(profile) for name, profile in scheduling.profiles.items()}
    return replace(scheduling, profiles=profiles)


def _times(means: Mapping[str, tuple[float, ...]]) -> list[Figure]:
    return [
        Figure(key=f"ttft_s_{name}", says=f"mean TTFT, {says}", unit="s", runs=means[name])
        for name, (says, _) in VARIANTS.items()
    ]


def _ratios(means: Mapping[str, tuple[float, ...]]) -> list[Figure]:
    return [
        Figure(
            key=key,
            says=f"mean TTFT, {VARIANTS[one][0]}, to {VARIANTS[other][0]}",
            unit="",
            runs=tuple(a / b for a, b in zip(means[one], means[other], strict=True)),
            budget=_WITHIN,
        )
        for key, (one, other) in _RATIOS.items()
    ]


def _trace_at(place: Path | None) -> Path:
    if place is None:
        raise ConfigError(f"freshness replays a trace: --trace PATH of {mooncake.NAME}")
    return place / mooncake.NAME if place.is_dir() else place
