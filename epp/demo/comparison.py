"""The two runs side by side: played, summed up, and told as a table and as JSON."""

import asyncio
import math
import resource
import time
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from epp.demo.board import Lane
from epp.demo.client import Player
from epp.demo.figures import Figures, Sample, seconds, summed_up
from epp.demo.pools import Pool
from epp.demo.stage import PolicyName, Stage
from epp.demo.workload import Conversation


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was measured, over which servers, and how busy the load generator was.

    `client_load` is the share of one core that the measuring process used; near 1 its own
    queueing would show in the times.
    """

    policy: PolicyName
    servers: tuple[str, ...]
    samples: tuple[Sample, ...]
    figures: Figures
    client_load: float

    @property
    def first_error(self) -> str:
        """The first thing that went wrong, empty when nothing did."""
        return next((sample.error for sample in self.samples if sample.error), "")


async def play(ground: Stage, pool: Pool, plan: Sequence[Conversation], lane: Lane) -> Outcome:
    """Put the planned load on a stage; ProcessDied if a part of the stage falls."""
    player = Player(ground.url, pool.model, lane.samples.append)
    lane.begin()
    began, used = time.monotonic(), _cpu_seconds()
    playing = asyncio.ensure_future(player.play(plan))
    watching = asyncio.ensure_future(ground.watch())
    try:
        await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        playing.result()
    finally:
        playing.cancel()
        watching.cancel()
        await asyncio.gather(playing, watching, return_exceptions=True)
    lane.end()
    return Outcome(
        policy=lane.policy,
        servers=ground.servers,
        samples=tuple(lane.samples),
        figures=summed_up(lane.samples, ground.servers, pool.block_size),
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


def written(name: str, figures: Figures) -> str:
    """One figure with its unit."""
    value = getattr(figures, name)
    if isinstance(value, int):
        return str(value)
    if name.startswith("ttft"):
        return seconds(value)
    if math.isnan(value):
        return "none"
    if name in {"cached_ratio", "close"}:
        return f"{value:.1%}"
    if name in {"over", "under"}:
        return f"{value:.2%} of prompt"
    return f"{value:.2f}"


def print_table(console: Console, before: Outcome, after: Outcome) -> None:
    """Print the figures of both runs."""
    table = Table(title=None, header_style="bold")
    table.add_column("")
    for outcome in (before, after):
        table.add_column(outcome.policy, justify="right")
    for name, label in ROWS:
        table.add_row(label, written(name, before.figures), written(name, after.figures))
    console.print(table)


def as_json(before: Outcome, after: Outcome, machine: str, command: str) -> str:
    """One line in the form that all measurements of the project share; nan becomes null."""
    figures = {
        f"{name}_{outcome.policy.replace('-', '_')}": value
        for outcome in (before, after)
        for name, value in msgspec.structs.asdict(outcome.figures).items()
    }
    line = {"name": "demo", "figures": figures, "machine": machine, "command": command}
    return msgspec.json.encode(line).decode()
