"""More or less of a trace, or a part of it: superposed copies, and a span of minutes.

A copy sends the same requests at about the same times, with other private tokens. What many
conversations share, such as a system prompt, stays shared.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from epp.errors import ConfigError
from epp.replay.traffic.bounds import Budget
from epp.replay.traffic.calls import TOKEN_IDS, Call, Run, Runs, Trace, ordered

SHARED = 0.1
"""Tokens that this share of the conversations have, and at least two, are shared by copies."""
_APART = 3.0
"""Seconds within which all copies of a conversation begin, in open loop."""


def superposed(trace: Trace, copies: float, seed: int) -> Trace:
    """Return as many copies of a trace in one.

    If `copies` is a fraction, some conversations are left out of the last copy.
    In a closed loop, the conversations of a copy begin anywhere within the time in which all begin.
    Raises `ConfigError`.
    """
    if not 0 < copies < math.inf:
        raise ConfigError(f"{copies:g} copies of a trace cannot be replayed; 1 is the trace itself")
    if copies == 1:
        return trace
    renamed = _Renaming(trace.calls, math.ceil(copies))
    shift = _shift(trace)
    sessions = 1 + max((call.session for call in trace.calls), default=0)
    draw = random.Random(f"copies {seed}")
    begun: list[int] = []  # for each call, the first of its conversation, or user in a closed loop
    places: dict[int, float] = {}
    shifts: dict[tuple[int, int], float] = {}
    made, budget = list[Call](), Budget(f"{copies:g} copies of {trace.name}")
    numbers: dict[tuple[int, int], int] = {}
    for number, call in enumerate(trace.calls):
        first = number if call.after is None else begun[call.after]
        begun.append(first)
        place = places.setdefault(first, draw.random())
        for copy in range(math.ceil(copies - place)):
            moved = shifts.setdefault((first, copy), draw.random()) if copy else None
            numbers[number, copy] = len(made)
            copied = replace(
                call,
                at=call.at if moved is None else shift(call.at, moved),
                prompt=renamed(call.prompt, copy),
                response=renamed(call.response, copy),
                session=call.session + copy * sessions,
                after=None if call.after is None else numbers[call.after, copy],
            )
            made.append(budget(copied))
    if not made:
        raise ConfigError(f"{copies:g} copies of {trace.name} hold no conversation")
    return replace(trace, calls=ordered(made))


def minutes(trace: Trace, first: float, last: float) -> Trace:
    """Return the calls from minute `first` to before minute `last`; time counts from `first`.

    A conversation that began earlier continues without its beginning. Raises `ConfigError`.
    """
    start, end = 60 * first, 60 * last
    within = [each for each in enumerate(trace.calls) if start <= each[1].at < end]
    if not within:
        ends = trace.calls[-1].at / 60 if trace.calls else 0.0
        raise ConfigError(
            f"no request of {trace.name} comes in minutes {first:g}-{last:g}: the last one comes in"
            f" minute {ends:.1f}"
        )
    places: dict[int | None, int] = {number: place for place, (number, _) in enumerate(within)}
    calls = [replace(call, at=call.at - start, after=places.get(call.after)) for _, call in within]
    return replace(trace, calls=calls)


def _shift(trace: Trace) -> Callable[[float, float], float]:
    """Return a function that shifts the start of a copied conversation, by a number from 0 to 1."""
    if trace.closed:
        span = max((call.at for call in trace.calls), default=0.0)
        return lambda at, moved: math.fmod(at + moved * span, span) if span else at
    return lambda at, moved: max(0.0, at + (moved - 0.5) * _APART)


class _Renaming:
    """Gives the private tokens of each copy ids of their own."""

    def __init__(self, calls: Collection[Call], copies: int) -> None:
        self._shared = _shared(calls)
        runs = (run for call in calls for part in (call.prompt, call.response) for run in part)
        self._apart = 1 + max((run.token for run in runs), default=0)
        if self._apart * copies > TOKEN_IDS:
            raise ConfigError(
                f"{copies} copies need more than the {TOKEN_IDS:,} token ids there are"
            )

    def __call__(self, runs: Runs, copy: int) -> Runs:
        """Return the runs of the copy of this number; copy 0 is the trace itself."""
        if not copy:
            return runs
        apart, shared = copy * self._apart, self._shared
        return tuple(
            run if run.token in shared else Run(run.token + apart, run.length) for run in runs
        )


def _shared(calls: Iterable[Call]) -> frozenset[int]:
    sessions: defaultdict[int, set[int]] = defaultdict(set)
    for call in calls:
        sessions[call.session].update(run.token for run in call.prompt)
    counts = Counter(token for tokens in sessions.values() for token in tokens)
    least = max(2, SHARED * len(sessions))
    return frozenset(token for token, count in counts.items() if count >= least)
