"""What replay costs: a whole run, and recording and a shadow beside live picks.

python -m bench replay [--trace PATH]

A run is one of `epp replay`, in a process of its own. For the rest, exchanges of 2 KB chats among
ten endpoints go through the picker without its sockets; each call of a recorder and of a shadow is
timed where the picker makes it. The median counts, since a call may be interrupted. What the thread
that writes takes is counted by itself, as CPU time.
"""

import asyncio
import gc
import resource
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

from bench.accuracy import mooncake
from bench.figures import Figure, Report, several
from bench.options import Options
from bench.progress import Progress
from bench.request_path import Messages, RequestPath, bodies
from epp.adapters.recording.recorder import Recorder
from epp.adapters.recording.writer import RecordingSettings
from epp.adapters.telemetry.logs import configure_logs
from epp.app.observers import Observer
from epp.app.observing.shadow import Shadow
from epp.config.file import POLICIES, load
from epp.model.fleet import Fleet
from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import processes, read_traffic

REQUESTS = 12_000
PODS = 8
WORKLOAD = "interactive-chat"
"""What is replayed without a trace."""
_POD = PodPlan(limits=Limits(num_gpu_blocks=100_001))
_KILO = 1024
_ROUNDS, _QUICK_ROUNDS = 3, 1
ENDPOINTS = 10
SIZE = 2 << 10
SHADOW = "linear"
_EXCHANGES = 400
_BESIDE_ROUNDS = {True: 9, False: 25}
"""By whether it is quick."""


async def measure(progress: Progress, options: Options) -> Report:
    """Measure both; a run replays Mooncake's conversation where a trace is given."""
    beside = await asyncio.to_thread(_beside_figures, progress, quick=options.quick)
    progress.step(f"{REQUESTS:,} requests on {PODS} pods")
    played = await _run_figures(options.traces, _QUICK_ROUNDS if options.quick else _ROUNDS)
    what = WORKLOAD if options.traces is None else "Mooncake's conversation trace"
    notes = (f"A run replays {what} with the recorded times, in a process of its own.",)
    return Report(name="replay", figures=(*played, *beside), notes=notes)


async def _run_figures(place: Path | None, rounds: int) -> list[Figure]:
    """Measure runs of the default policy. Raises `ConfigError` if there is no such trace."""
    source = WORKLOAD
    if place is not None:
        source = str(mooncake.file_at(place))
    traffic = Traffic(source=source, requests=REQUESTS)
    loop = asyncio.get_running_loop()
    measured = []
    for _ in range(rounds):
        with processes(1) as pool:
            measured.append(await loop.run_in_executor(pool, _run, traffic))
    seconds, memory = zip(*measured, strict=True)
    says = f"a run: 12,000 requests, {PODS} pods of 1.6M tokens, least-ttft"
    return [
        several("seconds_per_12k_requests", says, "s", seconds, 20),
        several("rss_mb", "peak memory of such a run", "MB", memory, 1000),
    ]


def _run(traffic: Traffic) -> tuple[float, float]:
    """Return the seconds that a run takes, its reading left out, and its memory in MB."""
    trace = read_traffic(traffic)
    plan = RunPlan(policy=NAMED["least-ttft"], pods=(_POD,) * PODS)
    began = time.perf_counter()
    count = len(Simulation(trace, plan).run().outcomes)
    seconds = (time.perf_counter() - began) * REQUESTS / count
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILO / 1e6


class _Timed:
    """Calls `function`, and keeps how long each call took, in nanoseconds."""

    def __init__(self, function: Callable[..., None] = lambda *_: None) -> None:
        self.function = function
        self.spent: list[int] = []

    def __call__(self, *given: object) -> None:
        started = time.perf_counter_ns()
        self.function(*given)
        self.spent.append(time.perf_counter_ns() - started)


def _beside_figures(progress: Progress, *, quick: bool) -> tuple[Figure, ...]:
    """Measure `record_us`, `record_thread_us` and `shadow_us`."""
    configure_logs("error", "json")
    progress.step("exchanges that are recorded and shadowed")
    with tempfile.TemporaryDirectory() as folder:
        settings = RecordingSettings(folder=Path(folder), most_bytes=64 << 20)
        runs = _runs(settings, _BESIDE_ROUNDS[quick])
    return (
        several("record_us", "recording a request, on the event loop", "µs", runs["record"], 8),
        several("record_thread_us", "writing it down, on another thread", "µs", runs["write"]),
        several(
            "shadow_us",
            f"a shadow policy ({SHADOW}), {ENDPOINTS} endpoints",
            "µs",
            runs["shadow"],
            30,
        ),
    )


def _runs(settings: RecordingSettings, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds a request of each round, which is a recording of its own."""
    quoted, ended, committing = _Timed(), _Timed(), _Timed()

    def beside(fleet: Fleet, _: object) -> tuple[Observer]:
        committing.function = Shadow(SHADOW, load(POLICIES[SHADOW]), fleet).committing
        return (Observer(name="timed", quoted=quoted, ended=ended, committing=committing),)

    path, source = RequestPath(ENDPOINTS, beside), bodies(SIZE)
    runs: dict[str, list[float]] = {"record": [], "write": [], "shadow": []}
    for turn in range(-1, rounds):
        asked = [Messages.about(body) for body in islice(source, _EXCHANGES)]
        recorder = Recorder(settings, time.monotonic)
        quoted.function, ended.function = recorder.quoted, recorder.ended
        for each in (quoted, ended, committing):
            each.spent.clear()
        gc.collect()
        recorder.start()
        others = time.process_time() - time.thread_time()
        for messages in asked:
            path.exchange(messages)
        recorder.stop()
        written = time.process_time() - time.thread_time() - others
        if turn >= 0:
            runs["record"].append((median(quoted.spent) + median(ended.spent)) / 1e3)
            runs["write"].append(written / _EXCHANGES * 1e6)
            runs["shadow"].append(median(committing.spent) / 1e3)
    return runs
