"""What several processes that serve as one picker cost, and how evenly they are asked.

python -m bench workers
"""

import tempfile
from collections.abc import AsyncIterator
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
from bench.figures import Figure, Report
from bench.options import Options
from bench.progress import Progress

Setting = tuple[int, int]
"""Workers of the picker, and threads of Envoy."""

SETTINGS: tuple[Setting, ...] = ((1, 2), (2, 2), (2, 4))
CONNECTIONS = 16
SIZE = 2 << 10
PODS = 10
WARM_UP_S, SECONDS, ROUNDS = 2.0, 5.0, 5
NOTES = (
    f"{SIZE >> 10} KB chats with JSON responses, {CONNECTIONS} connections, closed loop.",
    "Cores and CPU are those of all processes of the picker and of all their threads.",
    (
        "Load, model servers and Envoy are on the same machine: with no core left for the picker,"
        " requests a second say nothing of it; what its event loops take of a request does."
    ),
    "The busier one's share is of the CPU of all workers' event loops: 0.5 is even for two.",
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
    runs: dict[Setting, list[_Run]] = {setting: [] for setting in SETTINGS}
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as exits:
            backends, ports = await start_backends(PODS, folder)
            exits.push_async_callback(backends.stop)
            load = await exits.enter_async_context(Generator())
            cases = {
                setting: await exits.enter_async_context(_case(*setting, ports, folder))
                for setting in SETTINGS
            }
            for case in cases.values():
                await load.run(_order(case.port, WARM_UP_S))
            for turn in range(rounds):
                for setting in rotated(SETTINGS, turn):
                    runs[setting].append(await _run(load, cases[setting], seconds))
                progress.step(f"round {turn + 1} of {rounds}")
    figures = [figure for setting in SETTINGS for figure in _figures(*setting, runs[setting])]
    return Report(name="workers", figures=tuple(figures), notes=NOTES)


def _order(port: int, seconds: float) -> Order:
    return Order(port=port, shape=Shape(size=SIZE), seconds=seconds, connections=CONNECTIONS)


async def _run(load: Generator, case: _Case, seconds: float) -> _Run:
    workers = psutil.Process(case.pid).children() or [psutil.Process(case.pid)]
    before, all_before = list(map(_loop_seconds, workers)), cpu_seconds(case.pid)
    result = await load.run(_order(case.port, seconds))
    used = [_loop_seconds(each) - cpu for each, cpu in zip(workers, before, strict=True)]
    cpu = cpu_seconds(case.pid) - all_before
    return _Run(
        rps=result.requests / result.seconds,
        cores=cpu / result.seconds,
        cpu_us=1e6 * cpu / result.requests,
        loop_us=1e6 * sum(used) / result.requests,
        busier=max(used) / sum(used),
    )


def _loop_seconds(process: psutil.Process) -> float:
    """Return what the thread of a process's event loop has used."""
    (main,) = [each for each in process.threads() if each.id == process.pid]
    return main.user_time + main.system_time


def _figures(workers: int, threads: int, runs: list[_Run]) -> list[Figure]:
    where = f"{workers} worker{'s' if workers > 1 else ''}, Envoy with {threads} threads"
    kinds = (
        ("rps", "requests a second", "/s"),
        ("cores", "cores of the picker", ""),
        ("cpu_us", "CPU of a request", "µs"),
        ("loop_us", "of that in event loops", "µs"),
        ("busier", "the busier worker's share", ""),
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
