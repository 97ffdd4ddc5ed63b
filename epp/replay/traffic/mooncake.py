"""Mooncake's traces (FAST'25): lengths, and hash ids of blocks of 512 tokens.

The tokens were never published: all of a block are equal. An answer is named by no id. If a
later prompt goes on with an earlier one, its next blocks are made of the earlier one's answer, as
they must have been.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from epp.replay.traffic.bounds import Room, check_lengths
from epp.replay.traffic.calls import Call, Run, Runs, TokenNames, Trace, cut, joined, ordered
from epp.replay.traffic.files.source import Problems, Source, decoded, in_order

BLOCK = 512
BUCKET_MS = 3000.0
"""The longest time to which timestamps are rounded: that of the conversation trace."""
FIELDS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


class MooncakeLine(msgspec.Struct, frozen=True):
    """One request; `timestamp` is in milliseconds.

    An answer of no token counts as one: an engine samples it at the end of the prompt.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        check_lengths(self.input_length, self.output_length)
        blocks = -(-self.input_length // BLOCK)
        if len(self.hash_ids) < blocks:
            raise ValueError(
                f"{self.input_length} tokens are {blocks} blocks of {BLOCK}, but `hash_ids` names"
                f" {len(self.hash_ids)}"
            )

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids of the blocks that are full."""
        return self.hash_ids[: self.input_length // BLOCK]


def read(source: Source, problems: Problems, seed: int) -> Trace:
    """Read a trace; if lines share a time, times are drawn between it and the next.

    Time counts from the first line. Raises `ConfigError`.
    """
    rows = decoded(source.lines(problems), msgspec.json.Decoder(MooncakeLine), problems)
    lines = in_order(rows, lambda line: line.timestamp / 1000, problems)
    calls = _calls(lines, _times(lines, seed), Room(str(source.path)))
    return Trace(name=source.name, calls=ordered(calls))


def _times(lines: Sequence[MooncakeLine], seed: int) -> list[float]:
    distinct = sorted({line.timestamp for line in lines})
    bucket = 0.0
    if 1 < len(distinct) < len(lines):
        gaps = (later - before for before, later in pairwise(distinct))
        bucket = min(BUCKET_MS, *gaps)
    draw = random.Random(seed)
    return [(line.timestamp - distinct[0] + draw.uniform(0, bucket)) / 1000 for line in lines]


class _Blocks:
    """What is known of the tokens in each block."""

    def __init__(self) -> None:
        self._ids = TokenNames()
        self._known: dict[int, Runs] = {}

    def prompt(self, line: MooncakeLine) -> Runs:
        """Return the tokens of a prompt."""
        runs = joined(*map(self._block, line.hash_ids))
        return tuple(cut(runs, 0, line.input_length))

    def response(self, number: int, line: MooncakeLine) -> Runs:
        """Return the tokens of an answer, which are not another's."""
        return (Run(self._ids(("answer", number)), max(1, line.output_length)),)

    def write(self, hash_id: int, runs: Runs) -> None:
        """Say what a block's first tokens are."""
        length = sum(run.length for run in runs)
        self._known[hash_id] = joined(runs, cut(self._block(hash_id), length, BLOCK))

    def _block(self, hash_id: int) -> Runs:
        known = self._known.get(hash_id)
        if known is None:
            known = self._known[hash_id] = (Run(self._ids(hash_id), BLOCK),)
        return known


def _calls(lines: Sequence[MooncakeLine], times: Sequence[float], room: Room) -> list[Call]:
    """Find out who goes on with whom, and write the answers into the prompts that follow."""
    blocks, calls = _Blocks(), list[Call]()
    seen: set[int] = set()
    open_ends: dict[int, int] = {}  # last whole block of a prompt: the prompt
    for number, (line, at) in enumerate(zip(lines, times, strict=True)):
        after = _continued(line, lines, open_ends)
        marks: tuple[int, ...] = (line.input_length,)
        if after is not None:
            said = lines[after].input_length + max(1, lines[after].output_length)
            marks = (*calls[after].marks, said, line.input_length)
            _write(blocks, (lines[after], calls[after]), line, seen)
        seen.update(line.hash_ids)
        if len(line.whole) > 1:
            open_ends[line.whole[-1]] = number
        call = Call(
            at=at,
            prompt=blocks.prompt(line),
            response=blocks.response(number, line),
            session=number if after is None else calls[after].session,
            after=after,
            marks=marks,
        )
        calls.append(room(call))
    return calls


def _continued(
    line: MooncakeLine, lines: Sequence[MooncakeLine], open_ends: dict[int, int]
) -> int | None:
    """Return the longest earlier prompt that this one holds, with room for its answer.

    A single common block is the service's own preamble, which all requests share.
    """
    for hash_id in reversed(line.whole[1:]):
        before = open_ends.get(hash_id)
        if before is not None:
            earlier = lines[before]
            if earlier.input_length + max(1, earlier.output_length) < line.input_length:
                return before
    return None


def _write(
    blocks: _Blocks, before: tuple[MooncakeLine, Call], line: MooncakeLine, seen: set[int]
) -> None:
    """Put the end of the earlier prompt, and its answer, into the blocks that follow it."""
    earlier, call = before
    whole = len(earlier.whole)
    said = joined(cut(call.prompt, whole * BLOCK, earlier.input_length), call.response)
    for place, hash_id in enumerate(line.hash_ids[whole:]):
        part = cut(said, place * BLOCK, (place + 1) * BLOCK)
        if not part or hash_id in seen:
            return
        blocks.write(hash_id, part)
