"""Routers of the field, as their own programs, on the same conversations in wall-clock time.

python -m bench programs

smg is taken from .cache/peers, where `make peers` puts it; so is `llm-d-router`, the endpoint
picker of that name, if somebody has put it there. What is not there is not played.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import aiohttp
import msgspec
import yaml

from bench.accounting import cpu_seconds
from bench.chart import bars, drawing, png
from bench.child import MeasurementFailed
from bench.envoy import EnvoySettings, start_envoy
from bench.extproc.pickers import endpoints_file
from bench.extproc.stack import rotated
from bench.figures import Figure, Grid, Report
from bench.options import Options
from bench.peers.routers import ROOT
from bench.progress import Progress
from epp.demo.client import Player
from epp.demo.figures import Sample, summarize
from epp.demo.pools import SPEED, DemoPool, Size, choose_pool
from epp.demo.testbed import start_servers
from epp.demo.workload import Conversation, conversations, shipped_sections
from epp.gateway.processes import Process, free_port, spawn
from tests.llm_d_router_configs import CHART_PLUGINS

_PEERS = ROOT / ".cache" / "peers"
SMG = _PEERS / "bin" / "smg"
LLM_D_ROUTER = _PEERS / "llm-d-router"
ROUNDS = 3
_HOST = "127.0.0.1"
_READY_S, _POLL_S = 60.0, 0.1
NOTES = (
    (
        "Four simulated model servers, started anew for each run, and the conversations of"
        " `epp demo`: the same for all programs of a round, others in each round."
    ),
    (
        "Cores are those of the router and its proxy, work without requests included. smg is both"
        " in one; least request is Envoy alone."
    ),
    "Load, model servers and routers are on the same machine.",
)


class Front(NamedTuple):
    """What a run is played through: where clients ask, and its processes."""

    url: str
    processes: tuple[Process, ...]


Start = Callable[[Sequence[str], Path], Awaitable[Front]]
"""Starts a router before model servers (`ip:port`), with its log in a folder."""


async def least_request(targets: Sequence[str], logs: Path) -> Front:
    """Start Envoy, which picks the server with the fewest requests under way of two."""
    settings = EnvoySettings(endpoints=tuple(targets), routing="least_request")
    return Front(settings.url, (await start_envoy(settings, log_dir=logs),))


async def _smg(targets: Sequence[str], logs: Path) -> Front:
    port = free_port()
    process = await spawn("smg", smg_argv(port, targets), log_dir=logs)
    return Front(f"http://{_HOST}:{port}", (process,))


def smg_argv(port: int, targets: Sequence[str]) -> list[str]:
    """Return the command that starts smg with its cache-aware policy."""
    argv = [str(SMG), "launch", "--policy", "cache_aware", "--host", _HOST, "--port", str(port)]
    argv += ["--prometheus-host", _HOST, "--prometheus-port", str(free_port())]
    return [*argv, "--worker-urls", *(f"http://{target}" for target in targets)]


async def _llm_d_router(targets: Sequence[str], logs: Path) -> Front:
    """Start llm-d-router's endpoint picker with its chart's defaults, and Envoy before it."""
    ports = [int(target.rpartition(":")[2]) for target in targets]
    endpoints, config = endpoints_file(ports, logs / "endpoints.yaml"), logs / "config.yaml"
    chosen = yaml.safe_load(CHART_PLUGINS)
    discovery = {"type": "file-discovery", "parameters": {"path": str(endpoints)}}
    chosen["plugins"].append(discovery)
    chosen["dataLayer"] = {"discovery": {"pluginRef": discovery["type"]}}
    config.write_text(yaml.safe_dump(chosen), encoding="utf-8")
    grpc_port = free_port()
    argv = [str(LLM_D_ROUTER), "--pool-name=bench", "--pool-namespace=bench"]
    argv += [f"--config-file={config}", f"--grpc-port={grpc_port}"]
    argv += [f"--grpc-health-port={free_port()}", f"--metrics-port={free_port()}"]
    argv += ["--secure-serving=false", "--metrics-endpoint-auth=false", "--tracing=false"]
    argv += ["--zap-encoder=json"]
    picker = await spawn("llm-d-router", argv, log_dir=logs)
    settings = EnvoySettings(endpoints=tuple(targets), epp_port=grpc_port)
    return Front(settings.url, (picker, await start_envoy(settings, log_dir=logs)))


async def warmpick(targets: Sequence[str], logs: Path) -> Front:
    """Start `epp up` with its defaults."""
    port = free_port()
    flags = (f"--port={port}", f"--metrics-port={free_port()}", "--drain-timeout=0")
    argv = [sys.executable, "-m", "epp", "up", *flags, *(f"http://{target}" for target in targets)]
    return Front(f"http://{_HOST}:{port}", (await spawn("up", argv, log_dir=logs),))


PROGRAMS: Mapping[str, tuple[str, Start]] = {
    "least_request": ("Envoy, least request", least_request),
    "llm_d_router": ("llm-d-router, its chart's default", _llm_d_router),
    "smg": ("smg 1.13.0, cache_aware", _smg),
    "warmpick": ("`epp up`", warmpick),
}
KINDS = (
    ("ttft", "mean TTFT", "ms"),
    ("ttft_p50", "TTFT p50", "ms"),
    ("ttft_p99", "TTFT p99", "ms"),
    ("whole", "mean of the whole answer", "ms"),
    ("cached", "found cached", "%"),
    ("cores", "cores", ""),
)


_DRAWN = (("ttft", "mean TTFT"), ("whole", "mean of the whole answer"))


class Fleet(NamedTuple):
    """Model servers before which all programs are played: every second one has more flags."""

    key: str
    says: str
    every_second: tuple[str, ...]


FLEETS = (
    Fleet("", "equal servers", ()),
    Fleet(
        "_unequal",
        "every second server 2.5 times slower, no router is told",
        ("--speed", str(SPEED / 2.5)),
    ),
)


async def measure(progress: Progress, options: Options) -> Report:
    """Play the conversations through each program in turn. Raises what `run` does."""
    runs: dict[str, list[float]] = {}
    programs = [each for each in PROGRAMS if each not in missing()]
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        folder = Path(name)
        pool = choose_pool("simulator", Size(quick=options.quick), folder)
        for turn in range(1 if options.quick else ROUNDS):
            plan = conversations(shipped_sections(), pool.workload, turn)
            for program, fleet in product(rotated(programs, turn), FLEETS):
                says, start = PROGRAMS[program]
                progress.step(f"round {turn + 1}: {says}, {fleet.says}")
                logs = folder / f"{program}{fleet.key}-{turn}"
                logs.mkdir()
                servers = msgspec.structs.replace(pool, every_second=fleet.every_second)
                found = await run(start, servers, plan, logs)
                for kind, value in found.items():
                    runs.setdefault(f"{program}{fleet.key}_{kind}", []).append(value)
    figures = [
        Figure(
            key=f"{program}{fleet.key}_{kind}",
            says=f"{PROGRAMS[program][0]}, {fleet.says}: {says}",
            unit=unit,
            runs=tuple(runs[f"{program}{fleet.key}_{kind}"]),
        )
        for fleet, program in product(FLEETS, programs)
        for kind, says, unit in KINDS
    ]
    return Report(
        name="programs",
        figures=tuple(figures),
        grids=tuple(_grid(fleet, programs) for fleet in FLEETS),
        notes=(*NOTES, *(f"Not played: {each} is not there." for each in missing().values())),
        picture=draw({each.key: each.value for each in figures}),
    )


def missing() -> Mapping[str, Path]:
    """Return the programs that are not there, with the places where they would be."""
    places = {"smg": SMG, "llm_d_router": LLM_D_ROUTER}
    return {each: place.relative_to(ROOT) for each, place in places.items() if not place.exists()}


def draw(found: Mapping[str, float]) -> bytes:
    """Draw the mean times of the programs that were played, as bars, of figures by their keys."""
    programs = [each for each in PROGRAMS if f"{each}_ttft" in found]
    names = [PROGRAMS[each][0].strip("`") for each in programs]
    with drawing(8.2, 2.4) as figure:
        shown = figure.subplots(1, len(_DRAWN), sharey=True)
        for axes, (kind, says) in zip(shown, _DRAWN, strict=True):
            axes.set_title(f"{says}, ms")
            for place, fleet in enumerate(FLEETS):
                lengths = [found[f"{each}{fleet.key}_{kind}"] for each in programs]
                bars(axes, lengths, place, programs.index("warmpick"), "{:,.0f}")
            axes.set_yticks(range(len(programs)), names)
            axes.margins(x=0.14)
            axes.grid(visible=False)
        shown[0].invert_yaxis()
        figure.supxlabel("left is faster; pale: every second server is 2.5 times slower", size=9)
        return png(figure)


def _grid(fleet: Fleet, programs: Sequence[str]) -> Grid:
    return Grid(
        title=f"medians of the runs: {fleet.says}",
        columns=tuple(says for _, says, _ in KINDS),
        rows=tuple(
            (PROGRAMS[program][0], tuple(f"{program}{fleet.key}_{kind}" for kind, *_ in KINDS))
            for program in programs
        ),
    )


async def run(
    start: Start,
    pool: DemoPool,
    plan: Sequence[Conversation],
    logs: Path,
    ready_s: float = _READY_S,
) -> dict[str, float]:
    """Play the conversations through one program before fresh servers; return figures by kind.

    Raises `MeasurementFailed` if a request fails, or none is answered within `ready_s` seconds.
    """
    samples: list[Sample] = []
    async with AsyncExitStack() as stack:
        _, targets = await start_servers(pool, logs, stack)
        url, processes = await start(targets, logs)
        for process in processes:
            stack.push_async_callback(process.stop)
        await _ready(url, pool.model, ready_s)
        began, before = time.monotonic(), _cpu_seconds(processes)
        await Player(url, pool.model, samples.append).play(plan)
        cores = (_cpu_seconds(processes) - before) / (time.monotonic() - began)
    if failed := [sample.error for sample in samples if sample.error]:
        raise MeasurementFailed(f"{len(failed)} requests failed, the first: {failed[0]}")
    figures = summarize(samples, targets, pool.block_size)
    return {
        "ttft": 1e3 * figures.ttft_mean,
        "ttft_p50": 1e3 * figures.ttft_p50,
        "ttft_p99": 1e3 * figures.ttft_p99,
        "whole": 1e3 * fmean(sample.seconds for sample in samples),
        "cached": 100 * figures.cached_ratio,
        "cores": cores,
    }


def _cpu_seconds(processes: Sequence[Process]) -> float:
    return sum(cpu_seconds(process.pid) for process in processes)


async def _ready(url: str, model: str, seconds: float) -> None:
    """Wait until a short chat is answered. Raises `MeasurementFailed` if none is."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    loop = asyncio.get_running_loop()
    end, status = loop.time() + seconds, 0
    async with aiohttp.ClientSession() as client:
        while status != 200:
            if loop.time() > end:
                raise MeasurementFailed(f"{url} does not serve within {seconds:g} s: {status}")
            try:
                async with client.post(f"{url}/v1/chat/completions", json=asked) as response:
                    status = response.status
            except aiohttp.ClientError:
                status = 0
            await asyncio.sleep(_POLL_S)
