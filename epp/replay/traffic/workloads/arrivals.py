"""When conversations begin: at drawn times, as in a file, or one after another for each user."""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count, repeat
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from epp.errors import ConfigError
from epp.replay.traffic.bounds import MAX_REQUESTS, MAX_SECONDS
from epp.replay.traffic.calls import Call, Trace, ordered
from epp.replay.traffic.formats import read_file

Rate = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_REQUESTS)]
_BEGIN_SECONDS = 10.0
"""Within which the users of a closed loop begin, evenly."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations arrive.

    `rate` is in calls per second, counted as if none had to wait for another. It grows linearly to
    `to_rate` if that is given. `cv` is the coefficient of variation of the times between: 1 is
    Poisson, more comes in bursts (gamma). `like` is a file of traffic whose times are used, scaled
    to the rate if one is given. `users` makes a closed loop: each has a conversation, and begins
    the next one when that is over.
    """

    rate: Rate | None = None
    to_rate: Rate | None = None
    cv: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    like: str | None = None
    users: Count | None = None


def arriving(trace: Trace, arrivals: Arrivals, seed: int) -> Trace:
    """Return a trace whose conversations begin at other times; each keeps its own pauses.

    Without parameters the trace stays as it is. Raises `ConfigError`, also if the last conversation
    would begin after `MAX_SECONDS`.
    """
    if arrivals.users is not None:
        return _closed(trace, arrivals.users)
    if arrivals.like is not None:
        starts: Iterable[float] = _like(Path(arrivals.like), trace, arrivals.rate, seed)
    elif arrivals.rate is not None:
        starts = _drawn(trace, arrivals, seed)
    else:
        return trace
    calls = _started(trace.calls, starts)
    if not calls[-1].at <= MAX_SECONDS:
        raise ConfigError(
            f"the last of {len(calls):,} requests would come after more than a year: raise"
            " the rate",
            trace.name,
        )
    return replace(trace, calls=calls, closed=False)


def _started(calls: Sequence[Call], starts: Iterable[float]) -> list[Call]:
    """Let conversations begin at these times, in the order in which they have begun.

    Conversations no longer wait for each other, as those of one user do.
    """
    coming = iter(starts)
    shifts: dict[int, float] = {}
    begun: list[Call] = []
    for call in calls:
        if call.session not in shifts:
            shifts[call.session] = next(coming) - call.at
        after = call.after
        if after is not None and calls[after].session != call.session:
            after = None
        begun.append(replace(call, at=call.at + shifts[call.session], after=after))
    return ordered(begun)


def _drawn(trace: Trace, arrivals: Arrivals, seed: int) -> Iterator[float]:
    """Draw starts at a constant rate of 1, and stretch time so that they have the wanted rate."""
    sessions = len({call.session for call in trace.calls})
    first = (arrivals.rate or 1.0) * sessions / len(trace.calls)
    last = first if arrivals.to_rate is None else first * arrivals.to_rate / (arrivals.rate or 1.0)
    # Other numbers than those by which conversations are drawn, or lengths would go with times.
    draw, shape = random.Random(f"arrivals {seed}"), arrivals.cv**-2
    gaps = (draw.gammavariate(shape, 1 / shape) for _ in repeat(None))
    # The rate is first + (last - first) t / T, and T such that all sessions come in it.
    growth = (last**2 - first**2) / (2 * sessions)
    for done in accumulate(gaps):
        if not growth:
            yield done / first
        elif done <= sessions:
            yield (math.sqrt(max(0.0, first**2 + 2 * growth * done)) - first) / growth
        else:
            yield 2 * sessions / (first + last) + (done - sessions) / last


def _like(path: Path, trace: Trace, rate: float | None, seed: int) -> Iterator[float]:
    """Return the times of a file's calls; a file that is too short is repeated."""
    times = [call.at for call in read_file(path, seed=seed).calls]
    sessions = len({call.session for call in trace.calls})
    span = times[-1] * len(times) / max(1, len(times) - 1)
    if not span:
        raise ConfigError(f"{path} has no times: all of its {len(times)} calls come at once")
    pace = 1.0 if rate is None else rate * sessions / len(trace.calls) * span / len(times)
    return (at / pace if pace else math.inf for at in _again(times, span))


def _again(times: Sequence[float], span: float) -> Iterator[float]:
    for begun in count():
        yield from (begun * span + at for at in times)


def _closed(trace: Trace, users: int) -> Trace:
    """Deal the conversations out to users, whose starts are spread over the first seconds."""
    conversations: defaultdict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(trace.calls):
        conversations[call.session].append(number)
    listed = list(conversations.values())
    calls: list[Call] = []
    for user in range(min(users, len(listed))):
        at, last = _BEGIN_SECONDS * user / users, None
        for conversation in listed[user::users]:
            places: dict[int | None, int] = {}
            for number in conversation:
                call = trace.calls[number]
                places[number] = len(calls)
                # What comes after another conversation was one of another user's.
                calls.append(replace(call, at=at, after=places.get(call.after, last)))
            last = len(calls) - 1
    return replace(trace, calls=calls, closed=True)
