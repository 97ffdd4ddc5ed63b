"""How near first tokens are to what no policy can go below.

python -m bench.study.floor --traces FOLDER [--seeds N] [--jobs N]

The floor of a request is its prefill alone, on the fastest pod of the fleet, with nothing before it
or beside it and all in the cache that any request before it has had. Prints its mean as a part of
each policy's mean TTFT, for the traces and workloads of the study.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import ceil, isnan
from pathlib import Path

from bench.study.command import answer
from bench.study.field import geometric_mean
from bench.study.grid import Grid, shared_prefixes, subjects, tasks
from epp.replay.engines.cost import StepWork
from epp.replay.plan import PodPlan
from epp.replay.simulation.outcome import CallOutcome
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import Task, read_traffic

POLICIES = ("least-ttft", "llm-d-router-guide", "llm-d-router")

Shares = Mapping[tuple[str, str], Sequence[float]]
"""By case and policy, a share for each seed."""


def floor_seconds(outcome: CallOutcome, pod: PodPlan) -> float:
    """Return the prefill of what no request before this one has had, on an idle pod."""
    known, new = outcome.reusable, max(1, outcome.prompt - outcome.reusable)
    steps = ceil(new / pod.limits.max_num_batched_tokens)
    work = pod.cost.seconds(StepWork(new, new * (known + new / 2)))
    return ((steps - 1) * pod.cost.step_ms * 1e-3 + work) / pod.speed


def share(task: Task) -> float:
    """Play one run; return the mean floor over the mean TTFT."""
    outcomes = Simulation(read_traffic(task.traffic), task.plan).run().outcomes
    fastest = max(task.plan.pods, key=lambda pod: pod.speed)
    begun = [each for each in outcomes if each.at >= task.warm_up and not isnan(each.ttft)]
    floor = sum(floor_seconds(each, fastest) for each in begun)
    return floor / sum(each.ttft for each in begun)


def cases(traces: Path, seeds: int) -> Sequence[Task]:
    """Return the runs: traces and workloads on 4 pods, inference-perf's on 8."""
    by_pods = ((4, subjects(traces)), (8, shared_prefixes()))
    grids = (
        tasks(wanted, Grid(pods=(pods,), loads=(0.5,), seeds=range(seeds), policies=POLICIES))
        for pods, wanted in by_pods
    )
    return [task for grid in grids for task in grid]


def rows(shares: Shares) -> Iterator[str]:
    """Yield the rows of a table: a case, and the share of each policy."""
    yield f"| case | {' | '.join(POLICIES)} |"
    yield f"|---|{'--:|' * len(POLICIES)}"
    for case in dict.fromkeys(case for case, _ in shares):
        means = (geometric_mean(shares[case, policy]) for policy in POLICIES)
        yield f"| {case} | {' | '.join(f'{mean:.2f}' for mean in means)} |"


def gathered(wanted: Sequence[Task], found: Iterable[float]) -> Shares:
    """Return the shares of runs by their cases and policies."""
    shares: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for task, each in zip(wanted, found, strict=True):
        shares[task.cell, task.plan.policy.name].append(each)
    return shares


def table(wanted: Sequence[Task], pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the table of these runs."""
    return rows(gathered(wanted, pool.map(share, wanted)))


if __name__ == "__main__":
    sys.exit(answer("floor", __doc__, 2, cases, table))
