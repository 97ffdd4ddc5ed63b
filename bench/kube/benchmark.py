"""Measures what following a pool takes: the start, a change, an event's CPU, and doing nothing."""

import tempfile
from pathlib import Path

from bench.accounting import cpu_seconds, idle_cores
from bench.figures import Budget, Figure, Report
from bench.kube.cluster import Order
from bench.kube.follower import Cluster, Follower, cluster, serving
from bench.options import Options
from bench.progress import Progress
from epp.replay.results.measures import percentile

PODS = 1_000
_RATE = 50.0
_SETTLE_EVENTS = 50
_FOR_EVENTS = ("--scrape-interval=1h", "--ha-enable-leader-election")

_DEFINED = (
    (
        "ready_s_1000_pods",
        "from start to ready, 1,000 pods listed and scraped",
        "s",
        Budget(most=2),
    ),
    ("event_to_pick_ms_p50", "a pod's change to the next pick, median", "ms", None),
    ("event_to_pick_ms_p99", "a pod's change to the next pick, p99", "ms", Budget(most=50)),
    ("us_per_event", "CPU per event, whole process", "µs", None),
    ("idle_watch_cores", "cores while nothing changes, lease renewed", "", Budget(most=0.01)),
)
NOTES = (
    "The API server of the tests in a process of its own, over loopback; pods of 10 KB.",
    "Ready: from the picker's first request until its health says so, first scrapes included.",
    "A change: from when the API server has it, at 50 a second, until the fleet has it.",
    "Changes are followed by the picker's discovery alone, the rest is measured on `epp serve`.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure all of it on one cluster."""
    rounds = 3 if options.quick else 9
    runs: dict[str, list[float]] = {key: [] for key, *_ in _DEFINED}
    with tempfile.TemporaryDirectory() as folder:
        progress.step(f"a cluster with {PODS} pods")
        async with cluster(PODS, Path(folder)) as made:
            for turn in range(rounds):
                progress.step(f"round {turn + 1} of {rounds}")
                await _round(made, Path(folder), runs, quick=options.quick)
    figures = tuple(
        Figure(key=key, says=says, unit=unit, runs=tuple(runs[key]), budget=budget)
        for key, says, unit, budget in _DEFINED
    )
    return Report(name="kube", figures=figures, notes=NOTES)


async def _round(made: Cluster, folder: Path, runs: dict[str, list[float]], *, quick: bool) -> None:
    async with serving(made.kubeconfig, folder) as served:
        runs["ready_s_1000_pods"].append(served.ready_s)
    await _event_cost(made, folder, runs, quick=quick)
    await _delays(made, runs, 200 if quick else 500)


async def _event_cost(
    made: Cluster, folder: Path, runs: dict[str, list[float]], *, quick: bool
) -> None:
    """CPU of a picker that polls no metrics: first of doing nothing, then of events."""
    seconds, events = (4.0, 1_000) if quick else (8.0, 3_000)
    async with serving(made.kubeconfig, folder, *_FOR_EVENTS) as served:
        await made.order(Order(_SETTLE_EVENTS, _RATE))
        idle = await idle_cores(served.pid, seconds)
        before = cpu_seconds(served.pid)
        await made.order(Order(events))
        await made.order(Order(_SETTLE_EVENTS, _RATE))
        used = cpu_seconds(served.pid) - before
    runs["idle_watch_cores"].append(idle)
    runs["us_per_event"].append(used / (events + _SETTLE_EVENTS) * 1e6)


async def _delays(made: Cluster, runs: dict[str, list[float]], events: int) -> None:
    follower = Follower(made.kubeconfig)
    async with follower.following():
        await made.order(Order(events, _RATE))
        await follower.heard(events)
    for percent in (50, 99):
        delay = percentile(follower.delays, percent)
        runs[f"event_to_pick_ms_p{percent}"].append(delay * 1e3)
