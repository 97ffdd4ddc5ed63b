"""`python -m bench NAME [--quick] [--json] [--write-docs]`; without a name, the list of them."""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol, get_args

import msgspec
from rich.console import Console

from bench import docs, table
from bench.accuracy.benchmark import measure as measure_accuracy
from bench.accuracy.engines import ENGINES
from bench.accuracy.identities import Identity
from bench.adversary.attack import Group
from bench.adversary.benchmark import measure as measure_adversary
from bench.exchange.benchmark import fault as exchange_fault
from bench.exchange.benchmark import measure as measure_exchange
from bench.extproc.benchmark import measure as measure_extproc
from bench.figures import Report
from bench.freshness import measure as measure_freshness
from bench.hold.benchmark import measure as measure_hold
from bench.index.benchmark import measure as measure_index
from bench.kube.benchmark import measure as measure_kube
from bench.machine import describe, uncompiled
from bench.options import Options
from bench.pick import measure as measure_pick
from bench.profiling import measure as measure_profile
from bench.programs import measure as measure_programs
from bench.progress import Progress
from bench.published import measure as measure_published
from bench.replay import measure as measure_replay
from bench.replicas.benchmark import measure as measure_replicas
from bench.replicas.programs import measure as measure_replicas_programs
from bench.replicas.soak import measure as measure_soak_replicas
from bench.soak import measure as measure_soak
from bench.trace import measure as measure_trace
from bench.traces import measure as measure_traces
from bench.validation.benchmark import measure as measure_validation
from bench.workers import measure as measure_workers
from epp.adapters.extproc.transports import Transport
from epp.errors import ConfigError, WarmpickError
from epp.protocol.extproc.observation import Observation


class Benchmark(Protocol):
    """A benchmark: tells its progress and returns its figures."""

    def __call__(self, progress: Progress, options: Options) -> Awaitable[Report]: ...


