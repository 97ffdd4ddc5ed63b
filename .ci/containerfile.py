"""Containerfiles as data: their stages and instructions, and what of a folder a build may see."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One: its name in capitals, and the rest of its line."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """What follows the name; of the JSON form its elements."""
        return json.loads(self.text) if self.text.startswith("[") else self.text.split()


@dataclass
class Stage:
    """What begins with FROM."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Containerfile:
    """`arguments` are those before the first stage."""

    arguments: dict[str, str]
    stages: list[Stage]

    def needed(self, target: str) -> list[Stage]:
        """Return the stages that `target` is built from, itself the last."""
        wanted, found = {target}, []
        for stage in reversed(self.stages):
            if stage.name in wanted:
                found.append(stage)
                wanted.add(stage.base)
                copies = (each.text for each in stage.instructions if each.name == "COPY")
                wanted |= {m[1] for m in (re.match(r"--from=(\S+)", text) for text in copies) if m}
        return found[::-1]


def read(path: Path) -> Containerfile:
    """Parse the instructions of a file."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found = Containerfile({}, [])
    for line in filter(str.strip, lines):
        name, _, rest = line.strip().partition(" ")
        rest = " ".join(rest.split())
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            found.stages.append(Stage(base, alias or str(len(found.stages))))
        elif found.stages:
            found.stages[-1].instructions.append(Instruction(name, rest))
        else:
            key, _, value = rest.partition("=")
            found.arguments[key] = value
    return found


def visible(root: Path, ignore: Path) -> list[Path]:
    """Return the files below `root` that the patterns of `ignore` leave, relative to it."""
    lines = [line.strip() for line in ignore.read_text().splitlines()]
    rules = [(_pattern(line.lstrip("!")), line[0] == "!") for line in lines if line[:1] not in "#"]
    kept = []
    tops = {line[1:].split("/")[0] for line in lines if line[:1] == "!"}  # nothing else is walked
    for top in sorted(tops):
        start = root / top
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            name = path.relative_to(root).as_posix()
            verdicts = [shown for pattern, shown in rules if pattern.match(name)]
            if path.is_file() and (not verdicts or verdicts[-1]):
                kept.append(path.relative_to(root))
    return kept


def _pattern(glob: str) -> re.Pattern[str]:
    """What a line matches, and everything below that."""
    parts = (
        {"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part))
        for part in re.split(r"(\*\*/|\*)", glob)
    )
    return re.compile("".join(parts) + r"(?:/.*)?$")
