"""What a recording and a shadow cost a request, on the thread that picks.

Exchanges of 2 KB chats among ten endpoints go through the picker without its sockets; each call of
a recorder and of a shadow is timed where the picker makes it. The median counts, since a call may
be interrupted. What the thread that writes takes is counted by itself, as CPU time.
"""

import gc
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

from bench.figures import Budget, Figure
from bench.progress import Progress
from bench.request_path import Messages, RequestPath, bodies
from epp.adapters.recording.recorder import Recorder
from epp.adapters.recording.writer import RecordingSettings
from epp.adapters.telemetry.logs import configure_logs
from epp.app.observers import Observer
from epp.app.observing.shadow import Shadow
from epp.config.file import POLICIES, load
from epp.model.fleet import Fleet

ENDPOINTS = 10
SIZE = 2 << 10
SHADOW = "linear"
_EXCHANGES = 400
_ROUNDS = {True: 9, False: 25}


class _Timed:
    """Calls `function`, and keeps how long each call took, in nanoseconds."""

    def __init__(self, function: Callable[..., None] = lambda *_: None) -> None:
        self.function = function
        self.spent: list[int] = []

    def __call__(self, *given: object) -> None:
        started = time.perf_counter_ns()
        self.function(*given)
        self.spent.append(time.perf_counter_ns() - started)


def figures(progress: Progress, *, quick: bool) -> tuple[Figure, ...]:
    """Measure `record_us`, `record_thread_us` and `shadow_us`."""
    configure_logs("error", "json")
    progress.step("exchanges that are recorded and shadowed")
    with tempfile.TemporaryDirectory() as folder:
        settings = RecordingSettings(folder=Path(folder), most_bytes=64 << 20)
        runs = _runs(settings, _ROUNDS[quick])
    return (
        _figure("record_us", "recording a request, on the loop", runs["record"], 8),
        _figure("record_thread_us", "writing it down, on another thread", runs["write"]),
        _figure("shadow_us", f"a shadow ({SHADOW}), {ENDPOINTS} endpoints", runs["shadow"], 30),
    )


def _figure(key: str, says: str, runs: list[float], most: float | None = None) -> Figure:
    budget = None if most is None else Budget(most=most)
    return Figure(key=key, says=says, unit="µs", runs=tuple(runs), budget=budget)


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
