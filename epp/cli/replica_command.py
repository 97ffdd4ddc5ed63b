"""The command `epp replicas`: what several replicas believe, side by side."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epp.cli.files import read
from epp.cli.types import interval
from epp.printable import printable

if TYPE_CHECKING:  # it needs an extra
    from epp.app.replicas.diff import CacheDiff

_TEXT = """Ask two replicas what they believe all endpoints' caches to hold, and show where they
differ. Exit status: 0 if they agree, but for facts that are under way; 1 if they do not; 2 if one
does not answer."""


def add_replica_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands below `epp replicas`."""
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    compare = commands.add_parser("diff", help="compare two replicas", description=_TEXT)
    compare.add_argument("replicas", nargs=2, metavar="HOST[:PORT]", help="where they listen")
    compare.add_argument(
        "--hash-secret-file", type=Path, required=True, metavar="FILE", help="their secret"
    )
    compare.add_argument(
        "--pool-name", default="default", metavar="NAME", help="their pool (default: default)"
    )
    compare.add_argument(
        "--timeout",
        type=interval,
        default=10.0,
        metavar="TIME",
        help="how long they may take to answer (default: 10s)",
    )
    compare.set_defaults(run=_diff, refused=2)


def _diff(arguments: argparse.Namespace) -> int:
    from epp.cli.replica_flags import peer_addresses  # noqa: PLC0415 (an extra)

    first, second = peer_addresses(arguments.replicas)
    from epp.app.replicas.diff import diff  # noqa: PLC0415 (an extra)

    secret = read(arguments.hash_secret_file, "--hash-secret-file").strip()[:64]
    found = asyncio.run(diff((first, second), secret, arguments.pool_name, arguments.timeout))
    print(*_table(found), sep="\n")
    return int(any(each.differs for each in found))


def _table(found: "Sequence[CacheDiff]") -> list[str]:
    width = max([8, *(len(each.endpoint) for each in found)])
    head = f"{'ENDPOINT':{width}} {'FIRST':>9} {'SECOND':>9} {'ONLY 1ST':>9} {'ONLY 2ND':>9}"
    lines = [head]
    for each in found:
        counts = each.first, each.second, each.only_first, each.only_second
        columns = " ".join(f"{count:9}" for count in counts)
        said = "another start" if each.restarted else "differs" if each.differs else ""
        lines.append(f"{printable(each.endpoint):{width}} {columns} {said}".rstrip())
    apart = sum(each.differs for each in found)
    lines.append(f"{apart} of {len(found)} endpoints differ")
    return lines
