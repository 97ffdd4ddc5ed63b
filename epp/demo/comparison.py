"""The comparison of two runs: playing them, and their figures as a table and as JSON."""

import math
import resource
import time
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from epp.demo.board import Lane
from epp.demo.client import Player
from epp.demo.figures import Figures, Sample, format_seconds, summarize
from epp.demo.pools import DemoPool
from epp.demo.testbed import PolicyName, Testbed
from epp.demo.workload import Conversation


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
    testbed: Testbed, pool: DemoPool, plan: Sequence[Conversation], lane: Lane
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


ROWS: tuple[tuple[str, str], ...] = (
    ("ttft_p50", "TTFT p50"),
    ("ttft_p90", "TTFT p90"),
    ("ttft_p99", "TTFT p99"),
    ("ttft_mean", "TTFT mean"),
    ("cached_ratio", "Prompt tokens found cached"),
    ("requests_per_s", "Requests per second"),
    ("imbalance", "Imbalance (max / mean prefill)"),
    ("over", "Predicted cached, too many"),
    ("under", "Predicted cached, too few"),
    ("close", "Predicted within one block"),
    ("requests", "Requests"),
    ("failed", "Failed"),
)


def format_figure(name: str, figures: Figures) -> str:
    """Return one figure as text with its unit."""
    value = getattr(figures, name)
    if isinstance(value, int):
        return str(value)
    if name.startswith("ttft"):
        return format_seconds(value)
    if math.isnan(value):
        return "none"
    if name in {"cached_ratio", "close"}:
        return f"{value:.1%}"
    if name in {"over", "under"}:
        return f"{value:.2%} of prompt"
    return f"{value:.2f}"


def print_table(console: Console, before: RunResult, after: RunResult) -> None:
    """Print the figures of both runs side by side."""
    table = Table(header_style="bold")
    table.add_column("")
    for result in (before, after):
        table.add_column(result.policy, justify="right")
    for name, label in ROWS:
        table.add_row(
            label, format_figure(name, before.figures), format_figure(name, after.figures)
        )
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
