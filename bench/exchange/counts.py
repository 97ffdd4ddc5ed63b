"""The counts that are kept in the repository, and whether a tree is within them.

python -m bench.exchange.counts           # fails where something costs more than is kept
python -m bench.exchange.counts --keep    # keeps what is counted now
"""

import argparse
import asyncio
import hashlib
import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bench.exchange import callgrind
from bench.exchange.parts import Cost
from bench.exchange.plan import NUMBER
from bench.exchange.runs import Stage
from bench.exchange.trees import ROOT, prepare
from bench.replicas.counted import FIGURES
from epp import compiled

KEPT = Path(__file__).with_name("counts.json")
TOLERANCE, TOLERANCE_OF_REPLICAS = 0.01, 0.03
"""Shares that what is counted may differ by. Replicas look up more in Python's table (`least`)."""
_CLASSES = 1009
"""How many classes lay out Python's table otherwise, if more is counted than is kept."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions of each figure, in all and by part, and with what they were built and run."""

    built_with: str
    instructions: dict[str, int]
    parts: dict[str, dict[str, int]]


def built_with() -> str:
    """Name what instructions depend on beside the sources."""
    configured = str(sysconfig.get_config_var("CONFIG_ARGS")).encode()
    return ", ".join(
        (
            f"{platform.python_implementation()} {platform.python_version()}",
            f"configured {hashlib.blake2b(configured, digest_size=4).hexdigest()}",
            platform.python_compiler(),
            " ".join(platform.libc_ver()),
            platform.machine(),
        )
    )


def kept_of(costs: Mapping[str, Cost]) -> Kept:
    """Round what was counted, as it is kept."""
    return Kept(
        built_with=built_with(),
        instructions={name: round(cost.instructions) for name, cost in costs.items()},
        parts={
            name: {part: round(spent) for part, spent in cost.parts.items()}
            for name, cost in costs.items()
            if name.startswith(("json", "stream"))
        },
    )


def exceeded(kept: Kept, now: Kept) -> Iterator[str]:
    """Say what costs more than is kept, and which parts of it have grown."""
    for name, was in kept.instructions.items():
        found = now.instructions[name]
        if found <= was * (1 + _tolerance(name)):
            continue
        yield f"{name}: {found:,} instructions, {was:,} are kept ({found / was - 1:+.1%})"
        for part, before in kept.parts.get(name, {}).items():
            if (grown := now.parts[name][part] - before) > 0:
                yield f"    {part}: {grown:+,}"


def least(one: Kept, other: Kept) -> Kept:
    """Return of each figure the smaller count, with its parts.

    Methods that Python's table has at one place push each other out, each time a few hundred
    instructions. Which ones meet there is chance, and no cost of the tree.
    """
    less = {
        name: other if other.instructions[name] < count else one
        for name, count in one.instructions.items()
    }
    return Kept(
        built_with=one.built_with,
        instructions={name: of.instructions[name] for name, of in less.items()},
        parts={name: less[name].parts[name] for name in one.parts},
    )


def cheaper(kept: Kept, now: Kept) -> list[str]:
    """Name what costs less than is kept, by more than the tolerance."""
    return [
        name
        for name, was in kept.instructions.items()
        if now.instructions[name] < was * (1 - _tolerance(name))
    ]


def _tolerance(name: str) -> float:
    return TOLERANCE_OF_REPLICAS if name in FIGURES else TOLERANCE


def skipped() -> str:
    """Return why nothing can be held against the counts; empty if it can."""
    if why := callgrind.fault():
        return why
    return f"modules are not compiled: {compiled.summary()}" if uncompiled() else ""


def uncompiled() -> bool:
    """Return whether any module that should be compiled is not."""
    return any(compiled.fault(module) for module in compiled.MODULES)


async def counted(classes: int = 0) -> Kept:
    """Count this tree, `classes` made first."""
    with tempfile.TemporaryDirectory(prefix="warmpick-bench-") as name:
        stage, tree = Stage(Path(name), NUMBER, classes), prepare(ROOT, Path(name) / "tree-0")
        await stage.times(tree)  # which compiles what Python has not compiled yet
        return kept_of(await stage.costs(tree) | await stage.between_replicas(tree))


def main() -> int:
    """Hold this tree against the counts, or keep its own. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep what is counted now")
    options = parser.parse_args()
    if why := skipped():
        print(f"counts: NOT CHECKED: {why}", file=sys.stderr)
        return int(uncompiled() and os.environ.get("WARMPICK_REQUIRE_NATIVE") == "1")
    kept = msgspec.json.decode(KEPT.read_bytes(), type=Kept) if KEPT.exists() else None
    if not options.keep and (kept is None or kept.built_with != built_with()):
        had = kept.built_with if kept else "none"
        print(
            f"counts: NOT CHECKED: kept for {had}; this is {built_with()}.\n"
            "counts: python -m bench exchange --against REF compares with a commit built here",
            file=sys.stderr,
        )
        return 0
    now = asyncio.run(counted())
    if options.keep or kept is None:
        KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(now), indent=2) + b"\n")
        return 0
    if any(exceeded(kept, now)):
        now = least(now, asyncio.run(counted(_CLASSES)))
    more = list(exceeded(kept, now))
    for line in more:
        print(f"counts: {line}", file=sys.stderr)
    if less := cheaper(kept, now):
        print(f"counts: cheaper than kept, keep them (KEEP=1): {', '.join(less)}")
    return int(bool(more))


if __name__ == "__main__":
    sys.exit(main())
