"""The events that a connection has received but not handled, while it waits for turns.

Connections read ahead of what they handle: a call that is given up before it began costs nothing.
"""

from collections import OrderedDict, deque
from math import inf
from typing import Any, Final

from epp.adapters.extproc.http2.session import CLOSED, GROWN, MESSAGE, OPENED, Stream
from epp.adapters.extproc.turns import Turns

Event = tuple[Stream, int, Any]
"""A stream, what happened, and its value (`http2/events.pxi`)."""

_MOST_BYTES: Final = 32 << 20
"""The most bytes that all connections together read ahead."""
_EVENTS_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 1 << 18
_LATE: Final = (0.5, 2.0)
"""The oldest call is late between these two multiples of its peer's patience."""
_EVENT_BYTES: Final = 256
_CALL_BYTES: Final = 1 << 10
"""Bytes that a stream counts for besides its events."""


class ReadAhead:
    """The events of one connection, each stream's in order; their bytes count in `Turns.ahead`.

    Events of begun calls come first, then new calls: the oldest or, while that is late, the newest.
    If the oldest always came first, then past capacity each call would begin when its peer is about
    to give it up, and all work would be wasted. The peer's patience is how long it waited for the
    last call that it gave up as the oldest: the client of any other call may have left for a reason
    of its own. A call that is not given up for much longer shows that the peer waits longer.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._begun: deque[Event] = deque()
        self._new: OrderedDict[Stream, tuple[float, list[Event]]] = OrderedDict()  # and its time
        self._patience = inf

    def __bool__(self) -> bool:
        return bool(self._begun or self._new)

    @property
    def far(self) -> bool:
        """Whether all connections together have read ahead as far as they may."""
        return self._turns.ahead > _MOST_BYTES

    def add(self, events: list[Event], now: float) -> None:
        """Add what was received; forget new calls that were given up."""
        for each in events:
            stream, event, _ = each
            if stream.owner is not None:
                self._begun.append(each)
            elif event == OPENED:
                self._new[stream] = now, [each]
            elif stream not in self._new:
                continue  # it was ended here
            elif event == CLOSED:
                is_oldest = stream is next(iter(self._new))
                arrived, given_up = self._new.pop(stream)
                if is_oldest:
                    self._patience = now - arrived
                self._turns.ahead -= sum(map(_size, given_up))
                continue
            else:
                self._new[stream][1].append(each)
            self._turns.ahead += _size(each)

    def take(self, now: float) -> list[Event]:
        """Remove the next events, about a turn's work, a new call's among them if there is one."""
        events: list[Event] = []
        size, (start, end) = 0, _LATE
        while self._begun and not _is_turn(events, size):
            events.append(self._begun.popleft())
            size += _size(events[-1])
        while self._new:
            oldest, _ = self._new[next(iter(self._new))]
            late = start * self._patience < now - oldest < end * self._patience
            _, (_, call) = self._new.popitem(last=late)
            events += call[:_EVENTS_AT_ONCE]
            self._begun += call[_EVENTS_AT_ONCE:]
            size += sum(map(_size, call[:_EVENTS_AT_ONCE]))
            if _is_turn(events, size):
                break
        if not self._new:
            self._patience = inf
        self._turns.ahead -= size
        return events

    def drop(self) -> list[Stream]:
        """Remove all events; return the begun calls that were closed."""
        left = [*self._begun, *(each for _, events in self._new.values() for each in events)]
        self._begun.clear()
        self._new.clear()
        self._turns.ahead -= sum(map(_size, left))
        return [stream for stream, event, _ in left if event == CLOSED]


def _is_turn(events: list[Event], size: int) -> bool:
    return len(events) >= _EVENTS_AT_ONCE or size >= _BYTES_AT_ONCE


def _size(event: Event) -> int:
    stream, kind, value = event
    if kind == MESSAGE:
        return _EVENT_BYTES + len(value)
    if kind == OPENED:
        return _EVENT_BYTES + _CALL_BYTES + len(stream.path) + len(stream.content_type)
    return _EVENT_BYTES + (value if kind == GROWN else 0)
