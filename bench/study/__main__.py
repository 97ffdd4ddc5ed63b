"""Plays the study and writes docs/routing-study.md with its plots.

python -m bench.study --traces FOLDER [--all | --quick] [--jobs N] [--kept] [--again POLICY]

With --all it is all policies by name, on fewer cases and seeds, and docs/policies-study.md.
What has been played is kept below .cache/study, so that a study that was stopped goes on. Where
a policy has changed, --again plays its runs again; where engines have, remove all.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from bench.docs import DOCS
from bench.study import field, page
from bench.study.grid import BASELINE, QUICK, Grid, subjects, tasks
from epp.cli.replay_types import positive
from epp.errors import ConfigError
from epp.replay.policies import NAMED
from epp.replay.results.bar import RunsBar
from epp.replay.results.digest import Curves, Digest
from epp.replay.results.measures import BY_NAME
from epp.replay.sweep import Task, on_cores

KEPT = DOCS.parent / ".cache" / "study"
_PAGES = {False: ("routing-study.md", page.write), True: ("policies-study.md", field.write)}
"""By whether all policies are asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 once the page is written, 2 where an option cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench.study", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of public traces")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="4 pods, one load, three seeds")
    extent.add_argument("--all", action="store_true", help="all policies, on fewer cases")
    parser.add_argument("--kept", action="store_true", help="play nothing: write what was played")
    parser.add_argument("--jobs", type=positive, help="processes (default: all cores)")
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        choices=NAMED,
        metavar="POLICY",
        help="play the runs of a policy again (can be given more than once)",
    )
    options = parser.parse_args(argv)
    try:
        if options.all:
            wanted = list(field.everybody(options.traces))
        else:
            wanted = list(tasks(subjects(options.traces), QUICK if options.quick else Grid()))
        whole = len(wanted)
        if not options.kept:
            forget(task for task in wanted if task.plan.policy.name in options.again)
            play_missing(wanted, options.jobs)
        elif options.all:
            wanted = compared(wanted)
        else:
            wanted = whole_cases(wanted)
        found = [msgspec.msgpack.decode(_place(task).read_bytes(), type=Digest) for task in wanted]
        name, write = _PAGES[options.all]
        write(found, DOCS / name, whole)
    except ConfigError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    return 0


def play_missing(wanted: Sequence[Task], jobs: int | None) -> None:
    """Play the runs that are not kept, and keep them."""
    KEPT.mkdir(parents=True, exist_ok=True)
    missing = [task for task in wanted if not _place(task).exists()]
    with RunsBar(len(missing)) as bar:
        for number, each in on_cores(missing, jobs):
            place = _place(missing[number])
            place.with_suffix(".part").write_bytes(msgspec.msgpack.encode(each))
            place.with_suffix(".part").rename(place)
            bar.done(missing[number].label)


def forget(tasks: Iterable[Task]) -> None:
    """Have runs played again that are kept."""
    for task in tasks:
        _place(task).unlink(missing_ok=True)


def compared(wanted: Sequence[Task]) -> list[Task]:
    """Return the runs that are kept, of seeds of which the baseline's is. Raises `ConfigError`."""
    kept = [task for task in wanted if _place(task).exists()]
    known = {(task.cell, task.plan.seed) for task in kept if task.plan.policy.name == BASELINE}
    if not known:
        raise ConfigError(f"no case has been played with {BASELINE}", str(KEPT))
    return [task for task in kept if (task.cell, task.plan.seed) in known]


def whole_cases(wanted: Sequence[Task]) -> list[Task]:
    """Return the runs of the cases of which all are kept. Raises `ConfigError` if none is."""
    cut = {task.cell for task in wanted if not _place(task).exists()}
    whole = [task for task in wanted if task.cell not in cut]
    if not whole:
        raise ConfigError("no case has been played to its end", str(KEPT))
    return whole


def _place(task: Task) -> Path:
    # What is observed by default is not in what is encoded, and what was played with another is.
    # What is kept is read again by these fields.
    known = (Digest.__struct_fields__, tuple(BY_NAME), Curves.__struct_fields__)
    asked = msgspec.json.encode((task, str(task.plan.observation), known), enc_hook=str)
    key = blake2b(asked, digest_size=12).hexdigest()
    return KEPT / f"{key}.msgpack"


if __name__ == "__main__":
    sys.exit(main())
