"""Where the picker's time goes, by py-spy: samples of the running product behind a real Envoy.

    python -m bench profile

py-spy may have to be root to look into a process that it did not start.
"""

import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench.chart import FAINT, drawing, png
from bench.child import MeasurementFailed
from bench.extproc.cpu import CONNECTIONS, SIZES
from bench.extproc.load import Order
from bench.extproc.stack import MAIN, Stack, running
from bench.extproc.workload import Shape
from bench.figures import Grid, Report, single
from bench.options import Options
from bench.progress import Progress
from epp.compiled import MODULES

_PODS = 10
_RATE = 400
_MAIN_THREAD = re.compile(r"thread \(\w+\): MainThread;")
_IDLE = "epoll_pwait"


def _compiled(package: str) -> str:
    """Return the pattern of what mypyc calls the functions of a package's compiled modules."""
    names = [
        name.rpartition(".")[2]
        for name, compiler in MODULES.items()
        if compiler == "mypyc" and name.startswith(f"epp.{package}.")
    ]
    return f"CPyDef_({'|'.join(names)})___|epp/{package.replace('.', '/')}/"


PARTS: Mapping[str, str] = {
    "sockets": r"^(write|writev|read|recv|send|sendmsg) \(libc",
    "transport": r"epp/adapters/extproc|libnghttp2",
    "codec": r"epp/protocol/extproc/(codec|protobuf|\w+\.pxi)|_message\.abi3",
    "body": _compiled("protocol.bodies"),
    "exchange": _compiled("protocol.extproc"),
    "policy": _compiled("policy"),
    "model": _compiled("model"),
    "telemetry": f"{_compiled('adapters.telemetry')}|{_compiled('app')}",
}
"""What a sample counts for: the first of these that the innermost frame of any is of."""
REST = "event loop and the rest"
NOTES = (
    "Shares of samples in which its main thread was at work: closed loop, 16 connections.",
    "A sample counts for the innermost frame that is of one of the parts.",
    "Sampling stops the process now and then: shares are right, times would not be.",
)
_COLOURS = ("#495057", "#868e96", "#ced4da", "#fab005", "#fd7e14", "#d9480f", "#1971c2", "#74c0fc")


async def measure(progress: Progress, options: Options) -> Report:
    """Sample the product at every size of body. Raises `MeasurementFailed` without py-spy."""
    seconds = 5 if options.quick else 15
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        async with running(Path(name), _PODS) as stack:
            for size in SIZES:
                progress.step(f"sampling at {size}")
                stacks = await _sampled_under_load(stack, size, seconds, Path(name))
                counts[size] = counted(stacks)
    return report(counts)


def report(counts: Mapping[str, Counter[str]]) -> Report:
    """Tell the shares of samples, by size of body and by part, and how many samples there were."""
    shares = {size: shares_of(found) for size, found in counts.items()}
    figures = [
        single(f"{part}_{size}", f"{part}, {size}", "%", share)
        for size, found in shares.items()
        for part, share in found.items()
    ]
    figures += [
        single(f"samples_{size}", f"samples, {size}", "", found.total())
        for size, found in counts.items()
    ]
    names = (*PARTS, REST, "samples")
    rows = tuple((name, tuple(f"{name}_{size}" for size in counts)) for name in names)
    grid = Grid("share of the picker's CPU", tuple(counts), rows)
    return Report(
        name="profile", figures=tuple(figures), notes=NOTES, grids=(grid,), picture=_draw(shares)
    )


async def _sampled_under_load(stack: Stack, size: str, seconds: int, folder: Path) -> str:
    route = MAIN[0]
    order = Order(
        port=stack.port[route],
        shape=Shape(size=SIZES[size]),
        seconds=seconds + 2.0,
        connections=CONNECTIONS,
    )
    load = asyncio.create_task(stack.load.run(order))
    await asyncio.sleep(1.0)  # connections open, caches fill
    stacks = await _sampled(stack.meter[route].pid, seconds, folder / f"{size}.txt")
    await load
    return stacks


async def _sampled(pid: int, seconds: int, path: Path) -> str:
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        raise MeasurementFailed("py-spy is not installed (the extra dev has it)")
    child = await asyncio.create_subprocess_exec(
        *(str(spy), "record", "--native", "--threads", "--format", "raw", "--output", str(path)),
        *("--pid", str(pid), "--duration", str(seconds), "--rate", str(_RATE)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await child.communicate()
    if child.returncode or not path.exists():
        raise MeasurementFailed(f"py-spy cannot look into the picker: {said.decode().strip()}")
    return path.read_text(encoding="utf-8")


def shares_of(counts: Counter[str]) -> dict[str, float]:
    """Return the share of each part, in per cent of all samples."""
    total = max(1, counts.total())
    return {part: 100 * counts[part] / total for part in (*PARTS, REST)}


def counted(stacks: str) -> Counter[str]:
    """Count samples of the main thread by part.

    A sample is a line `thread (ID): NAME;outermost;...;innermost COUNT`. The main thread does all
    work on requests; py-spy takes others for busy that wait at a lock of the C library.
    """
    counts: Counter[str] = Counter()
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        if _MAIN_THREAD.match(frames) and _IDLE not in frames.rpartition(";")[2]:
            counts[_part_of(frames.split(";"))] += int(count)
    return counts


def _part_of(frames: list[str]) -> str:
    for frame in reversed(frames):
        for part, pattern in PARTS.items():
            if re.search(pattern, frame):
                return part
    return REST


def _draw(shares: Mapping[str, Mapping[str, float]]) -> bytes:
    with drawing(8.2, 2.6) as figure:
        axes = figure.subplots()
        left = [0.0] * len(shares)
        for part, colour in zip((*PARTS, REST), (*_COLOURS, FAINT), strict=True):
            widths = [found[part] for found in shares.values()]
            axes.barh([*shares], widths, left=left, color=colour, label=part, height=0.62)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set(xlabel="% of the picker's CPU", xlim=(0, 100))
        figure.legend(loc="outside upper center", ncols=5, frameon=False)
        return png(figure)
