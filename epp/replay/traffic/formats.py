"""The formats of traffic in files, told by the first lines; what is no such is counted.

This file knows which format has which fields; what they mean is known to each format's module.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from epp.errors import ConfigError
from epp.replay.traffic import mooncake
from epp.replay.traffic.calls import Trace
from epp.replay.traffic.source import Problems, Source

Reader = Callable[[Source, Problems, int], Trace]
"""Reads all calls of a source; the seed is for what is not recorded, as times in their buckets."""


class Format(NamedTuple):
    """A format, and the fields by which its lines are told from others'."""

    name: str
    fields: frozenset[str]
    read: Reader


FORMATS = (Format("Mooncake's trace", mooncake.FIELDS, mooncake.read),)
"""The first whose fields a line has is the file's format."""


def read_file(path: Path, *, seed: int = 0, strict: bool = False) -> Trace:
    """Read traffic from a file or folder.

    Lines that cannot be used are left out and counted, or raise where reading is `strict`. Raises
    `ConfigError`, too where nothing is left.
    """
    problems = Problems(strict=strict)
    source = Source(path)
    trace = format_of(source).read(source, problems, seed)
    if not trace.calls:
        found = f"; the first problem is: {problems.shown[0]}" if problems.shown else ""
        raise ConfigError(f"{path} holds no request that can be used{found}")
    return replace(
        trace,
        skipped=problems.skipped,
        reordered=problems.reordered,
        problems=tuple(problems.shown),
    )


def format_of(source: Source) -> Format:
    """Return the format of a source, by its first lines. Raises `ConfigError`."""
    head = source.head()
    if not head:
        raise ConfigError(f"{source.path} is empty, or cut off: it holds no request")
    for line in head:
        fields = _fields(line.text)
        for each in FORMATS:
            if each.fields <= fields:
                return each
    known = "; ".join(f"{each.name} ({', '.join(sorted(each.fields))})" for each in FORMATS)
    raise ConfigError(
        f"{source.path} is of no format that is known: no line up to {head[-1].place} has the"
        f" fields of one. These are: {known}"
    )


def _fields(line: bytes) -> frozenset[str]:
    """Return the fields that a line of JSON has."""
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return frozenset()
    return frozenset(row) if isinstance(row, dict) else frozenset()
