"""`python -m bench NAME [--quick] [--json] [--write-docs]`; without a name, the list of them."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from rich.console import Console

from bench import docs, table
from bench.extproc.benchmark import measure as measure_extproc
from bench.figures import Report
from bench.machine import describe
from bench.progress import Progress
from epp.errors import WarmpickError


class Measure(Protocol):
    """A benchmark: tells its progress and returns its figures."""

    def __call__(self, progress: Progress, *, quick: bool) -> Awaitable[Report]: ...


BENCHMARKS: dict[str, tuple[str, Measure]] = {
    "extproc": (
        "CPU, latency and memory of the picker behind a real Envoy, beside its floor",
        measure_extproc,
    ),
}
EVERYTHING = "all"
_TERMINAL_COLUMNS = 160


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of `--json`: medians by key, with what is needed to reproduce them."""

    name: str
    figures: dict[str, float]
    machine: str
    command: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line names; 0 unless something could not be measured."""
    options = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else _TERMINAL_COLUMNS, highlight=False)
    if options.name is None:
        for name, (sentence, _) in BENCHMARKS.items():
            console.print(f"{name:10} {sentence}")
        return 0
    try:
        for name in BENCHMARKS if options.name == EVERYTHING else [options.name]:
            _run(name, options, console)
    except WarmpickError as error:
        Console(stderr=True).print(f"bench: {error}", style="red", markup=False)
        return 1
    return 0


def _run(name: str, options: argparse.Namespace, console: Console) -> None:
    _, measure = BENCHMARKS[name]
    machine, command = describe(), f"python -m bench {name}{' --quick' if options.quick else ''}"
    report = asyncio.run(_awaited(lambda: measure(Progress(), quick=options.quick)))
    table.show(report, console)
    if options.write_docs:
        docs.write(name, table.markdown(report, machine=machine, command=command))
    if options.json:
        figures = {figure.key: round(figure.value, 6) for figure in report.figures}
        line = Line(name=name, figures=figures, machine=machine, command=command)
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


async def _awaited(work: Callable[[], Awaitable[Report]]) -> Report:
    return await work()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="measure Warmpick")
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, EVERYTHING], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="the same work, fewer repetitions")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--write-docs", action="store_true", help="refresh the table in docs/performance.md"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
