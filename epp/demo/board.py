"""The demo's progress display: one line for each policy, live in a terminal, else as text."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from epp.demo.figures import Sample, cached_ratio
from epp.demo.testbed import PolicyName
from epp.replay.results.measures import Unit, format_value

LIVE_SECONDS = 0.25
LOGGED_SECONDS = 5.0


@dataclass(slots=True)
class RunProgress:
    """The progress of one run: `total` requests are planned, `samples` were answered.

    `began_at` is on the monotonic clock, `took` the length of a finished run; both in seconds.
    """

    policy: PolicyName
    total: int
    phase: str = "waiting"
    samples: list[Sample] = field(default_factory=list)
    began_at: float | None = None
    took: float | None = None

    def begin(self) -> None:
        """Start the time of the load."""
        self.phase = "under load"
        self.began_at = time.monotonic()

    def end(self) -> None:
        """Stop the time: the last answer is in."""
        self.phase = "done"
        self.took = self.seconds()

    def seconds(self) -> float:
        """Return the seconds under load."""
        if self.took is not None:
            return self.took
        return 0.0 if self.began_at is None else time.monotonic() - self.began_at

    def cells(self) -> tuple[str, str, str, str, str]:
        """Return phase, time, requests, median TTFT and cached ratio as text."""
        good = [sample for sample in self.samples if not sample.error]
        done = f"{len(self.samples)}/{self.total}"
        median = cached = ""
        if good:
            median = format_value(statistics.median(each.ttft for each in good), Unit.SECONDS)
            cached = f"{cached_ratio(good):.0%}"
        return self.phase, f"{self.seconds():.0f} s", done, median, cached


@contextlib.asynccontextmanager
async def live_board(console: Console, lanes: Sequence[RunProgress]) -> AsyncIterator[None]:
    """Show all lanes while the context lasts: in place on a terminal, else as printed lines."""
    showing = asyncio.create_task(_live(console, lanes) if console.is_terminal else _log(lanes))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.wait({showing})


async def _live(console: Console, lanes: Sequence[RunProgress]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(_table(lanes), refresh=True)
                await asyncio.sleep(LIVE_SECONDS)
        finally:
            live.update(_table(lanes), refresh=True)


async def _log(lanes: Sequence[RunProgress]) -> None:
    """Print a line whenever a phase begins, and every LOGGED_SECONDS under load."""
    last, due = "", 0.0
    while True:
        lane = next((lane for lane in lanes if lane.phase != "done"), lanes[-1])
        stage = f"{lane.policy}: {lane.phase}"
        if stage != last or (lane.began_at and time.monotonic() >= due):
            print(stage + _progress(lane), flush=True)
            last, due = stage, time.monotonic() + LOGGED_SECONDS
        await asyncio.sleep(LIVE_SECONDS)


def _progress(lane: RunProgress) -> str:
    _, spent, done, median, cached = lane.cells()
    details = f", TTFT p50 {median}, cached {cached}" if median else ""
    return f", {spent}, requests {done}{details}" if lane.began_at else ""


def _table(lanes: Sequence[RunProgress]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("policy", "phase", ""):
        table.add_column(heading)
    for heading in ("time", "requests", "TTFT p50", "cached"):
        table.add_column(heading, justify="right")
    for lane in lanes:
        phase, *figures = lane.cells()
        bar = ProgressBar(total=lane.total, completed=len(lane.samples), width=24)
        style = {"waiting": "dim", "done": ""}.get(lane.phase, "bold")
        table.add_row(lane.policy, phase, bar, *figures, style=style)
    return table
