"""What several processes that serve as one picker cost, and how evenly they are asked.

python -m bench workers
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from msgspec.structs import replace

from bench.accounting import cpu_seconds
from bench.extproc.generator import Generator
from bench.extproc.load import Order
from bench.extproc.pickers import Product, endpoints_file
from bench.extproc.stack import before, envoy, rotated, start_backends
from bench.extproc.workload import Shape
from bench.figures import Budget, Figure, Report
from bench.options import Options
from bench.progress import Progress

Setting = tuple[int, int]
"""Workers of the picker, and threads of Envoy."""

SETTINGS: tuple[Setting, ...] = ((1, 2), (2, 2), (2, 4))
SETTINGS_TO_SPARE: tuple[Setting, ...] = ((1, 4), (2, 4), (4, 8))
CORES_TO_SPARE = 12
"""Of a machine on which none of load, Envoy, model servers and pickers waits for another's core."""
PROCESSES_TO_SPARE = 3
"""Of the load, and of the model servers, on such a machine; else one of each."""
CONNECTIONS = 16
"""Of each process of the load."""
SIZE = 2 << 10
PODS = 12
WARM_UP_S, SECONDS, ROUNDS = 2.0, 5.0, 5
LEAST_OF_TWO = 1.7
"""Requests a second of two workers to those of one, where there are cores to spare."""
NOTES = (
    (
        f"{SIZE >> 10} KB chats with JSON responses, {CONNECTIONS} connections, closed loop. On a"
        f" machine with {CORES_TO_SPARE} cores or more, {PROCESSES_TO_SPARE} processes send this"
        " load each, to as many processes of model servers."
    ),
    "Cores and CPU are those of all processes and threads of the picker.",
    (
        "Load, model servers and Envoy run on the same machine. If they leave the picker no core"
        " of its own, only the CPU of its event loops describes it, and requests/s do not."
    ),
    "The share is of the CPU of all workers' event loops: an even share is 1 / N.",
)


class _Case(NamedTuple):
    """What is measured of: a picker's process, and where Envoy takes requests for it."""

    pid: int
    port: int


class _Run(NamedTuple):
    rps: float
    cores: float
    cpu_us: float
    loop_us: float
    busier: float


@asynccontextmanager
async def _case(workers: int, threads: int, ports: list[int], folder: Path) -> AsyncIterator[_Case]:
    name = f"{workers}-{threads}"
    endpoints = endpoints_file(ports, folder / "endpoints.yaml")
    async with AsyncExitStack() as exits:
        picker = Product(endpoints, "native", f"--workers={workers}")
        process = await picker.start(folder, f"picker-{name}")
        exits.push_async_callback(process.stop)
        settings = replace(before(ports, picker.grpc_port), concurrency=threads, reuse_port=True)
        port = await exits.enter_async_context(envoy(name, folder, settings))
        yield _Case(process.pid, port)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure each setting in turn, all of them started."""
    seconds, rounds = (3.0, 1) if options.quick else (SECONDS, ROUNDS)
    spare = (os.cpu_count() or 1) >= CORES_TO_SPARE
    settings = SETTINGS_TO_SPARE if spare else SETTINGS
    runs: dict[Setting, list[_Run]] = {setting: [] for setting in settings}
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as exits:
            loads, ports = await _others(PROCESSES_TO_SPARE if spare else 1, folder, exits)
            cases = {
                setting: await exits.enter_async_context(_case(*setting, ports, folder))
                for setting in settings
            }
            for case in cases.values():
                await _send(loads, case.port, WARM_UP_S)
            for turn in range(rounds):
                for setting in rotated(settings, turn):
                    runs[setting].append(await _run(loads, cases[setting], seconds))
                progress.step(f"round {turn + 1} of {rounds}")
    figures = [figure for setting in settings for figure in _figures(*setting, runs[setting])]
    return Report(
        name="workers",
        figures=(*figures, *_ratios(runs, LEAST_OF_TWO if spare else None)),
        notes=NOTES,
    )


async def _others(
    processes: int, folder: Path, exits: AsyncExitStack
) -> tuple[list[Generator], list[int]]:
    """Start the load and model servers, each in so many processes; return these, and all ports."""
    loads, ports = [], []
    for number in range(processes):
        (logs := folder / f"others-{number}").mkdir()
        backends, some = await start_backends(PODS // processes, logs)
        exits.push_async_callback(backends.stop)
        ports += some
        loads.append(await exits.enter_async_context(Generator()))
    return loads, ports


async def _send(loads: Sequence[Generator], port: int, seconds: float) -> tuple[int, float]:
    """Have all of the load sent at once; return answers of all, and seconds of the longest."""
    order = Order(port=port, shape=Shape(size=SIZE), seconds=seconds, connections=CONNECTIONS)
    results = await asyncio.gather(*(each.run(order) for each in loads))
    return sum(each.requests for each in results), max(each.seconds for each in results)


async def _run(loads: Sequence[Generator], case: _Case, seconds: float) -> _Run:
    workers = psutil.Process(case.pid).children() or [psutil.Process(case.pid)]
    before, all_before = list(map(_loop_seconds, workers)), cpu_seconds(case.pid)
    requests, took = await _send(loads, case.port, seconds)
    used = [_loop_seconds(each) - cpu for each, cpu in zip(workers, before, strict=True)]
    cpu = cpu_seconds(case.pid) - all_before
    return _Run(
        rps=requests / took,
        cores=cpu / took,
        cpu_us=1e6 * cpu / requests,
        loop_us=1e6 * sum(used) / requests,
        busier=max(used) / sum(used),
    )


def _loop_seconds(process: psutil.Process) -> float:
    """Return what the thread of a process's event loop has used."""
    (main,) = [each for each in process.threads() if each.id == process.pid]
    return main.user_time + main.system_time


def _ratios(runs: Mapping[Setting, Sequence[_Run]], least: float | None) -> list[Figure]:
    """Return requests a second of several workers to those of the first setting, by round."""
    alone = next(iter(runs.values()))
    return [
        Figure(
            key=f"rps_ratio_{workers}_{threads}",
            says=f"requests/s ÷ those of 1 worker: {workers} workers, Envoy with {threads} threads",
            unit="",
            runs=tuple(each.rps / one.rps for each, one in zip(several, alone, strict=True)),
            budget=Budget(least=least) if least and workers == 2 else None,
        )
        for (workers, threads), several in runs.items()
        if workers > 1
    ]


def _figures(workers: int, threads: int, runs: list[_Run]) -> list[Figure]:
    where = f"{workers} worker{'s' if workers > 1 else ''}, Envoy with {threads} threads"
    kinds = (
        ("rps", "requests/s", "/s"),
        ("cores", "cores used by the picker", ""),
        ("cpu_us", "CPU per request", "µs"),
        ("loop_us", "CPU per request, event loops only", "µs"),
        ("busier", "busiest worker's share of the CPU", ""),
    )
    return [
        Figure(
            key=f"{key}_{workers}_{threads}",
            says=f"{says}: {where}",
            unit=unit,
            runs=tuple(getattr(each, key) for each in runs),
        )
        for key, says, unit in kinds
        if key != "busier" or workers > 1
    ]
