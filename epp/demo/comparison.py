"""The comparison of two runs: playing them, and their figures as a table and as JSON."""

import resource
import time
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from epp.demo.board import RunProgress
from epp.demo.client import Player
from epp.demo.figures import Figures, Sample, summarize
from epp.demo.pools import DemoPool
from epp.demo.testbed import PolicyName, Testbed
from epp.demo.workload import Conversation
from epp.replay.results.measures import Unit, format_value


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one run under one policy.

    `servers` are `ip:port`. `client_load` is the share of one core that the load generator used;
    near 1 its own queueing would show in the times.
    """

    policy: PolicyName
    servers: tuple[str, ...]
    samples: tuple[Sample, ...]
    figures: Figures
    client_load: float

    @property
    def first_error(self) -> str:
        """The first request's error; empty if every request succeeded."""
        return next((sample.error for sample in self.samples if sample.error), "")


async def play(
    testbed: Testbed, pool: DemoPool, plan: Sequence[Conversation], lane: RunProgress
) -> RunResult:
    """Play the plan through a testbed. Raises `ProcessDied` if one of its processes ends."""
    player = Player(testbed.url, pool.model, lane.samples.append)
    lane.begin()
    began, used = time.monotonic(), _cpu_seconds()
    await testbed.while_up(player.play(plan))
    lane.end()
    return RunResult(
        policy=lane.policy,
        servers=testbed.servers,
        samples=tuple(lane.samples),
        figures=summarize(lane.samples, testbed.servers, pool.block_size),
        client_load=(_cpu_seconds() - used) / (time.monotonic() - began),
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


ROWS: Mapping[str, tuple[str, Unit]] = {
    "ttft_p50": ("TTFT p50", Unit.SECONDS),
    "ttft_p90": ("TTFT p90", Unit.SECONDS),
    "ttft_p99": ("TTFT p99", Unit.SECONDS),
    "ttft_mean": ("TTFT mean", Unit.SECONDS),
    "cached_ratio": ("Prompt tokens found cached", Unit.SHARE),
    "requests_per_s": ("Requests per second", Unit.RATE),
    "imbalance": ("Imbalance (max / mean prefill)", Unit.FACTOR),
    "over": ("Predicted cached, too many, of the prompt", Unit.SHARE),
    "under": ("Predicted cached, too few, of the prompt", Unit.SHARE),
    "close": ("Predicted within one block", Unit.SHARE),
    "requests": ("Requests", Unit.COUNT),
    "failed": ("Failed", Unit.COUNT),
}
"""The figures in the order of tables, with their labels and units."""


def format_figure(name: str, figures: Figures) -> str:
    """Return one figure as text with its unit."""
    return format_value(getattr(figures, name), ROWS[name][1])


def print_table(console: Console, before: RunResult, after: RunResult) -> None:
    """Print the figures of both runs side by side."""
    table = Table(header_style="bold")
    table.add_column("")
    runs = (before, after)
    for result in runs:
        table.add_column(result.policy, justify="right")
    for name, (label, _) in ROWS.items():
        table.add_row(label, *(format_figure(name, result.figures) for result in runs))
    console.print(table)


def as_json(before: RunResult, after: RunResult, machine: str, command: str) -> str:
    """Return one line of JSON in the form of the benchmarks (`python -m bench`); nan as null."""
    figures = {
        f"{name}_{result.policy.replace('-', '_')}": value
        for result in (before, after)
        for name, value in msgspec.structs.asdict(result.figures).items()
    }
    line = {"name": "demo", "figures": figures, "machine": machine, "command": command}
    return msgspec.json.encode(line).decode()
