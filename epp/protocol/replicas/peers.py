"""One peer, as it is heard: its messages, its requests, and how its clock differs."""

from collections import OrderedDict
from collections.abc import Iterator
from math import exp
from typing import Final

from epp.model.events import Event
from epp.model.learning.bounded import make_room
from epp.model.request_events import Unobserved
from epp.protocol.replicas.facts import AdmittedFact, HeartbeatFact
from epp.protocol.replicas.messages import ReplicaMessage
from epp.protocol.replicas.requests_of_peer import RequestsOfPeer, digest_of

CHAIN_SECONDS: Final = 1.0
"""How long a request waits for the chain that it starts with, and a chain for being told."""
_WINDOW: Final = 4096
"""How far back a message may be overtaken by others and still be taken in."""
_MAX_WAITING: Final = 4096
"""Requests that wait for chains, and chains that are asked for, at most."""
_RATE_SECONDS: Final = 0.25
"""Over how long the rate of requests is averaged: it fades by e in this time."""
_LAG_WEIGHT: Final = 0.1
"""What the last message's lag counts for in the usual one."""
_LONGEST_ROUND: Final = 1.0
"""Seconds between a heartbeat and its answer after which clocks are not set by it."""
_LONGEST_LAG: Final = 0.1
"""Seconds: who hears a peer later than that knows nothing of what it does now."""


class Peer:
    """A replica that was heard, which drew `number` when it started.

    It was last heard at `heard_at`, and is `present` unless it has `left`, which is for good, or
    was silent for long. `missing` counts its messages that were not received, `losses` how often
    some were. `settled` says whether it knows of caches what others do, None while it has not said.
    `lag` is that of its last message in seconds, None while its clock is unknown.
    """

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.requests: Final = RequestsOfPeer()
        self.heard_at = 0.0
        self.present = self.left = False
        self.missing = self.losses = 0
        self.settled: bool | None = None
        self.lag: float | None = None
        self._usual_lag = self._rate = self._rated_at = 0.0
        self._ahead: float | None = None  # seconds by which its clock is ahead of ours
        self._first = self._highest = 0
        self._seen: set[int] = set()
        self._waiting: dict[int, list[tuple[float, AdmittedFact]]] = {}
        self._waiting_count = 0
        self._asked = OrderedDict[int, float]()  # when each chain was asked for, the oldest first

    @property
    def owns(self) -> bool:
        """Whether it may own endpoints, and warm others up."""
        return self.present and self.settled is True

    @property
    def tells(self) -> bool:
        """Whether what it tells all arrives here, not its answers alone."""
        return self._highest > 0

    # Messages.

    def is_new(self, sequence: int) -> bool:
        """Take in a message's number; return whether it was not received before."""
        if sequence > self._highest:
            if self._highest:
                lost = sequence - self._highest - 1
                self.missing += lost
                self.losses += lost > 0
            else:
                self._first = sequence
            self._highest = sequence
        elif sequence in self._seen or sequence <= self._highest - _WINDOW:
            return False
        elif sequence > self._first:
            self.missing -= 1
        self._seen.add(sequence)
        if len(self._seen) > 2 * _WINDOW:
            least = self._highest - _WINDOW
            self._seen = {each for each in self._seen if each > least}
        return True

    def heard(self, message: ReplicaMessage, now: float) -> float | None:
        """Take in that it lives; return the lag of a message to all."""
        self.heard_at, self.present = now, not self.left
        if self._ahead is None or not message.sequence:
            return None
        self.lag = lag = max(0.0, now + self._ahead - message.noted)
        self._usual_lag += _LAG_WEIGHT * (min(lag, _LONGEST_LAG) - self._usual_lag)
        return lag

    def set_clock(self, asked: float, answered: float, now: float) -> None:
        """Learn how far its clock is ahead: it answered at `answered`, between two of ours.

        Of an answer that took long, as one of either did not run, that says little.
        """
        if asked <= now and (self._ahead is None or now - asked <= _LONGEST_ROUND):
            self._ahead = answered - (asked + now) / 2

    def sent(self, now: float) -> None:
        """Take note that it sent a request to an endpoint."""
        faded = self._rate * exp((self._rated_at - now) / _RATE_SECONDS)
        self._rate, self._rated_at = faded + 1 / _RATE_SECONDS, now

    def unseen(self, now: float) -> float:
        """Return how many requests it probably sent that are still on their way to be heard of."""
        return self._usual_lag * self._rate * exp((self._rated_at - now) / _RATE_SECONDS)

    # Requests.

    def agrees(self, heartbeat: HeartbeatFact) -> bool:
        """Return whether it has the requests in flight that are believed."""
        believed = self.believed()
        return len(believed) == heartbeat.in_flight and digest_of(believed) == heartbeat.digest

    def believed(self) -> set[int]:
        """Return the numbers of the requests that it is believed to have in flight."""
        waiting = {fact.number for facts in self._waiting.values() for _, fact in facts}
        over = {each for each in waiting if self.requests.ends_early(each)}
        return self.requests.in_flight.keys() | (waiting - over)

    def leave(self) -> Iterator[Event]:
        """Yield what becomes of its requests: nothing more of them will be seen."""
        self.present = False
        self.losses += 1
        self._waiting.clear()
        self._waiting_count = 0
        self._asked.clear()
        for request in self.requests.end_all():
            yield Unobserved(request)

    # Chains.

    def wait(self, tip: int, fact: AdmittedFact, now: float) -> bool:
        """Keep a request, if there is room, until a chain is told.

        Return whether that is to be asked for: it was not in `CHAIN_SECONDS`.
        """
        if self._waiting_count < _MAX_WAITING:
            self._waiting.setdefault(tip, []).append((now, fact))
            self._waiting_count += 1
        asked = self._asked.get(tip)
        if asked is not None and now - asked < CHAIN_SECONDS:
            return False
        self._asked.pop(tip, None)
        make_room(self._asked, _MAX_WAITING)
        self._asked[tip] = now
        return True

    def waiting_for(self, tip: int) -> list[AdmittedFact]:
        """Return the requests that waited for a chain."""
        self._asked.pop(tip, None)
        waiting = self._waiting.pop(tip, ())
        self._waiting_count -= len(waiting)
        return [fact for _, fact in waiting]

    def overdue_chains(self, before: float) -> int:
        """Drop requests that have waited since `before`; return how many.

        A chain that was asked for then, and was not told, is asked for when it is next needed.
        """
        while self._asked and next(iter(self._asked.values())) <= before:
            self._asked.popitem(last=False)
        overdue = 0
        for tip, waiting in list(self._waiting.items()):
            left = [(since, fact) for since, fact in waiting if since > before]
            overdue += len(waiting) - len(left)
            if left:
                self._waiting[tip] = left
            else:
                del self._waiting[tip]
        self._waiting_count -= overdue
        return overdue
