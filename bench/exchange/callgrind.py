"""Instructions, counted by callgrind: one file for each time that a marked function was called."""

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

MARK = "getpriority"
"""A function of the C library that nothing else calls; what was counted is written down there."""
ENVIRONMENT = {
    # Where a set of strings or objects is walked, in the same order each time.
    "PYTHONHASHSEED": "0",
    # The C library has a memcpy for each kind of processor: everywhere the same one.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-EVEX",
}


class Counts(msgspec.Struct, frozen=True):
    """What was counted between two marks.

    `inclusive` has the instructions of each function with all that it called, `calls` how often
    each was called. Functions that call themselves are counted more than once.
    """

    instructions: int
    inclusive: dict[str, int]
    calls: dict[str, int]


def fault() -> str:
    """Return why nothing can be counted; empty if it can."""
    missing = [name for name in ("valgrind", "setarch") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found (Debian: valgrind, util-linux)" if missing else ""


def counting(out: Path) -> tuple[str, ...]:
    """Return the command that counts the command behind it; `out` begins the names of its files."""
    return (
        # Addresses are the same each time, for what is sorted by them.
        *("setarch", "-R", "valgrind", "--quiet", "--tool=callgrind"),
        *(f"--dump-before={MARK}", f"--callgrind-out-file={out}"),
    )


def between_marks(out: Path) -> list[Path]:
    """Return the files that were written, in order: up to the first mark, to the second, ..."""
    numbered = [(path.suffix[1:], path) for path in out.parent.glob(f"{out.name}.*")]
    return [path for _, path in sorted((int(end), path) for end, path in numbered if end.isdigit())]


def read(path: Path) -> Counts:
    """Read a file of the format of callgrind (valgrind's manual, "Callgrind Format")."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parsed(lines)


def parsed(lines: Iterable[str]) -> Counts:
    """Read the lines of such a file.

    `cfn=(7) name` says who is called, by a number after the first time; `calls=3 ...` how often;
    the line behind that ends in what these calls cost.
    """
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    callee, after_calls, total = "", False, 0
    for line in lines:
        if after_calls:
            costs[callee] += int(line.split()[1])
            after_calls = False
        elif line.startswith(("fn=", "cfn=")):
            number, _, name = line.partition("=")[2].strip().partition(" ")
            if name:
                names[number] = name
            if line[0] == "c":
                callee = number
        elif line.startswith("calls="):
            calls[callee] += int(line[6:].split()[0])
            after_calls = True
        elif line.startswith("summary:"):
            total = int(line.split()[1])
    return Counts(total, _named(names, costs), _named(names, calls))


def _named(names: dict[str, str], counted: Counter[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for number, value in counted.items():
        found[names[number]] += value
    return dict(found)
