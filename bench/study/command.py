"""The command line of a study of one question, whose answer is a table."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from epp.cli.replay_types import positive
from epp.errors import ConfigError
from epp.replay.sweep import Task, processes

Cases = Callable[[Path, int], Sequence[Task]]
"""The runs over the traces of a folder, with this many seeds. May raise `ConfigError`."""
Table = Callable[[Sequence[Task], ProcessPoolExecutor], Iterable[str]]
"""The rows of the table, of these runs, played by these processes."""


def answer(name: str, description: str | None, seeds: int, cases: Cases, table: Table) -> int:
    """Return 0 once the table is printed, 2 where the traces cannot be read."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.study.{name}", description=description)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of public traces")
    parser.add_argument("--seeds", type=positive, default=seeds)
    parser.add_argument("--jobs", type=positive, help="processes (default: all cores)")
    options = parser.parse_args()
    try:
        wanted = cases(options.traces, options.seeds)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    with processes(options.jobs) as pool:
        print(*table(wanted, pool), sep="\n")
    return 0