BENCHMARKS: dict[str, tuple[str, Benchmark]] = {
    "extproc": (
        "CPU, latency and memory of the picker behind a real Envoy, beside its floor",
        measure_extproc,
    ),
    "pick": (
        "CPU of a decision by the number of endpoints, and of a whole exchange without sockets",
        measure_pick,
    ),
    "exchange": (
        "instructions of a request, a chunk, a start and an idle second, by callgrind",
        measure_exchange,
    ),
    "index": (
        "hashing prompts, matching and changing what is held: compiled beside source",
        measure_index,
    ),
    "kube": (
        "a pool of 1,000 pods in Kubernetes: the start, changes, doing nothing",
        measure_kube,
    ),
    "profile": (
        "where the picker's time goes, by py-spy, behind a real Envoy",
        measure_profile,
    ),
    "trace": (
        "the calls of one exchange, module by module, in pure Python",
        measure_trace,
    ),
    "soak": (
        "a million requests through Envoy, and what the picker's memory does meanwhile",
        measure_soak,
    ),
    "accuracy": (
        "predicted against actual cached tokens, on real vLLM under eviction pressure",
        measure_accuracy,
    ),
    "freshness": (
        "time to first token by reported load, once a second and every 50 ms, in virtual time",
        measure_freshness,
    ),
    "replay": (
        "a whole run of `epp replay`, and what recording and a shadow cost a request",
        measure_replay,
    ),
    "traces": (
        "what a trace costs a request that is sampled or not, and what keeping its decision costs",
        measure_traces,
    ),
    "hold": (
        "requests that wait in the picker: three loads, a flood, batches, in virtual time",
        measure_hold,
    ),
    "replay-validation": (
        "policies on real vLLM and in replay, side by side",
        measure_validation,
    ),
    "replicas": (
        "several pickers that tell each other what they see: what they decide, and what it costs",
        measure_replicas,
    ),
    "soak-replicas": (
        "half an hour of requests over replicas, while endpoints come and go",
        measure_soak_replicas,
    ),
    "replicas-programs": (
        "one to eight replicas behind Envoy, told and not, and smg's mesh, in wall-clock time",
        measure_replicas_programs,
    ),
    "workers": (
        "several processes that serve as one picker: cores, requests a second, and how even",
        measure_workers,
    ),
    "programs": (
        "other routers' own programs and `epp up` on the same conversations, in wall-clock time",
        measure_programs,
    ),
    "published": (
        "what issues of llm-d-router say it costs, on the same work with this picker",
        measure_published,
    ),
    "adversary": (
        "attacks, each with bounds on what others feel of it and on what remains",
        measure_adversary,
    ),
}
EVERYTHING = "all"
JUDGED = ("adversary",)
"""Those that pass or fail, which `all` leaves out."""
REAL = ("replay-validation",)
"""Those that need vLLM, which `all` leaves out too."""
REPLAYED = ("freshness",)
"""Those that need a trace."""
TRACED = ("accuracy", "freshness", "hold", "replay")
"""Those that replay a trace if there is one."""
_TERMINAL_COLUMNS = 160
_DEFAULT_TRANSPORT = "native"
_TRANSPORTS: dict[str, tuple[Transport, ...]] = {
    "native": ("native",),
    "grpcio": ("grpcio",),
    "both": ("native", "grpcio"),
}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of `--json`: medians by key, with what is needed to reproduce them."""

    name: str
    figures: dict[str, float]
    machine: str
    command: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line names.

    Returns 0 unless something could not be measured, or a bound of `JUDGED` was broken.
    """
    options = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else _TERMINAL_COLUMNS, highlight=False)
    if options.name is None:
        for name, (sentence, _) in BENCHMARKS.items():
            console.print(f"{name:17} {sentence}")
        return 0
    left_out = (*JUDGED, *REAL) if options.trace else (*JUDGED, *REAL, *REPLAYED)
    counted = ("exchange",) if exchange_fault() else ()
    everything = [name for name in BENCHMARKS if name not in {*left_out, *counted}]
    names = everything if options.name == EVERYTHING else [options.name]
    try:
        if status := _said(partial(_check, options)):
            return status
        return max([_said(partial(_run, name, options, console)) for name in names])
    except KeyboardInterrupt:
        return 130


def _said(work: Callable[[], int]) -> int:
    """Return the status of work; 1 once it is said why it could not be done."""
    try:
        return work()
    except WarmpickError as error:
        said = Console(stderr=True)
        said.print(f"bench: {error}", style="red", markup=False, soft_wrap=True)
        return 1


def _check(asked: argparse.Namespace) -> int:
    """Return 0; raise `ConfigError` for what else is found out once everything is measured."""
    trace = asked.trace if asked.name in {*TRACED, EVERYTHING} else None
    if trace is not None and not trace.exists():
        raise ConfigError("there is no such file or folder", f"--trace {trace}")
    if asked.records is not None and not asked.records.absolute().parent.is_dir():
        raise ConfigError("there is no such folder to write to", f"--records {asked.records}")
    place = _place(asked.name, asked)
    if asked.write_docs and asked.name != EVERYTHING and docs.page_of(place) is None:
        raise ConfigError(f"no page has a place marked for {place}", "--write-docs")
    return 0


def _interrupt(*_: object) -> NoReturn:
    """Raise at once: asyncio would wait for the next await, which may be a minute away."""
    raise KeyboardInterrupt


def _run(name: str, asked: argparse.Namespace, console: Console) -> int:
    _, measure = BENCHMARKS[name]
    machine = ", ".join(filter(None, (describe(), uncompiled())))
    command = _command(name, asked)
    options = Options(
        quick=asked.quick,
        engine=asked.engine,
        identities=tuple(asked.identity),
        traces=asked.trace,
        records=asked.records,
        observe=asked.observe,
        against=asked.against,
        only=tuple(asked.only),
        transports=_TRANSPORTS[asked.transport],
    )
    report = asyncio.run(_awaited(lambda: measure(Progress(), options)))
    table.show(report, console)
    console.print(f"{command} on {machine}.", style="dim", soft_wrap=True)
    place = _place(name, asked)
    if asked.write_docs and (page := docs.page_of(place)) is not None:
        text = table.markdown(report, machine=machine, command=command)
        docs.write(place, text, page, report.picture)
    if asked.json:
        figures = {figure.key: round(figure.value, 6) for figure in report.figures}
        line = Line(name=name, figures=figures, machine=machine, command=command)
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    broken = any(report.kept(figure) is False for figure in report.figures)
    return int(name in JUDGED and broken)


