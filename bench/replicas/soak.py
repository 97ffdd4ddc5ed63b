"""Replicas behind one Envoy for half an hour, while endpoints come and go, and their memory.

python -m bench soak-replicas [--quick]
"""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import yaml
from msgspec.structs import replace

from bench.accounting import resident_mb
from bench.child import MeasurementFailed
from bench.extproc.cpu import SIZES
from bench.extproc.generator import Generator
from bench.extproc.load import Order, Result
from bench.extproc.stack import TRANSPORT, before, envoy, start_backends
from bench.extproc.workload import Shape
from bench.figures import Budget, Figure, Report
from bench.options import Options
from bench.progress import Progress
from bench.replicas.killed import REPLICAS, Replicas
from bench.soak import SETTLED, Sample, draw, growth

_SECONDS, _QUICK_SECONDS = 1800.0, 120.0
_RATE = 300.0
_ENDPOINTS, _CHANGING = 120, 20
_CHANGE_S = 15.0
"""How long endpoints stay away, and then are there."""
_SLICE_S = 30.0
_CONNECTIONS = 16
_LAST_LINES = 20
_NOTES = (
    (
        f"{REPLICAS} replicas behind one Envoy, {_RATE:g} requests a second at random moments:"
        f" chats of 20 KB, JSON responses. Of {_ENDPOINTS} endpoints {_CHANGING} are taken from the"
        f" file each {2 * _CHANGE_S:g} s, for {_CHANGE_S:g} s. An answer other than 200 ends it."
    ),
    f"Growth is that of a straight line from {SETTLED:.0%} of the run to its end.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Send them. Raises `MeasurementFailed` if one was not answered with 200."""
    seconds = _QUICK_SECONDS if options.quick else _SECONDS
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as folder:
        results, samples, faults = await _play(seconds, Path(folder), progress)
    settled = [[each for each in of_one if each[0] >= seconds * SETTLED] for of_one in samples]
    grown = [growth(each) for each in settled]
    budget = None if options.quick else Budget(most=2)
    waits = sorted(each for result in results for each in result.first_byte_ms)
    p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    full, end = [each[0][1] for each in settled], [each[-1][1] for each in settled]
    rows: tuple[tuple[str, str, str, Sequence[float], Budget | None], ...] = (
        ("requests", "requests answered, all with 200", "", [len(waits)], None),
        ("faults", "errors that pickers met within", "", faults, Budget(most=0)),
        ("head_p50_ms", "until the response begins", "ms", [p50], None),
        ("head_p99_ms", "the slowest of a hundred", "ms", [p99], None),
        ("rss_mb_settled", "memory of each replica once caches are full", "MB", full, None),
        ("rss_mb_end", "memory of each at the end", "MB", end, None),
        ("growth_mb", "growth of each from there to the end", "MB", grown, budget),
    )
    return Report(
        name="soak-replicas",
        figures=tuple(
            Figure(key=key, says=says, unit=unit, runs=tuple(map(float, runs)), budget=most)
            for key, says, unit, runs, most in rows
        ),
        notes=_NOTES,
        picture=draw(samples, seconds * SETTLED, "seconds"),
    )


async def _play(
    seconds: float, folder: Path, progress: Progress
) -> tuple[list[Result], list[list[Sample]], list[float]]:
    async with AsyncExitStack() as stack:
        backends, ports = await start_backends(_ENDPOINTS, folder)
        stack.push_async_callback(backends.stop)
        load = await stack.enter_async_context(Generator())
        replicas = Replicas(ports, TRANSPORT, folder)
        await stack.enter_async_context(replicas.running())
        settings = replace(before(ports, epp_port=0), pickers=replicas.ports)
        port = await stack.enter_async_context(envoy("soak", folder, settings))
        changing = asyncio.create_task(_change(folder / "endpoints.yaml"))
        stack.callback(changing.cancel)
        results: list[Result] = []
        samples: list[list[Sample]] = [[] for _ in replicas.processes]
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < seconds:
            try:
                results.append(await load.run(_order(port, len(results))))
            except MeasurementFailed as failed:
                said = (folder / "envoy-soak.log").read_text().splitlines()[-_LAST_LINES:]
                raise MeasurementFailed(
                    "\n".join((f"{failed}; Envoy's last lines:", *said))
                ) from None
            for replica, of_one in zip(replicas.processes, samples, strict=True):
                of_one.append((loop.time() - began, resident_mb(replica.pid)))
            memory = ", ".join(f"{of_one[-1][1]:.0f}" for of_one in samples)
            progress.step(f"{loop.time() - began:.0f} of {seconds:.0f} s, {memory} MB")
        faults = [await _faults(url) for url in replicas.metrics_urls]
    return results, samples, faults


async def _faults(url: str) -> float:
    """Return how often something failed that requests are not to feel, by a page of metrics."""
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        lines = (await response.text()).splitlines()
    return sum(
        float(each.split()[-1]) for each in lines if each.startswith("warmpick_faults_total")
    )


def _order(port: int, seed: int) -> Order:
    return Order(
        port=port,
        shape=Shape(size=SIZES["20k"]),
        seconds=_SLICE_S,
        connections=_CONNECTIONS,
        rate=_RATE,
        seed=seed,
    )


async def _change(path: Path) -> None:
    """Take endpoints from a file and add them again, others each time, until cancelled."""
    whole = path.read_text()
    endpoints = yaml.safe_load(whole)["endpoints"]
    first = 0
    while True:
        left = [*endpoints[first + _CHANGING :], *endpoints[:first]]
        for text in (yaml.safe_dump({"endpoints": left}), whole):
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)
            await asyncio.sleep(_CHANGE_S)
        first = (first + _CHANGING) % len(endpoints)
