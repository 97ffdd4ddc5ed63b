"""Plays the study and writes docs/routing-study.md with its plots.

python -m bench.study --traces FOLDER [--quick] [--jobs N]

What has been played is kept below .cache/study, so that a study that was stopped goes on.
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
    parser.add_argument("--quick", action="store_true", help="4 and 8 pods, one load, three seeds")
    parser.add_argument("--jobs", type=int, help="processes (default: all cores)")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "routing-study.md")
    options = parser.parse_args(argv)
    try:
        grid = QUICK if options.quick else Grid()
        found = played(list(tasks(subjects(options.traces), grid)), options.jobs)
        write(found, options.page, quick=options.quick)
    except ConfigError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    return 0


def played(wanted: Sequence[Task], jobs: int | None) -> list[Digest]:
    """Return what each run has shown; those that are kept are not played again."""
    KEPT.mkdir(parents=True, exist_ok=True)
    places = [KEPT / f"{_key(task)}.msgpack" for task in wanted]
    missing = [number for number, place in enumerate(places) if not place.exists()]
    with RunsBar(len(missing)) as bar:
        for number, each in on_cores([wanted[number] for number in missing], jobs):
            place = places[missing[number]]
            place.with_suffix(".part").write_bytes(msgspec.msgpack.encode(each))
            place.with_suffix(".part").rename(place)
            bar.done(wanted[missing[number]].label)
    return [msgspec.msgpack.decode(place.read_bytes(), type=Digest) for place in places]


def _key(task: Task) -> str:
    return blake2b(msgspec.json.encode(task), digest_size=12).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
