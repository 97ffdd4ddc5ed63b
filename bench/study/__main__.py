"""Plays the study and writes docs/routing-study.md with its plots.

python -m bench.study --traces FOLDER [--quick] [--jobs N] [--kept]

What has been played is kept below .cache/study, so that a study that was stopped goes on. Remove
it where policies or engines have changed.
"""

import argparse
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from bench.study.grid import QUICK, Grid, subjects, tasks
from bench.study.page import write
from epp.errors import ConfigError
from epp.replay.results.bar import RunsBar
from epp.replay.results.digest import Digest
from epp.replay.sweep import Task, on_cores

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "study"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 once the page is written, 2 where an option cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench.study", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of public traces")
    parser.add_argument("--quick", action="store_true", help="4 pods, one load, three seeds")
    parser.add_argument("--kept", action="store_true", help="play nothing: write what was played")
    parser.add_argument("--jobs", type=int, help="processes (default: all cores)")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "routing-study.md")
    options = parser.parse_args(argv)
    try:
        wanted = list(tasks(subjects(options.traces), QUICK if options.quick else Grid()))
        whole = len(wanted)
        if options.kept:
            wanted = whole_cases(wanted)
        else:
            play_missing(wanted, options.jobs)
        found = [msgspec.msgpack.decode(_place(task).read_bytes(), type=Digest) for task in wanted]
        write(found, options.page, whole)
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


def whole_cases(wanted: Sequence[Task]) -> list[Task]:
    """Return the runs of the cases of which all are kept. Raises `ConfigError` where none is."""
    cut = {task.cell for task in wanted if not _place(task).exists()}
    whole = [task for task in wanted if task.cell not in cut]
    if not whole:
        raise ConfigError("no case has been played to its end", str(KEPT))
    return whole


def _place(task: Task) -> Path:
    key = blake2b(msgspec.json.encode(task), digest_size=12).hexdigest()
    return KEPT / f"{key}.msgpack"


if __name__ == "__main__":
    sys.exit(main())
