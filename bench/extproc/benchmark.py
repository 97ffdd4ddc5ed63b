"""Runs the measurements of `extproc` one after another and says what it is at."""

import tempfile
from pathlib import Path

from bench.extproc import cpu, footprint, latency, streams
from bench.extproc.figures import figures
from bench.extproc.samples import FULL, QUICK, Effort, Samples
from bench.extproc.stack import MAIN, running
from bench.figures import Report
from bench.options import Options
from bench.progress import Progress

PODS = 10
OTHER_PODS = (1, 100)

NOTES = (
    "Alone: one stack at a time, picker and floor in turn. Other rows: five stacks at once.",
    "Floor: the same transport with a handler that parses the body and names a fixed endpoint.",
    "Picker: `epp serve` with its defaults, on either transport, plaintext, scraping its pods.",
    "CPU is user and system time of the picker's processes, less what they use while idle.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Measure everything. Raises `MeasurementFailed` if a request was not answered."""
    effort = QUICK if options.quick else FULL
    samples = Samples()
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        log_dir = Path(name)
        progress.step("start and import")
        await footprint.start_and_import(effort, log_dir, samples)
        async with running(log_dir, PODS) as stack:
            progress.step(f"idling with {PODS} pods")
            await footprint.idling(stack, PODS, effort, samples)
            progress.step("memory with 1,000 streams")
            await footprint.memory(stack, samples)
            progress.step("CPU per request, closed loop")
            await cpu.per_request(stack, effort, samples)
            progress.step("CPU per streamed chunk")
            await cpu.per_chunk(stack, effort, samples)
            progress.step("CPU per streamed answer, watched or left")
            await streams.per_stream(stack, PODS, effort, log_dir, samples)
            progress.step("added latency, open loop")
            await latency.added(stack, effort, samples)
            progress.step("added latency beside 20 MB bodies")
            await latency.added_beside_large(stack, effort, samples)
        progress.step("CPU per request, one stack at a time")
        await cpu.alone(PODS, effort, log_dir, samples)
        for pods in OTHER_PODS:
            await _among(pods, effort, log_dir, samples, progress)
    return Report(name="extproc", figures=figures(samples), notes=NOTES)


async def _among(
    pods: int, effort: Effort, log_dir: Path, samples: Samples, progress: Progress
) -> None:
    """Idling and CPU per request in a stack of its own with this many endpoints."""
    (place := log_dir / f"among-{pods}").mkdir()
    async with running(place, pods, MAIN) as stack:
        progress.step(f"idling with {pods} pods")
        await footprint.idling(stack, pods, effort, samples)
        progress.step(f"CPU per request among {pods} pods")
        await cpu.among(stack, pods, effort, samples)
