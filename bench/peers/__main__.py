"""Holds plug-ins of other routers' policies against the routers, and writes docs/policies.md.

python -m bench.peers [--quick] [--only POLICY]

The routers are installed in .cache/peers (`make peers`).
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from bench.docs import DOCS, write
from bench.peers.cases import CASES, Case
from bench.peers.follow import Agreement, Turn, follow
from bench.peers.hashes import no_hash
from bench.peers.routers import PODS, ROOT, Driver, driven, picks
from bench.peers.traffic import QUICK_REQUESTS, REQUESTS, Step, sequence
from bench.progress import Progress
from epp.errors import ConfigError, WarmpickError

ENVIRONMENT = ROOT / ".cache" / "peers"
HEAD = (
    "| policy | router | requests | alike | alike as the router reads | left to chance | why |\n"
    "|---|---|--:|--:|--:|--:|---|\n"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 once the page is written, 1 where a router fails, 2 without any."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests; no page is written")
    parser.add_argument("--only", choices=[each.name for each in CASES], help="no page is written")
    options = parser.parse_args(argv)
    steps = sequence(QUICK_REQUESTS if options.quick else REQUESTS)
    rows, progress = [], Progress()
    try:
        for case in CASES:
            if options.only in {None, case.name}:
                progress.step(f"{case.name}: {case.router}")
                rows.append(row(case, *held(case, steps)))
                print(rows[-1], flush=True)
        if not options.quick and options.only is None:
            write("peers", HEAD + "\n".join(rows) + "\n", DOCS / "policies.md")
    except WarmpickError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def held(case: Case, steps: Sequence[Step]) -> tuple[Agreement, Agreement]:
    """Ask a router, then its plug-in: as that is, and with what the router goes by.

    Raises `ConfigError` if it is not installed, `RouterFailed`, `ProcessDied`.
    """
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise ConfigError("there are no routers; `make peers` installs them", str(ENVIRONMENT))
    log = ENVIRONMENT / f"{case.name}.log"
    asked = after_each_alone(steps) if case.keyed else steps
    if isinstance(case.launch, Driver):
        picked = driven(case.launch, python, asked, log)
    else:
        picked = asyncio.run(picks(case.launch, python, asked, log))
    alone = picked[: len(steps)] if case.keyed else [None] * len(steps)
    turns = list(map(Turn, steps, picked[-len(steps) :], alone))
    as_it_is = follow(case.config, turns, PODS, case.prompts)
    if case.prompts is case.like_router and case.hashes is no_hash:
        return as_it_is, as_it_is
    with case.hashes() as hint:
        return as_it_is, follow(case.config, turns, PODS, case.like_router, hint)


def after_each_alone(steps: Sequence[Step]) -> list[Step]:
    """Return the same requests twice: first each ends before the next comes."""
    count = len(steps)
    alone = [
        Step(step.messages, step.session, *(((number - 1,),) * 2 if number else ()))
        for number, step in enumerate(steps)
    ]
    again = [
        replace(
            step,
            begun=tuple(number + count for number in step.begun),
            ended=tuple(number + count for number in step.ended),
        )
        for step in steps
    ]
    last = (count - 1,)
    return [*alone, replace(again[0], begun=last, ended=last), *again[1:]]


def row(case: Case, as_it_is: Agreement, like_router: Agreement) -> str:
    """Return a row of the table."""
    cells = (
        f"`{case.name}`",
        _started(case),
        f"{as_it_is.requests:,}",
        _share(as_it_is.alike, as_it_is.requests),
        _share(like_router.alike, like_router.requests),
        _share(like_router.by_chance, like_router.requests),
        case.why if as_it_is.differences else "",
    )
    return f"| {' | '.join(cells)} |"


def _started(case: Case) -> str:
    """Return a router's version, and the command that starts it."""
    if isinstance(case.launch, Driver):
        return f"{case.router}, in process"
    return f"{case.router}, `python {' '.join(case.launch.argv)}`"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"


if __name__ == "__main__":
    sys.exit(main())
