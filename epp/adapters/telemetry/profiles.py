"""Profiles of the running process, at the paths of Go's `net/http/pprof`.

`/debug/pprof/profile?seconds=N` samples the event loop's thread 100 times per second of CPU time.
It returns a line `a;b;c N` for each stack that was seen, as flamegraph.pl, inferno and
speedscope.app read it. The time of compiled code counts for the Python code that called it.
`/debug/pprof/goroutine` lists the tasks, and where each waits. Without a request nothing runs, and
nothing is kept.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from itertools import islice
from types import FrameType
from urllib.parse import parse_qs

_ROOT = b"/debug/pprof/"
_INTERVAL = 0.01
"""Seconds of CPU time between two samples, as in Go."""
_SECONDS, _MAX_SECONDS = 30.0, 60.0
_MAX_TASKS, _MAX_FRAMES = 10_000, 64
_INDEX = (
    b"/debug/pprof/profile?seconds=30  samples of CPU time, as collapsed stacks\n"
    b"/debug/pprof/goroutine           tasks, and where they wait\n"
)

Page = tuple[HTTPStatus, bytes]
"""A status and a text."""
Profile = Callable[[bytes], Awaitable[Page]]
"""Returns a page for a query: 400 for one without sense, 429 while busy."""


async def _index(_: bytes) -> Page:
    return HTTPStatus.OK, _INDEX


async def _profile(query: bytes) -> Page:
    seconds = _seconds(query)
    if seconds is None:
        return HTTPStatus.BAD_REQUEST, b"seconds: a number from 0.01 to 60\n"
    if signal.getsignal(signal.SIGPROF) not in {signal.SIG_DFL, signal.SIG_IGN}:
        return HTTPStatus.TOO_MANY_REQUESTS, b"a profile is being taken\n"
    with _sampling() as seen:
        await asyncio.sleep(seconds)
    lines = [f"{stack} {count}\n" for stack, count in seen.most_common()]
    return HTTPStatus.OK, "".join(lines).encode()


async def _tasks(_: bytes) -> Page:
    written = []
    for task in islice(asyncio.all_tasks(), _MAX_TASKS):
        stack = [f"  {_place(frame)}" for frame in task.get_stack(limit=_MAX_FRAMES)]
        written.append("\n".join([task.get_name(), *stack]))
    return HTTPStatus.OK, "".join(f"{each}\n" for each in sorted(written)).encode()


PROFILES: Mapping[bytes, Profile] = {
    _ROOT: _index,
    _ROOT + b"profile": _profile,
    _ROOT + b"goroutine": _tasks,
}
"""The pages by their paths, of the main thread. One profile is taken at a time."""


def _seconds(query: bytes) -> float | None:
    """Return how long to sample, in seconds; None if the query is not valid."""
    given = parse_qs(query.decode("latin-1")).get("seconds")
    if given is None:
        return _SECONDS
    try:
        seconds = float(given[0])
    except ValueError:
        return None
    return seconds if _INTERVAL <= seconds <= _MAX_SECONDS else None


@contextmanager
def _sampling() -> Iterator[Counter[str]]:
    """Count the stacks of the main thread.

    A signal interrupts it anywhere; a sampling thread would run only when the main thread lets it,
    which is mostly while that waits.
    """
    seen = Counter[str]()

    def take(_: int, frame: FrameType | None) -> None:
        seen[_stack(frame)] += 1

    signal.signal(signal.SIGPROF, take)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not the default, which ends the process: one signal may still be under way.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)


def _stack(at: FrameType | None) -> str:
    """Return the places of a frame and its callers, the outermost first."""
    places: list[str] = []
    while at is not None and len(places) < _MAX_FRAMES:
        places.append(_place(at))
        at = at.f_back
    return ";".join(reversed(places))


def _place(frame: FrameType) -> str:
    code = frame.f_code
    module = str(frame.f_globals.get("__name__", code.co_filename))
    return f"{module}.{code.co_qualname}:{frame.f_lineno}".replace(";", ",").replace(" ", "_")
