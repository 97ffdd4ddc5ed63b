"""LMCache's agent traces: the full text of every request and response, session by session.

Sessions begin at random moments, at a rate that the traces do not state. Within a session, a
request comes after the previous response and the recorded pause: a closed loop.
"""

import random
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec

from epp.replay.traffic.bounds import MAX_REQUESTS, MAX_TOKENS, Budget, too_much
from epp.replay.traffic.calls import Call, joined, tokens_in
from epp.replay.traffic.files.source import Problems, Source, decoded, in_order
from epp.replay.traffic.texts import Texts

FIELDS = frozenset({"timestamp", "input", "output", "session_id"})
SESSIONS_PER_SECOND = 0.2
LONGEST_THINK = 11.0
"""The 90th percentile of the recorded pauses, in seconds."""
_MAX_CHARACTERS = 4 * MAX_TOKENS
_ROLE = re.compile(r"\n(?=(?:user|assistant|system|tool): )")


class _Line(msgspec.Struct, frozen=True):
    """One request; `timestamp` is in microseconds."""

    timestamp: int
    input: str
    output: str
    session_id: str

    def __post_init__(self) -> None:
        # A character is a token at most.
        if max(len(self.input), len(self.output)) > _MAX_CHARACTERS:
            raise ValueError(f"its text has more than {_MAX_CHARACTERS:,} characters")
        if not self.input:
            raise ValueError("its prompt is empty")


def read(source: Source, problems: Problems, seed: int) -> list[Call]:
    """Read a trace; sessions begin in a random order. Raises `ConfigError`."""
    sessions = defaultdict[str, list[tuple[str, _Line]]](list)
    rows = decoded(source.lines(problems), msgspec.json.Decoder(_Line), problems)
    for number, (place, line) in enumerate(rows):
        if number == MAX_REQUESTS:
            raise too_much(place)
        sessions[line.session_id].append((place, line))
    draw, texts, at = random.Random(seed), Texts(), 0.0
    names = sorted(sessions)
    draw.shuffle(names)
    calls, budget = list[Call](), Budget(str(source.path))
    for name in names:
        at += draw.expovariate(SESSIONS_PER_SECOND)
        lines = in_order(sessions[name], lambda line: line.timestamp / 1e6, problems)
        calls += map(budget, _session(lines, at, len(calls), texts))
    return calls


def _session(lines: Sequence[_Line], at: float, first: int, texts: Texts) -> Iterator[Call]:
    before: _Line | None = None
    cuts: set[int] = set()
    for number, line in enumerate(lines, first):
        cuts = message_ends(line.input, before.input if before else None, cuts)
        bounds = (0, *sorted(cuts))
        parts = [texts.message(line.input[start:end]) for start, end in pairwise(bounds)]
        pause = (line.timestamp - before.timestamp) / 1e6 if before else 0.0
        yield Call(
            at=at,
            prompt=joined(*parts),
            response=texts.response(line.output, None, number),
            session=first,
            after=number - 1 if before else None,
            think=min(pause, LONGEST_THINK),
            marks=tuple(accumulate(map(tokens_in, parts))),
        )
        before = line


def message_ends(text: str, before: str | None, cuts: set[int]) -> set[int]:
    """Find the ends of messages: before a role, and at the end of an earlier prompt of the session.

    Roles are not written everywhere. `before` is the prompt before this one, and `cuts` are its
    ends. Offsets are in characters.
    """
    ends = {found.start() for found in _ROLE.finditer(text)} | {len(text)}
    if before is not None:
        alike = _alike(text, before)
        ends |= {cut for cut in cuts if cut <= alike}
    return ends - {0}


def _alike(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts, in characters."""
    return bisect_left(
        range(1, min(len(one), len(other)) + 1),
        True,  # noqa: FBT003 (what is searched for)
        key=lambda length: not one.startswith(other[:length]),
    )
