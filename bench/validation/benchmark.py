"""Replay held against reality: the same questions, the same policies, ratios side by side.

python -m bench replay-validation
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean

import msgspec

from bench.figures import Figure, Grid, Report
from bench.options import Options
from bench.progress import Progress
from bench.validation.real import SERVERS, WORKLOAD, Question, ask, planned
from bench.validation.simulated import CannotCalibrate, calibrated, play
from epp.demo.figures import Sample
from epp.demo.testbed import PolicyName
from epp.replay.engines.cost import StepCost
from epp.replay.simulation.outcome import CallOutcome

POLICIES: tuple[PolicyName, ...] = ("round-robin", "linear", "least-ttft")
"""The first is the one that the cost is taken from, and that the others are compared with."""
SEED = 1
SEEDS = 5
"""Runs of each policy in simulation; they differ in how ties are broken."""
_ASKED = (
    f"{{questions}} questions in {{seconds:g}} s about {WORKLOAD.dossiers} documents, {SERVERS} "
    "vLLMs on the CPU behind Envoy and the picker, caches cold."
)
_Results = Mapping[str, tuple[float, ...]]
"""By policy, what each run gave."""


async def measure(progress: Progress, options: Options) -> Report:
    """Ask real servers, then simulated ones. Raises `ConfigError` without vLLM."""
    base, *others = POLICIES
    policies = (base, others[-1]) if options.quick else POLICIES
    questions, seen = await ask(policies, planned(SEED), progress)
    progress.step("simulated")
    if options.records:
        options.records.write_bytes(msgspec.json.encode({"questions": questions, "samples": seen}))
    return compared(questions, seen)


def compared(questions: Sequence[Question], seen: Mapping[str, Sequence[Sample]]) -> Report:
    """Hold what was seen of each policy against simulations; the first policy is the base.

    The runs of the others need not show what a prompt token costs. Raises `CannotCalibrate`.
    """
    base = next(iter(seen))
    costs = {base: calibrated(seen[base])}
    for policy, samples in seen.items():
        with suppress(CannotCalibrate):
            costs[policy] = calibrated(samples)
    runs = {policy: _runs(policy, questions, costs[base]) for policy in seen}
    own = {policy: _runs(policy, questions, cost) for policy, cost in costs.items()}
    ttft: Mapping[str, _Results] = {
        "really": {name: (fmean(each.ttft for each in seen[name]),) for name in seen},
        "simulated": {name: _ttft(runs[name]) for name in seen},
        "simulated at its run's speed": {name: _ttft(own[name]) for name in own},
    }
    cached: Mapping[str, _Results] = {
        "really": {
            name: (_share([(each.cached_tokens, each.prompt_tokens) for each in seen[name]]),)
            for name in seen
        },
        "simulated": {name: _cached(runs[name]) for name in seen},
        "simulated at its run's speed": {name: _cached(own[name]) for name in own},
    }
    ratios = {says: _ratios(results, base) for says, results in ttft.items()}
    parts = [
        _side_by_side("ttft", "mean TTFT", "s", ttft),
        _side_by_side("ratio", f"mean TTFT as ratio to {base}", "", ratios),
        _side_by_side("cached", "cached share of prompt tokens", "", cached),
    ]
    speeds = ", ".join(
        f"{name} {cost.prefill_us_per_token:,.0f} us" for name, cost in costs.items()
    )
    return Report(
        name="replay-validation",
        figures=tuple(figure for _, figures in parts for figure in figures),
        grids=tuple(grid for grid, _ in parts),
        notes=(
            _ASKED.format(questions=len(questions), seconds=WORKLOAD.seconds),
            f"What a prompt token took in each real run: {speeds}.",
            f"`simulated` takes that and the length of a step from the real run of {base}.",
            f"One real run of each policy; {SEEDS} simulated ones.",
        ),
    )


def _runs(
    policy: str, questions: Sequence[Question], cost: StepCost
) -> list[Sequence[CallOutcome]]:
    return [play(policy, questions, cost, seed) for seed in range(SEEDS)]


def _ttft(runs: Sequence[Sequence[CallOutcome]]) -> tuple[float, ...]:
    return tuple(fmean(each.ttft for each in run) for run in runs)


def _cached(runs: Sequence[Sequence[CallOutcome]]) -> tuple[float, ...]:
    return tuple(_share([(each.cached, each.prompt) for each in run]) for run in runs)


def _share(counts: Sequence[tuple[int, int]]) -> float:
    return sum(cached for cached, _ in counts) / sum(prompt for _, prompt in counts)


def _side_by_side(
    key: str, says: str, unit: str, columns: Mapping[str, _Results]
) -> tuple[Grid, list[Figure]]:
    """Return a row for each policy, with a column for each way to find out."""
    policies = tuple(next(iter(columns.values())))
    keys = dict(zip(columns, ("real", "simulated", "own_speed"), strict=True))
    figures = [
        Figure(
            key=f"{key}_{keys[column]}_{policy}",
            says=f"{says}, {policy}, {column}",
            unit=unit,
            runs=results[policy],
        )
        for column, results in columns.items()
        for policy in results
    ]
    rows = tuple(
        (policy, tuple(f"{key}_{keys[column]}_{policy}" for column in columns))
        for policy in policies
    )
    return Grid(says, tuple(columns), rows), figures


def _ratios(results: _Results, base: str) -> _Results:
    """Return each run's ratio to the mean of the runs of `base`."""
    whole = fmean(results[base])
    return {name: tuple(value / whole for value in runs) for name, runs in results.items()}
