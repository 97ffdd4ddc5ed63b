"""NVIDIA aiperf's sessions: lines like Mooncake's, each a turn with only its new tokens.

A turn comes `delay` after the response to the one before it. Its prompt is everything said in the
session so far, including the responses, and then its own text.
"""

from collections.abc import Iterator, Sequence
from math import nan

import msgspec

from epp.replay.traffic.bounds import (
    MAX_REQUESTS,
    MAX_SECONDS,
    MAX_TOKENS,
    Budget,
    check_lengths,
    too_much,
)
from epp.replay.traffic.calls import Call, Run, Runs, TokenNames, cut, joined, tokens_in
from epp.replay.traffic.files.source import Problems, Source, decoded, in_order
from epp.replay.traffic.mooncake import BLOCK, check_blocks

FIELDS = frozenset({"session_id", "delay", "input_length", "output_length"})
_DELTAS = "deltas_without_responses"
_MILLI = 1e-3


class _Turn(msgspec.Struct, frozen=True):
    """One request, with the tokens that are new in it; times are in milliseconds."""

    input_length: int
    output_length: int
    session_id: str | None = None
    timestamp: float | None = None
    delay: float | None = None
    hash_ids: tuple[int, ...] | None = None
    context_mode: str | None = None

    def __post_init__(self) -> None:
        check_lengths(self.input_length, self.output_length)
        if not 0 <= self.think <= MAX_SECONDS:
            raise ValueError("its `delay` is negative, or more than a year")
        if self.context_mode not in {None, _DELTAS}:
            raise ValueError(f"its `context_mode` is not {_DELTAS}")
        if self.hash_ids is not None:
            check_blocks(self.input_length, self.hash_ids, BLOCK)

    @property
    def think(self) -> float:
        """The seconds since the response before it."""
        return (self.delay or 0.0) * _MILLI

    @property
    def at(self) -> float:
        """When it comes, in seconds; NaN if that follows from its session."""
        return nan if self.timestamp is None else self.timestamp * _MILLI


_Placed = tuple[str, _Turn]


def read(source: Source, problems: Problems, _: int) -> list[Call]:
    """Read sessions; without a time of the first turn, they begin at once. Raises `ConfigError`."""
    sessions = dict[object, list[_Placed]]()
    rows = decoded(source.lines(problems), msgspec.json.Decoder(_Turn), problems)
    for number, (place, turn) in enumerate(rows):
        if number == MAX_REQUESTS:
            raise too_much(place)
        sessions.setdefault(turn.session_id or number, []).append((place, turn))
    placed = ((turns[0][0], turns) for turns in sessions.values())
    begun = in_order(placed, lambda turns: turns[0][1].at, problems, noted=False)
    reader = _Sessions(begun[0][0][1].at if begun else 0.0)
    calls, budget = list[Call](), Budget(str(source.path))
    for turns in begun:
        calls += map(budget, reader.calls(turns, len(calls), problems))
    return calls


class _Sessions:
    """Writes turns as calls; time counts from `start` (seconds)."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._ids = TokenNames()

    def calls(self, turns: Sequence[_Placed], first: int, problems: Problems) -> Iterator[Call]:
        """Yield the calls of a session, from number `first` on, until a prompt is too long."""
        said: Runs = ()
        at, marks = 0.0, tuple[int, ...]()
        for number, (place, turn) in enumerate(turns, first):
            prompt = joined(said, self._text(number, turn))
            if tokens_in(prompt) > MAX_TOKENS:
                problems.skip(place, f"its session has more than {MAX_TOKENS:,} tokens")
                return
            at = max(at, turn.at - self._start) if turn.timestamp is not None else at
            marks = (*marks, tokens_in(prompt))
            response = (Run(self._ids(("answer", number)), max(1, turn.output_length)),)
            yield Call(
                at=at,
                prompt=prompt,
                response=response,
                session=first,
                after=number - 1 if number > first else None,
                think=turn.think if number > first else 0.0,
                marks=marks,
            )
            said = joined(prompt, response)
            marks = (*marks, tokens_in(said))

    def _text(self, number: int, turn: _Turn) -> Runs:
        """Return the new tokens; equal hash ids are equal blocks."""
        if turn.hash_ids is None:
            return (Run(self._ids(("text", number)), turn.input_length),)
        blocks = [Run(self._ids(("block", each)), BLOCK) for each in turn.hash_ids]
        return cut(joined(blocks), 0, turn.input_length)
