"""Minutes of the conversation trace, as many times as one fleet is to bear.

A copy asks the same at the same times, with other private blocks: what all requests share stays
shared. Of the last copy so many conversations are left out that the number of copies is a fraction.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.accuracy import mooncake
from bench.accuracy.mooncake import BUCKET_MS, Line
from bench.accuracy.trace import Trace

MINUTES = (20, 31)
COPIES = 1.4
_APART = 1 << 32
"""The distance of hash ids from one copy to the next."""


def read(path: Path, minutes: tuple[int, int] = MINUTES) -> list[Line]:
    """Read the lines of some minutes. Raises `ConfigError`."""
    first, last = (minute * 60_000 for minute in minutes)
    return [line for line in mooncake.read_lines(path) if first <= line.timestamp < last]


def traffic(lines: Sequence[Line], seed: int, copies: float = COPIES) -> Trace:
    """Draw the times within their buckets, and the conversations of the last copy."""
    draw, start = random.Random(seed), lines[0].timestamp
    timed = sorted(
        (
            ((line.timestamp - start + draw.uniform(0, BUCKET_MS)) / 1000, line)
            for line in _copied(lines, draw, copies)
        ),
        key=lambda pair: pair[0],
    )
    return mooncake.tokens_of([line for _, line in timed], [at for at, _ in timed])


def _copied(lines: Sequence[Line], draw: random.Random, copies: float) -> Iterator[Line]:
    preamble = lines[0].hash_ids[:1]
    places: dict[int, float] = {}
    for line in lines:
        conversation = line.hash_ids[1] if len(line.hash_ids) > 1 else line.hash_ids[0]
        place = places.setdefault(conversation, draw.random())
        for copy in range(int(copies - place) + 1):
            ids = tuple(
                each if (each,) == preamble else each + copy * _APART for each in line.hash_ids
            )
            yield replace(line, hash_ids=ids)
