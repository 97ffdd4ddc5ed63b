"""What the picker takes when it has little to do: start, import, idling, memory."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench.accounting import idle_cores, resident_mb
from bench.child import MeasurementFailed
from bench.extproc.cpu import SIZES
from bench.extproc.load import Order
from bench.extproc.pickers import READY_S, Product, endpoints_file
from bench.extproc.samples import Effort, Samples
from bench.extproc.stack import MAIN, TRANSPORT, Route, Stack, start_backends
from bench.extproc.workload import Shape

MODULE = "epp.app.picker"
_POLL_S = 0.005
SETTLE_S = 3.0
STREAMS = 1_000
STREAM_SHAPE = Shape(size=SIZES["20k"], chunks=30, interval_ms=200.0)
STREAMS_PER_S = 400.0
SAMPLE_S = 0.2


async def start_and_import(effort: Effort, log_dir: Path, samples: Samples) -> None:
    """Seconds from exec to a ready product with 10 pods, and of importing it in a new process."""
    async with AsyncExitStack() as exits:
        backends, ports = await start_backends(10, log_dir)
        exits.push_async_callback(backends.stop)
        endpoints = endpoints_file(ports, log_dir / "endpoints-start.yaml")
        for _ in range(effort.rounds):
            samples.add("import_s", await _import_seconds())
            samples.add("ready_s", await _ready_seconds(Product(endpoints, TRANSPORT)))


async def _import_seconds() -> float:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "importtime", "-c", f"import {MODULE}"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await child.communicate()
    lines = [line.split("|") for line in said.decode().splitlines()]
    for line in reversed(lines):
        if line[-1].strip() == MODULE:
            return int(line[1]) / 1e6
    raise MeasurementFailed(f"{MODULE} cannot be imported")


async def _ready_seconds(product: Product) -> float:
    started = time.perf_counter()
    child = await asyncio.create_subprocess_exec(
        *product.argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(READY_S):
            while child.returncode is None and not await _ready(product.ready_url):
                await asyncio.sleep(_POLL_S)
        if child.returncode is not None:
            raise MeasurementFailed(f"the product ended with {child.returncode} at its start")
        return time.perf_counter() - started
    except TimeoutError:
        raise MeasurementFailed(f"the product is not ready after {READY_S:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _ready(url: str) -> bool:
    host, _, port = url.split("/")[2].partition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


async def idling(stack: Stack, pods: int, effort: Effort, samples: Samples) -> None:
    """Cores used while nobody asks; what is measured later has it taken off."""
    await asyncio.sleep(SETTLE_S)
    runs: dict[Route, list[float]] = {route: [] for route in stack.pickers}
    for _ in range(effort.slow_rounds):
        pids = [stack.meter[route].pid for route in stack.pickers]
        seen = await asyncio.gather(*(idle_cores(pid, effort.idle_s) for pid in pids))
        for route, cores in zip(stack.pickers, seen, strict=True):
            runs[route].append(cores)
    for cores in runs[TRANSPORT]:
        samples.add(f"idle_cores_{pods}_pods", cores)
    for route in stack.pickers:
        stack.meter[route].idle_cores = sum(runs[route]) / len(runs[route])


async def memory(stack: Stack, samples: Samples) -> None:
    """Most resident memory while 1,000 streams of 20 KB prompts are open at once, one run.

    A single run: memory that a second one finds already taken would say nothing.
    """
    for route in MAIN:
        order = Order(
            port=stack.port[route],
            shape=STREAM_SHAPE,
            seconds=READY_S,
            connections=0,
            rate=STREAMS_PER_S,
            steady=True,
            limit=STREAMS,
        )
        run = asyncio.create_task(stack.load.run(order))
        most = 0.0
        while not run.done():
            most = max(most, resident_mb(stack.meter[route].pid))
            await asyncio.sleep(SAMPLE_S)
        result = await run
        if result.peak < STREAMS:
            raise MeasurementFailed(f"only {result.peak} of {STREAMS} streams were open at once")
        samples.add("rss_mb_1000_streams", most, route)
