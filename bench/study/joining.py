"""Whether an endpoint that joins should get less than its share at first.

python -m bench.study.joining --traces FOLDER [--seeds N] [--jobs N]

One of four pods joins after 200 seconds, cold, as fast as the others or 2.5 times slower, which
nobody is told. `least-ttft` plays with `slow-start-filter` of several windows before it. Prints
ratios of the mean TTFT of the 120 seconds after that to the same without the filter.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from math import isnan
from pathlib import Path

from msgspec.structs import replace

from bench.study.command import answer
from bench.study.field import geometric_mean
from bench.study.grid import Grid, subjects, tasks
from epp.model.events import EndpointRemoved, EndpointUpserted
from epp.replay.plan import Policy
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import Task, read_traffic

NAMES = ("conversation", "agents", "chat")
JOINS, LOOKED_AT = 200.0, 120.0
"""When the last pod joins, and how long after that is looked at, in seconds."""
WINDOWS = (0, 30, 60)
"""Seconds; 0 stands for no filter."""
SPEEDS = (1.0, 0.4)
Key = tuple[int, float, int]
"""The number of a run, the speed of the pod that joins, and the window."""


class Joining(Simulation):
    """A run whose pickers learn of the last pod after `JOINS` seconds."""

    def _prepare(self) -> None:
        super()._prepare()
        joins = self.pods[-1].endpoint
        for picker in self.pickers:
            picker.report(EndpointRemoved(joins.id))
            self.clock.at(JOINS, partial(picker.report, EndpointUpserted(joins)))


def policy(window: int) -> Policy:
    """Return `least-ttft` with a window before it; without the filter for 0."""
    filters = f"{{type: slow-start-filter, parameters: {{windowSeconds: {window}}}}}, "
    return Policy(
        f"slow start {window} s",
        f"plugins: [{filters if window else ''}{{type: least-ttft-picker}}]",
    )


def ttft(task: Task, speed: float, window: int) -> float:
    """Play one run; return the mean TTFT of what was sent after the pod had joined."""
    *others, last = task.plan.pods
    slow = replace(last, speed=last.speed * speed)
    plan = replace(task.plan, policy=policy(window), pods=(*others, slow))
    outcomes = Joining(read_traffic(task.traffic), plan).run().outcomes
    after = [each.ttft for each in outcomes if JOINS <= each.at <= JOINS + LOOKED_AT]
    begun = [each for each in after if not isnan(each)]
    return sum(begun) / len(begun)


def cases(traces: Path, seeds: int) -> Sequence[Task]:
    """Return the runs, each of which is played with every speed and window."""
    wanted = [each for each in subjects(traces) if each.name in NAMES]
    grid = Grid(
        pods=(4,), loads=(0.4, 0.55), speeds=((1.0,),), seeds=range(seeds), policies=("least-ttft",)
    )
    return list(tasks(wanted, grid))


def rows(wanted: Sequence[Task], played: Mapping[Key, float]) -> Iterator[str]:
    """Yield the rows of a table: a window and a speed, and the ratio for each workload."""
    yield f"| window | joins at speed | {' | '.join(NAMES)} | all |"
    yield f"|--:|--:|{'--:|' * (len(NAMES) + 1)}"
    for window, speed in product(WINDOWS[1:], SPEEDS):
        ratios = {
            number: played[number, speed, window] / played[number, speed, 0]
            for number in range(len(wanted))
        }
        means = [
            geometric_mean(
                ratio for number, ratio in ratios.items() if wanted[number].cell.startswith(name)
            )
            for name in (*NAMES, "")
        ]
        yield f"| {window} s | {speed:g} | {' | '.join(f'{mean:.3f}' for mean in means)} |"


def table(wanted: Sequence[Task], pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the table of these runs, each with every speed and window."""
    keys = list(product(range(len(wanted)), SPEEDS, WINDOWS))
    numbers, speeds, windows = zip(*keys, strict=True)
    found = pool.map(ttft, [wanted[number] for number in numbers], speeds, windows)
    return rows(wanted, dict(zip(keys, found, strict=True)))


if __name__ == "__main__":
    sys.exit(answer("joining", __doc__, 3, cases, table))