def _place(name: str, asked: argparse.Namespace) -> str:
    """Say which table of the documentation a run fills."""
    if name != "accuracy":
        return name
    observing = "-observe" if asked.observe else ""
    return f"{name}{observing}-traces" if asked.engine == "none" else f"{name}{observing}"


def _observations(text: str) -> tuple[Observation, ...]:
    """Read `all,1/4,first`."""
    try:
        return tuple(
            Observation.parse(each if each.isalpha() else f"sample:{each}")
            for each in text.split(",")
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _command(name: str, asked: argparse.Namespace) -> str:
    """Write what gives the same figures again."""
    words = ["python -m bench", name]
    if name == "accuracy" and asked.engine:
        words.append(f"--engine {asked.engine}")
    if name == "accuracy":
        words += [f"--identity {identity}" for identity in asked.identity]
    if name in TRACED and asked.trace:
        words.append(f"--trace {asked.trace.name}")
    if name == "accuracy" and asked.observe:
        shares = (str(each).removeprefix("sample:") for each in asked.observe)
        words.append(f"--observe {','.join(shares)}")
    if name == "exchange" and asked.against:
        words.append(f"--against {asked.against}")
    if name in {"adversary", "published"}:
        words += [f"--only {shlex.quote(each)}" for each in asked.only]
    if name == "adversary" and asked.transport != _DEFAULT_TRANSPORT:
        words.append(f"--transport {asked.transport}")
    return " ".join([*words, *(["--quick"] if asked.quick else [])])


async def _awaited(work: Callable[[], Awaitable[Report]]) -> Report:
    """Return the report of some work; of what tasks raise together, raise the first."""
    try:
        return await work()
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, WarmpickError):
            raise error from group
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="measure Warmpick")
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, EVERYTHING], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="the same work, fewer repetitions")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--write-docs", action="store_true", help="refresh the table in the documentation"
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="accuracy, adversary, replay-validation: write every single result there, as JSON",
    )
    accuracy = parser.add_argument_group("accuracy")
    accuracy.add_argument(
        "--engine",
        choices=[*ENGINES, "none"],
        help="model servers (default: vllm, or simulator where that is not installed)",
    )
    accuracy.add_argument(
        "--identity",
        choices=get_args(Identity),
        action="append",
        default=[],
        help="how blocks are known; may be repeated (default: all that the engine allows)",
    )
    traces = os.environ.get("WARMPICK_TRACES")
    accuracy.add_argument(
        "--trace",
        type=Path,
        default=Path(traces) if traces else None,
        metavar="PATH",
        help="accuracy: replay a trace too, or all in a folder; freshness, hold, replay: the trace"
        " to replay (default: $WARMPICK_TRACES, if set)",
    )
    accuracy.add_argument(
        "--observe",
        type=_observations,
        default=(),
        metavar="LIST",
        help="what it costs to observe fewer responses to their end: all,auto,1/4,1/16,first",
    )
    parser.add_argument(
        "--against",
        metavar="REF",
        help="exchange: build another commit in a work tree, and measure both in turn",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            f"adversary: attacks of a group ({', '.join(get_args(Group))}), or by name (`body-*`);"
            " published: a row; may be repeated"
        ),
    )
    parser.add_argument(
        "--transport",
        choices=[*_TRANSPORTS],
        default=_DEFAULT_TRANSPORT,
        help="adversary: (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupt)
    sys.exit(main())
