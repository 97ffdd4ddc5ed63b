"""One to eight replicas on the same conversations: told, on their own, and smg with its mesh.

python -m bench replicas-programs [--quick]

Everything is a process of its own, before model servers that are started anew for each run. An
Envoy spreads requests: for ours it asks the pickers in turn, for smg it sends to the gateways in
turn. smg is taken from .cache/peers, where `make peers` puts it; without it ours are played alone.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from bench.envoy import EnvoySettings, start_envoy
from bench.extproc.stack import TRANSPORT
from bench.figures import Budget, Figure, Grid, Report
from bench.options import Options
from bench.programs import SMG, Front, Start, run, smg_argv
from bench.progress import Progress
from bench.replicas.killed import Replicas
from epp.demo.pools import Size, choose_pool
from epp.demo.workload import Conversation, conversations, shipped_sections
from epp.gateway.processes import free_port, spawn

COUNTS = (1, 2, 4, 8)
SERVERS = 8
SECONDS, QUICK_SECONDS, ROUNDS = 60.0, 15.0, 2
CORES_OF_A_RUN = 5
"""What a run gets of a machine, if that has more: else one run at a time."""
_HOST = "127.0.0.1"
_READY_S = 60.0
_JOIN_S = 3.0
"""Three rounds of the mesh's probes."""
NOTES = (
    (
        f"{SERVERS} simulated model servers and the conversations of `epp demo`, {SECONDS:g} s of"
        " arrivals, the same for all of a round. Envoy asks the replicas in turn."
    ),
    "Cores are those of all replicas and of Envoy.",
    f"On a machine of {2 * CORES_OF_A_RUN} cores or more, runs are played side by side.",
)


async def ours(count: int, targets: Sequence[str], logs: Path, *, told: bool) -> Front:
    """Start replicas, which tell each other what they see or do not, and Envoy before them."""
    ports = [int(target.rpartition(":")[2]) for target in targets]
    replicas = Replicas(ports, TRANSPORT, logs, count, told=told)
    await replicas.start()
    settings = EnvoySettings(
        pickers=replicas.ports,
        endpoints=tuple(targets),
    )
    return Front(settings.url, (*replicas.processes, await start_envoy(settings, log_dir=logs)))


async def mesh(count: int, targets: Sequence[str], logs: Path) -> Front:
    """Start gateways of smg, each of which joins the first one's mesh, and Envoy before them."""
    first, gateways, ports = free_port(), [], []
    for number in range(count):
        port, own = free_port(), free_port() if number else first
        argv = smg_argv(port, targets)
        if count > 1:
            argv += ["--enable-mesh", "--mesh-server-name", f"gateway-{number}"]
            argv += ["--mesh-host", _HOST, "--mesh-port", str(own)]
            argv += ["--mesh-peer-urls", f"{_HOST}:{first}"] if number else []
        gateways.append(await spawn(f"smg-{number}", argv, log_dir=logs))
        await gateways[-1].wait_http(f"http://{_HOST}:{port}/health", _READY_S)
        ports.append(port)
    await asyncio.sleep(_JOIN_S)
    settings = EnvoySettings(
        endpoints=tuple(f"{_HOST}:{port}" for port in ports),
        routing="round_robin",
    )
    return Front(settings.url, (*gateways, await start_envoy(settings, log_dir=logs)))


def _start(program: str, count: int) -> Start:
    if program == "smg":
        return partial(mesh, count)
    return partial(ours, count, told=program == "told")


PROGRAMS = {
    "told": "Warmpick, replicas that tell each other",
    "own": "Warmpick, replicas on their own",
    "smg": "smg 1.13.0, cache_aware, in a mesh",
}
KINDS = (
    ("cached", "found cached", "%"),
    ("ttft", "mean TTFT", "ms"),
    ("ttft_p99", "TTFT p99", "ms"),
    ("whole", "mean of the whole answer", "ms"),
    ("cores", "cores", ""),
)
_RATIOS = (
    ("hit_ratio", "cached", "found cached ÷ that of 1 replica", Budget(least=0.99)),
    ("ttft_ratio", "ttft", "mean TTFT ÷ that of 1 replica", Budget(most=1.03)),
)


async def measure(progress: Progress, options: Options) -> Report:
    """Play all of it. Raises what `run` does."""
    programs = [each for each in PROGRAMS if each != "smg" or SMG.exists()]
    cases = [case for case in product(programs, COUNTS) if case != ("own", 1)]
    runs: dict[str, list[float]] = {}
    lanes = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // CORES_OF_A_RUN))
    seconds = QUICK_SECONDS if options.quick else SECONDS
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        pool = choose_pool("simulator", Size(servers=SERVERS, seconds=seconds), Path(name))

        async def play(case: tuple[str, int], plan: Sequence[Conversation], logs: Path) -> None:
            async with lanes:
                logs.mkdir()
                found = await run(_start(*case), pool, plan, logs)
            for kind, value in found.items():
                runs.setdefault(_key(*case, kind), []).append(value)
            progress.step(f"{PROGRAMS[case[0]]}, {case[1]}")

        for turn in range(1 if options.quick else ROUNDS):
            plan = conversations(shipped_sections(), pool.workload, turn)
            async with asyncio.TaskGroup() as group:
                for case in cases:
                    logs = Path(name) / f"{case[0]}-{case[1]}-{turn}"
                    group.create_task(play(case, plan, logs))
    figures = [
        Figure(
            key=_key(*case, kind),
            says=f"{PROGRAMS[case[0]]}, {case[1]}: {says}",
            unit=unit,
            runs=tuple(runs[_key(*case, kind)]),
        )
        for case in cases
        for kind, says, unit in KINDS
    ]
    return Report(
        name="replicas-programs",
        figures=(*figures, *_ratios(runs)),
        grids=(_grid(cases),),
        notes=NOTES,
    )


def _ratios(runs: dict[str, list[float]]) -> list[Figure]:
    return [
        Figure(
            key=f"{key}_{count}",
            says=f"{PROGRAMS['told']}, {count}: {says}",
            unit="",
            runs=tuple(
                several / one
                for several, one in zip(
                    runs[_key("told", count, kind)], runs[_key("told", 1, kind)], strict=True
                )
            ),
            budget=budget,
        )
        for count in COUNTS[1:]
        for key, kind, says, budget in _RATIOS
    ]


def _grid(cases: Sequence[tuple[str, int]]) -> Grid:
    return Grid(
        title="medians of the runs",
        columns=tuple(says for _, says, _ in KINDS),
        rows=tuple(
            (f"{PROGRAMS[program]}: {count}", tuple(_key(program, count, k) for k, *_ in KINDS))
            for program, count in cases
        ),
    )


def _key(program: str, count: int, kind: str) -> str:
    return f"{program}_{count}_{kind}"
