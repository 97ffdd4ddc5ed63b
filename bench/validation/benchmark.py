"""Replay held against reality: the same questions, the same policies, ratios side by side.

python -m bench replay-validation
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from bench.figures import Figure, Grid, Report
from bench.options import Options
from bench.progress import Progress
from bench.validation.real import SERVERS, WORKLOAD, ask, planned
from bench.validation.simulated import calibrated, play
from epp.demo.testbed import PolicyName

POLICIES: tuple[PolicyName, ...] = ("round-robin", "linear", "least-ttft")
"""The first is the one that the cost is taken from, and that the others are compared with."""
SEED = 1
SEEDS = 5
"""Runs of each policy in simulation; they differ in how ties are broken."""
_ASKED = (
    f"{{questions}} questions in {{seconds:g}} s about {WORKLOAD.dossiers} documents, {SERVERS} "
    "vLLMs on the CPU behind Envoy and the picker, caches cold."
)
_TAKEN = (
    "Cost from the real run of {base}: {prefill:.0f} us a prompt token, {step:.0f} ms a step. "
    "That makes its simulated mean TTFT the real one."
)

_Results = Mapping[str, tuple[float, ...]]
"""By policy, what each run gave."""


async def measure(progress: Progress, options: Options) -> Report:
    """Ask real servers, then simulated ones. Raises `ConfigError` without vLLM."""
    base, *others = POLICIES
    policies = (base, others[-1]) if options.quick else POLICIES
    questions, seen = await ask(policies, planned(SEED), progress)
    progress.step("simulated")
    cost = calibrated(base, questions, seen[base])
    simulated = {
        policy: [play(policy, questions, cost, seed) for seed in range(SEEDS)]
        for policy in policies
    }
    real_ttft: _Results = {name: (fmean(each.ttft for each in seen[name]),) for name in policies}
    real_cached: _Results = {
        name: (_share([(each.cached_tokens, each.prompt_tokens) for each in seen[name]]),)
        for name in policies
    }
    ttft: _Results = {
        name: tuple(fmean(each.ttft for each in run) for run in simulated[name])
        for name in policies
    }
    cached: _Results = {
        name: tuple(_share([(each.cached, each.prompt) for each in run]) for run in simulated[name])
        for name in policies
    }
    grids, figures = [], []
    for key, says, unit, real, replayed in (
        ("ttft", "mean TTFT", "s", real_ttft, ttft),
        ("cached", "cached share of prompt tokens", "", real_cached, cached),
    ):
        grid, found = _side_by_side(key, (says, unit), real, replayed)
        grids.append(grid)
        figures += found
    return Report(
        name="replay-validation",
        figures=tuple(figures),
        grids=tuple(grids),
        notes=(
            _ASKED.format(questions=len(questions), seconds=WORKLOAD.seconds),
            _TAKEN.format(base=base, prefill=cost.prefill_us_per_token, step=cost.step_ms),
            f"One real run of each policy; {SEEDS} simulated ones.",
        ),
    )


def _share(counts: Sequence[tuple[int, int]]) -> float:
    return sum(cached for cached, _ in counts) / sum(prompt for _, prompt in counts)


def _side_by_side(
    key: str, words: tuple[str, str], real: _Results, replayed: _Results
) -> tuple[Grid, list[Figure]]:
    """Return a row for each policy: really, simulated, and each as ratio to the first policy."""
    says, unit = words
    base = next(iter(real))
    columns = {
        "real": (real, "really", unit),
        "simulated": (replayed, "simulated", unit),
        "real_ratio": (_ratios(real, base), f"of {base}, really", ""),
        "simulated_ratio": (_ratios(replayed, base), f"of {base}, simulated", ""),
    }
    figures = [
        Figure(
            key=f"{key}_{column}_{policy}",
            says=f"{says}, {policy}, {name}",
            unit=shown,
            runs=results[policy],
        )
        for column, (results, name, shown) in columns.items()
        for policy in real
    ]
    rows = tuple(
        (policy, tuple(f"{key}_{column}_{policy}" for column in columns)) for policy in real
    )
    return Grid(says, tuple(name for _, name, _ in columns.values()), rows), figures


def _ratios(results: _Results, base: str) -> _Results:
    """Return each run's ratio to the mean of the runs of `base`."""
    whole = fmean(results[base])
    return {name: tuple(value / whole for value in runs) for name, runs in results.items()}
