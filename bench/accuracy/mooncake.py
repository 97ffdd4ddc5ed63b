"""Mooncake's conversation trace (FAST'25) with text: `epp replay` reads which tokens are equal.

The tokens themselves were never published. They are drawn by what the reader names them, so that
equal ones are equal, and each has a text of its own.
"""

import random
from array import array
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path

from bench.accuracy.trace import Call, Content, Trace
from epp.replay.traffic import calls
from epp.replay.traffic.formats import read_file

NAME = "mooncake_conversation.jsonl.zst"
PODS, BLOCKS = 8, 25_600
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


class Book:
    """The text of every token."""

    def __init__(self) -> None:
        draw = random.Random(0)
        self._pieces = [
            b" " + bytes(draw.choices(_LETTERS, k=draw.randint(1, 6))) for _ in range(1 << 16)
        ]

    def content(self, call: calls.Call) -> Content:
        """Return a call's prompt and answer."""
        ids = _ids(call.prompt)
        pieces = [self._pieces[each] for each in ids]
        ends = (0, *accumulate(map(len, pieces)))
        text_marks = tuple(ends[mark] for mark in call.marks)
        return Content(ids, b"".join(pieces), _ids(call.response), call.marks, text_marks)


def _ids(runs: calls.Runs) -> "array[int]":
    ids = array("I")
    for token, length in runs:
        ids += _drawn(token, length)
    return ids


@lru_cache(maxsize=4096)
def _drawn(token: int, count: int) -> "array[int]":
    """Draw the tokens of a run; a longer run of the same token begins with them."""
    even = count + count % 2  # of an odd number the last one would be another
    return array("I", array("H", random.Random(f"block {token}").randbytes(2 * even))[:count])


def file_at(place: Path) -> Path:
    """Return the trace at a path, or in a folder."""
    return place / NAME if place.is_dir() else place


def read(path: Path, count: int | None = None) -> Trace:
    """Read the first `count` requests. Raises `ConfigError`."""
    book = Book()
    return Trace(
        name="conversation",
        calls=[
            Call(call.at, partial(book.content, call), call.after)
            for call in read_file(path).calls[:count]
        ],
        pods=PODS,
        blocks=BLOCKS,
    )
