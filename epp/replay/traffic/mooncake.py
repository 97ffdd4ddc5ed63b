"""Mooncake's traces (FAST'25), and Qwen-Bailian's: lengths, and hash ids of blocks of tokens.

The tokens were never published, so all tokens of a block are equal. Answers have no ids. If a later
prompt continues an earlier one, the answer to the earlier one is put into its next blocks, where it
must have been.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec

from epp.replay.traffic.bounds import Budget, check_lengths
from epp.replay.traffic.calls import Call, Run, Runs, TokenNames, cut, joined, tokens_in
from epp.replay.traffic.files.source import Problems, Source, decoded, in_order

BLOCK = 512
"""Tokens of a block of Mooncake's."""
BUCKET_SECONDS = 3.0
"""The longest time to which timestamps are rounded: that of the conversation trace."""
FIELDS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
BAILIAN_FIELDS = FIELDS | {"chat_id", "parent_chat_id"}


class MooncakeLine(msgspec.Struct, frozen=True):
    """One request; `timestamp` is in milliseconds.

    An answer without tokens counts as one token, which an engine samples after the prompt anyway.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    block: ClassVar[int] = BLOCK
    ticks: ClassVar[int] = 1000
    """Of `timestamp`, in a second."""

    def __post_init__(self) -> None:
        check_lengths(self.input_length, self.output_length)
        check_blocks(self.input_length, self.hash_ids, self.block)

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids of the blocks that are full."""
        return self.hash_ids[: self.input_length // self.block]

    @property
    def known_as(self) -> Sequence[int]:
        """The id by which a later line continues this one: its last full block.

        A single block is the service's own preamble, which all requests share.
        """
        return self.whole[1:][-1:]

    @property
    def goes_on_with(self) -> Iterable[int]:
        """The ids by which the earlier line may be known, the longest first."""
        return reversed(self.whole[1:])


class BailianLine(MooncakeLine, frozen=True):
    """One request of Qwen-Bailian's; `timestamp` is in seconds. A chat continues its parent."""

    chat_id: int
    parent_chat_id: int

    block: ClassVar[int] = 16
    ticks: ClassVar[int] = 1

    @property
    def known_as(self) -> Sequence[int]:
        """Its chat."""
        return (self.chat_id,)

    @property
    def goes_on_with(self) -> Iterable[int]:
        """The chat before it; none is known as -1."""
        return (self.parent_chat_id,)


def check_blocks(tokens: int, hash_ids: Sequence[int], block: int) -> None:
    """Raise `ValueError` if there are more or fewer ids than blocks."""
    named, blocks = len(hash_ids), -(-tokens // block)
    if named != blocks:
        raise ValueError(
            f"{tokens} tokens are {blocks} blocks of {block}, but `hash_ids` names"
            f" {named}{_fitting(tokens, named)}"
        )


def _fitting(tokens: int, named: int) -> str:
    """Return the end of a sentence: the block size that fits this number of ids, if any."""
    if not named:
        return ""
    least = -(-tokens // named)
    sizes = (1 << (least - 1).bit_length(), least)
    fits = (f", as blocks of {size} would have" for size in sizes if -(-tokens // size) == named)
    return next(fits, "")


def read(source: Source, problems: Problems, seed: int) -> list[Call]:
    """Read Mooncake's; if lines share a time, times are drawn between it and the next.

    Time counts from the first line. Raises `ConfigError`.
    """
    return _read(source, MooncakeLine, problems, seed)


def read_bailian(source: Source, problems: Problems, seed: int) -> list[Call]:
    """Do the same with Qwen-Bailian's."""
    return _read(source, BailianLine, problems, seed)


def _read(source: Source, kind: type[MooncakeLine], problems: Problems, seed: int) -> list[Call]:
    rows = decoded(source.lines(problems), msgspec.json.Decoder(kind), problems)
    lines = in_order(rows, lambda line: line.timestamp / kind.ticks, problems)
    times = _times(lines, kind.ticks, seed)
    return _calls(lines, times, kind.block, Budget(str(source.path)))


def _times(lines: Sequence[MooncakeLine], ticks: int, seed: int) -> list[float]:
    distinct = sorted({line.timestamp for line in lines})
    bucket = 0.0
    if 1 < len(distinct) < len(lines):
        gaps = (later - before for before, later in pairwise(distinct))
        bucket = min(BUCKET_SECONDS * ticks, *gaps)
    draw = random.Random(seed)
    return [(line.timestamp - distinct[0] + draw.uniform(0, bucket)) / ticks for line in lines]


class _Blocks:
    """The known tokens of each block."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids = TokenNames()
        self._known: dict[int, Runs] = {}

    def prompt(self, line: MooncakeLine) -> Runs:
        """Return the tokens of a prompt."""
        runs = joined(*map(self._block, line.hash_ids))
        return tuple(cut(runs, 0, line.input_length))

    def response(self, number: int, line: MooncakeLine) -> Runs:
        """Return the tokens of an answer, which no other answer has."""
        return (Run(self._ids(("answer", number)), max(1, line.output_length)),)

    def write(self, hash_id: int, runs: Runs) -> None:
        """Set a block's first tokens."""
        rest = cut(self._block(hash_id), tokens_in(runs), self._size)
        self._known[hash_id] = joined(runs, rest)

    def _block(self, hash_id: int) -> Runs:
        known = self._known.get(hash_id)
        if known is None:
            known = self._known[hash_id] = (Run(self._ids(hash_id), self._size),)
        return known


def _calls(
    lines: Sequence[MooncakeLine], times: Sequence[float], block: int, budget: Budget
) -> list[Call]:
    """Find which call continues which, and write the answers into the prompts that follow."""
    blocks, calls = _Blocks(block), list[Call]()
    seen: set[int] = set()
    open_ends: dict[int, int] = {}  # what a prompt is known as: the prompt
    for number, (line, at) in enumerate(zip(lines, times, strict=True)):
        after = _continued(line, lines, open_ends)
        marks: tuple[int, ...] = (line.input_length,)
        if after is not None:
            said = lines[after].input_length + max(1, lines[after].output_length)
            marks = (*calls[after].marks, said, line.input_length)
            _write(blocks, (lines[after], calls[after]), line, seen)
        seen.update(line.hash_ids)
        open_ends.update(dict.fromkeys(line.known_as, number))
        call = Call(
            at=at,
            prompt=blocks.prompt(line),
            response=blocks.response(number, line),
            session=number if after is None else calls[after].session,
            after=after,
            marks=marks,
        )
        calls.append(budget(call))
    return calls


def _continued(
    line: MooncakeLine, lines: Sequence[MooncakeLine], open_ends: Mapping[int, int]
) -> int | None:
    """Return the longest earlier prompt that this one begins with, with room for its answer."""
    for name in line.goes_on_with:
        before = open_ends.get(name)
        if before is not None:
            earlier = lines[before]
            holds = line.hash_ids[: len(earlier.whole)] == earlier.whole
            if holds and earlier.input_length + max(1, earlier.output_length) < line.input_length:
                return before
    return None


def _write(
    blocks: _Blocks, before: tuple[MooncakeLine, Call], line: MooncakeLine, seen: set[int]
) -> None:
    """Put the end of the earlier prompt, and its answer, into the blocks that follow it."""
    earlier, call = before
    whole = len(earlier.whole)
    said = joined(cut(call.prompt, whole * line.block, earlier.input_length), call.response)
    for place, hash_id in enumerate(line.hash_ids[whole:]):
        part = cut(said, place * line.block, (place + 1) * line.block)
        if not part or hash_id in seen:
            return
        blocks.write(hash_id, part)
