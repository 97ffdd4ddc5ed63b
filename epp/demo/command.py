"""The command `epp demo`: its options and exit status. Imports nothing slow."""

import argparse
import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final, TypeVar

from epp.demo.requirements import missing
from epp.errors import WarmpickError
from epp.printable import printable_lines

FAILED: Final = 1
MISSING: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143

T = TypeVar("T")
Number = TypeVar("Number", int, float)

DESCRIPTION = """\
Start Envoy, model servers and the picker on loopback, play the same conversations first with
round robin and then with least-ttft, and compare. Needs no root, no network and no GPU; takes
about a minute. Exit status: 0 compared; 1 something failed; 3 something is missing (printed with
the way to get it); 130 or 143 interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--engine",
        choices=("simulator", "vllm"),
        default="simulator",
        help="model servers: simulated ones, or real vLLM on the CPU with a tiny model "
        "(default: %(default)s)",
    )
    add("--servers", type=_count, metavar="N", help="how many (default: 4; with vllm 2)")
    add("--seconds", type=_duration, metavar="S", help="conversations begin for this long")
    add("--conversations", type=_count, metavar="N", help="how many (default: by --seconds)")
    add("--seed", type=int, default=1, help="seed of the workload (default: %(default)s)")
    add("--quick", action="store_true", help="a shorter run with less certain figures")
    add(
        "--report",
        type=Path,
        default=Path("warmpick-demo.html"),
        metavar="PATH",
        help="the HTML report (default: %(default)s, in a temporary folder if the current one "
        "is not writable)",
    )
    add("--json", action="store_true", help="print the figures as JSON, as the last line")
    add("--keep", action="store_true", help="leave the last set-up running until Ctrl-C")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and return its exit status."""
    gaps = missing(arguments.engine)
    if gaps:
        print(*gaps, sep="\n", file=sys.stderr)
        return MISSING
    # Imported here, after `missing`: it imports the requirements.
    from epp.demo.show import run_demo  # noqa: PLC0415 - see above

    try:
        with asyncio.Runner() as runner:
            return runner.run(_cancel_on_sigterm(run_demo(arguments)))
    except (KeyboardInterrupt, asyncio.CancelledError) as end:
        print("\nInterrupted; everything was stopped.", file=sys.stderr)
        return INTERRUPTED if isinstance(end, KeyboardInterrupt) else TERMINATED
    except WarmpickError as error:
        print(f"The demo failed: {printable_lines(str(error))}", file=sys.stderr)
        return FAILED


async def _cancel_on_sigterm(work: Coroutine[None, None, T]) -> T:
    """Run `work`; SIGTERM cancels it, as Ctrl-C does, so that its processes are stopped."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _count(text: str) -> int:
    return _positive(int, text, "whole number")


def _duration(text: str) -> float:
    return _positive(float, text, "number")


def _positive(kind: Callable[[str], Number], text: str, name: str) -> Number:
    with contextlib.suppress(ValueError, OverflowError):
        if 0 < (number := kind(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"`{text}` is not a {name} above 0")
