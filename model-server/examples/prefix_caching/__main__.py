"""Prefix caching on real vLLM: a long table, and a chat over a long document.

`python model-server/examples/prefix_caching table` or `chat`; without a name, both. Each is asked
with prefix caching off and on, of one server alone and of two behind Envoy and the picker. Servers
run on the CPU with a model of random weights: times are real, answers are noise.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from asking import Asked, Asker, Setting, client
from prediction import predict
from report import show
from rich.console import Console
from stand import MODEL, build, standing
from texts import DEMONSTRATIONS, Demonstration

from epp.errors import WarmpickError

MODELS = Path(__file__).parents[3] / ".cache" / "models"
COLUMNS = 110


async def ask(demonstrations: Sequence[Demonstration], logs: Path) -> list[Asked]:
    """Ask all demonstrations under all settings."""
    folder = MODELS / MODEL
    await build(folder, logs)
    asked: list[Asked] = []
    async with client() as session:
        for caching in (False, True):
            place = _folder(logs, f"caching-{'on' if caching else 'off'}")
            async with standing(folder, place, caching=caching) as stand:
                for servers in (1, 2):
                    setting = Setting(caching, servers)
                    print(f"{setting} ...", file=sys.stderr)
                    asker = Asker(stand.url(servers), setting, session)
                    for demonstration in demonstrations:
                        await stand.idle(session)
                        asked += await asker.ask_all(demonstration)
    return asked


def _folder(directory: Path, name: str) -> Path:
    path = directory / name
    path.mkdir()
    return path


def main() -> int:
    """Run the demonstrations that the command line names; return 1 if something did not start."""
    parser = argparse.ArgumentParser(prog="prefix_caching", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what", nargs="?", choices=list(DEMONSTRATIONS), help="what to run (default: both)"
    )
    parser.add_argument("--lines", type=int, default=30, help="length of each text (default: 30)")
    parser.add_argument(
        "--questions", type=int, default=4, help="questions of each reader (default: 4)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write what was asked, answered and replayed to this file",
    )
    options = parser.parse_args()
    demonstrations = [
        make(options.lines, options.questions)
        for name, make in DEMONSTRATIONS.items()
        if options.what in {name, None}
    ]
    with tempfile.TemporaryDirectory(prefix="prefix-caching-") as logs:
        try:
            asked = asyncio.run(ask(demonstrations, Path(logs)))
        except WarmpickError as error:
            print(f"prefix_caching: {error}", file=sys.stderr)
            return 1
    console = Console(width=COLUMNS, highlight=False)
    records: list[dict[str, object]] = []
    for each in demonstrations:
        rows = [answer for answer in asked if answer.demonstration == each.name]
        predicted = predict(rows)
        show(console, each.title, rows, predicted)
        for row in rows:
            foretold = predicted[row.setting, row.reader, row.question]
            records.append({**msgspec.structs.asdict(row), "replay": foretold})
    if options.json:
        options.json.write_bytes(msgspec.json.encode(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
