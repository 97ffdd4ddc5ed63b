"""Mooncake's conversation trace (FAST'25): lengths and hash ids of 512-token blocks.

The tokens themselves were never published. They are drawn by hash id, so that equal ids are
equal tokens. An answer is named by no id: where a later prompt goes on with an earlier one, its
next blocks are made of the earlier one's answer, as they must have been.
"""

import random
from array import array
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path

import msgspec

from bench.accuracy.trace import Call, Content, Trace, decompressed

NAME = "mooncake_conversation.jsonl.zst"
BLOCK = 512
BUCKET_MS = 3000
PODS, BLOCKS = 8, 25_600
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


class Line(msgspec.Struct, frozen=True):
    """One request of the trace. Times are in milliseconds, at the start of their bucket."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        return self.hash_ids[: self.input_length // BLOCK]


class Book:
    """The text of every token, and the tokens of every block."""

    def __init__(self) -> None:
        draw = random.Random(0)
        self._pieces = [
            b" " + bytes(draw.choices(_LETTERS, k=draw.randint(1, 6))) for _ in range(1 << 16)
        ]
        self._known: dict[int, array[int]] = {}

    def block(self, hash_id: int) -> "array[int]":
        """Return the tokens of a block."""
        return self._known.get(hash_id) or drawn(f"block {hash_id}", BLOCK)

    def write(self, hash_id: int, ids: "array[int]") -> None:
        """Say what a block's first tokens are; the rest are drawn."""
        self._known[hash_id] = ids + self.block(hash_id)[len(ids) :]

    def pieces(self, ids: "array[int]") -> list[bytes]:
        """Return the text of each token."""
        return list(map(self._pieces.__getitem__, ids))


@lru_cache(maxsize=4096)
def drawn(name: str, count: int) -> "array[int]":
    """Draw tokens by name."""
    return array("I", array("H", random.Random(name).randbytes(2 * count)))


class _Prompt(msgspec.Struct, frozen=True):
    """A line's place among the others: the one it goes on with, and where its messages end."""

    line: Line
    number: int
    after: int | None
    marks: tuple[int, ...]

    def ids(self, book: Book) -> "array[int]":
        ids = array("I")
        for hash_id in self.line.hash_ids:
            ids += book.block(hash_id)
        return ids[: self.line.input_length]

    def answer(self) -> "array[int]":
        return drawn(f"answer {self.number}", max(1, self.line.output_length))

    def content(self, book: Book) -> Content:
        ids = self.ids(book)
        pieces = book.pieces(ids)
        ends = (0, *accumulate(map(len, pieces)))
        text_marks = tuple(ends[mark] for mark in self.marks)
        return Content(ids, b"".join(pieces), self.answer(), self.marks, text_marks)


def read(path: Path, count: int | None = None) -> Trace:
    """Read the first `count` requests. Raises `ConfigError`."""
    lines, jitter, book = read_lines(path, count), random.Random(0), Book()
    times = [(line.timestamp + jitter.uniform(0, BUCKET_MS)) / 1000 for line in lines]
    calls = [
        Call(at, partial(prompt.content, book), prompt.after)
        for at, prompt in zip(times, prompts_of(lines, book), strict=True)
    ]
    return Trace(name="conversation", calls=calls, pods=PODS, blocks=BLOCKS)


def read_lines(path: Path, count: int | None = None) -> list[Line]:
    """Read the first `count` requests as they are written. Raises `ConfigError`."""
    decoder = msgspec.json.Decoder(Line)
    return [decoder.decode(line) for line in decompressed(path).splitlines()[:count]]


def prompts_of(lines: Sequence[Line], book: Book) -> list[_Prompt]:
    """Find out who goes on with whom, and write the answers into the prompts that follow."""
    prompts: list[_Prompt] = []
    seen: set[int] = set()
    open_ends: dict[int, int] = {}  # last whole block of a prompt: the prompt
    for number, line in enumerate(lines):
        after = _continued(line, prompts, open_ends)
        marks: tuple[int, ...] = (line.input_length,)
        if after is not None:
            before = prompts[after]
            said = before.line.input_length + before.line.output_length
            marks = (*before.marks, said, line.input_length)
            _write(book, before, line, seen)
        prompts.append(_Prompt(line, number, after, marks))
        seen.update(line.hash_ids)
        if len(line.whole) > 1:
            open_ends[line.whole[-1]] = number
    return prompts


def _continued(line: Line, prompts: Sequence[_Prompt], open_ends: dict[int, int]) -> int | None:
    """Return the longest earlier prompt that this one holds, with room for its answer.

    A single common block is the service's own preamble, which all requests share.
    """
    for hash_id in reversed(line.whole[1:]):
        before = open_ends.get(hash_id)
        if before is not None:
            earlier = prompts[before].line
            if earlier.input_length + earlier.output_length < line.input_length:
                return before
    return None


def _write(book: Book, before: _Prompt, line: Line, seen: set[int]) -> None:
    """Put the end of the earlier prompt, and its answer, into the blocks that follow it."""
    whole = len(before.line.whole)
    said = before.ids(book)[whole * BLOCK :] + before.answer()
    for place, hash_id in enumerate(line.hash_ids[whole:]):
        part = said[place * BLOCK : (place + 1) * BLOCK]
        if not part or hash_id in seen:
            return
        book.write(hash_id, part)
