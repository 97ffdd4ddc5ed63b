"""`epp replay`: plays every policy on every case, and shows how they compare."""

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size

import msgspec
from msgspec.structs import replace

from epp.errors import ConfigError
from epp.printable import printable
from epp.replay.plan import Policy, RunPlan, Traffic
from epp.replay.results.bar import Requests, RunsBar
from epp.replay.results.comparison import Comparison, compare
from epp.replay.results.digest import Digest, Slo
from epp.replay.results.table import Screen, show
from epp.replay.results.verdict import as_json
from epp.replay.sweep import Task, counted, on_cores, on_ray, read_traffic
from epp.replay.traffic.calls import Trace
from epp.replay.traffic.files.source import Source
from epp.replay.traffic.reading import ALIASES, WORKLOADS, parted

_LONGEST_NAME = 80
"""Characters of what traffic is called."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compared, and how it is shown."""

    traffic: Sequence[Traffic]
    """Each is played with each of `copies`."""
    copies: Sequence[float]
    """Multiply the traffic."""
    fleets: Sequence[RunPlan]
    """Plans of pods, without a policy; each is played with each policy."""
    policies: Sequence[Policy]
    """The policies to compare."""
    baseline: str
    """The label of the policy that the others are compared with."""
    seeds: Sequence[int]
    """Each policy runs once with each."""
    warm_up: float
    """Seconds at the start that are left out of all figures."""
    slo: Slo
    """What goodput requires."""
    jobs: int | None
    """Processes; None: one for each core."""
    ray: str
    """The address of a Ray cluster; empty: none."""
    html: Path | None
    """Where the report goes; None: nowhere."""
    json: bool
    """Whether one JSON object is printed in place of tables."""
    command: str
    """The command as it was typed."""


def run(options: ReplayOptions) -> int:
    """Play all runs and print what they have shown.

    Raises `ConfigError`, as far as it can before anything runs.
    """
    requests = check_traffic(options)
    tasks = list(tasks_of(options))
    check_labels(tasks)
    if options.html is not None:
        check_report(options.html)
    found: dict[int, Digest] = {}
    ended = None if options.ray else counted(tasks)
    sizes = [requests[task.traffic.source, task.load] for task in tasks]
    runs = on_ray(tasks, options.ray) if ended is None else on_cores(tasks, options.jobs, ended)
    with RunsBar(len(tasks), requests=None if ended is None else Requests(ended, sizes)) as bar:
        for number, each in runs:
            found[number] = each
            bar.done(tasks[number].label, number)
    say_faults(found.values())
    say_unserved(found.values())
    comparison = compare([found[number] for number in sorted(found)], options.baseline or None)
    if options.json:
        print(printable(as_json(comparison, options.command)))
    else:
        screen = Screen(width=get_terminal_size().columns, colour=sys.stdout.isatty())
        print(show(comparison, screen), end="")
    if options.html is not None:
        write_report(comparison, options.html, options.command)
    return 0


def check_traffic(options: ReplayOptions) -> Mapping[tuple[str, float], int]:
    """Read all traffic once, before anything runs; report what is odd in it. Raises `ConfigError`.

    Return the number of requests by source and number of copies.
    """
    requests: dict[tuple[str, float], int] = {}
    for traffic, copies in itertools.product(options.traffic, options.copies):
        trace = read_traffic(replace(traffic, copies=copies, seed=options.seeds[0]))
        requests[traffic.source, copies] = len(trace.calls)
        if copies == options.copies[0]:
            for oddity in _oddities(trace):
                print(f"epp: {printable(traffic.source)}: {oddity}", file=sys.stderr)
    return requests


def _oddities(trace: Trace) -> Iterator[str]:
    if trace.skipped:
        shown = "".join(f"\n  {printable(problem)}" for problem in trace.problems)
        yield f"{trace.skipped:,} lines skipped{shown}"
    if trace.reordered:
        yield f"{trace.reordered:,} lines were earlier than the line before: sorted"
    if not trace.closed and len(trace.calls) > 1 and not any(call.at for call in trace.calls):
        yield (
            f"all {len(trace.calls):,} requests come at once, because they have no times, or all"
            " the same one: set --rate or --users"
        )


def say_faults(runs: Iterable[Digest]) -> None:
    """Say which policies have plug-ins that failed, each with one error."""
    faults = {each.policy: each.fault for each in runs if each.fault}
    for policy, fault in sorted(faults.items()):
        said = f"epp: {printable(policy)}: a plug-in failed: {printable(fault)}"
        print(said, file=sys.stderr)


def say_unserved(runs: Iterable[Digest]) -> None:
    """Say why requests of all runs of a policy were refused or lost."""
    unserved = defaultdict[str, Counter[str]](Counter)
    for each in runs:
        unserved[each.policy].update(each.unserved)
    for policy, reasons in sorted(unserved.items()):
        for reason, count in reasons.most_common():
            said = f"{printable(policy)}: {count:,} requests refused or lost: {printable(reason)}"
            print(f"epp: {said}", file=sys.stderr)


def check_labels(tasks: Sequence[Task]) -> None:
    """Raise `ConfigError` if two runs would have the same label."""
    label, times = Counter(task.label for task in tasks).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"{label}: given twice")


def check_report(path: Path) -> None:
    """Raise `ConfigError` if a report cannot be made, or cannot be written to its path."""
    try:
        import_module("epp.replay.results.report")  # matplotlib is an extra
    except ImportError as error:
        raise ConfigError(
            f"the report needs {error.name}: pip install 'warmpick[replay]'", "--html"
        ) from error
    with _writing(path):
        path.open("a").close()


def tasks_of(options: ReplayOptions) -> Iterator[Task]:
    """Yield every run, the runs of a case one after another, so that its traffic is read once."""
    names = _names([traffic.source for traffic in options.traffic])
    for traffic, copies, fleet in itertools.product(
        options.traffic, options.copies, options.fleets
    ):
        name = names[traffic.source]
        for seed, policy in itertools.product(options.seeds, options.policies):
            yield Task(
                traffic=replace(traffic, copies=copies, seed=seed),
                plan=replace(fleet, policy=policy, seed=seed),
                cell=_cell(options, name, copies, fleet),
                workload=name,
                load=copies,
                warm_up=options.warm_up,
                slo=options.slo,
            )


def _cell(options: ReplayOptions, name: str, copies: float, fleet: RunPlan) -> str:
    """Return the label of a case: its traffic's, and whatever else differs between cases."""
    parts = [name]
    parts += [f"{len(fleet.pods)} pods"] if len(options.fleets) > 1 else []
    parts += [f"{copies:g} x"] if len(options.copies) > 1 else []
    return ", ".join(parts)


def _names(sources: Sequence[str]) -> Mapping[str, str]:
    """Return each traffic's name: a workload in full, a file without its folder unless two match.

    If a name is too long, its end is kept.
    """
    names = {source: _name(source) for source in sources}
    count = Counter(names.values())
    return {
        source: printable((name if count[name] == 1 else source)[-_LONGEST_NAME:])
        for source, name in names.items()
    }


def _name(source: str) -> str:
    called, _ = parted(source)
    return source if called in {*WORKLOADS, *ALIASES} else Source(Path(called)).name


def write_report(comparison: Comparison, path: Path, command: str) -> None:
    """Write the report as a page of HTML. Raises `ConfigError`."""
    from epp.replay.results.report import report  # noqa: PLC0415 (see `check_report`)

    with _writing(path):
        path.write_text(report(comparison, command), encoding="utf-8")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", "--html") from error
