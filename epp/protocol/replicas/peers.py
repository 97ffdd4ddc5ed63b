"""One peer, by what is received from it: messages, requests, and how its clock differs."""

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
"""How long a request waits for the chain that it starts with, and a query for its reply."""
_WINDOW: Final = 4096
"""A message may be overtaken by this many later ones and is still read."""
_MAX_WAITING: Final = 4096
"""The most requests that wait for chains, and the most chains that are asked for."""
_RATE_SECONDS: Final = 0.25
"""The time constant over which the rate of requests is averaged."""
_LAG_WEIGHT: Final = 0.1
"""The weight of the last message's lag in the average."""
_LONGEST_ROUND: Final = 1.0
"""If an answer to a heartbeat takes longer, in seconds, it does not set a clock."""
_LONGEST_LAG: Final = 0.1
"""The longest lag that counts in the average, in seconds."""


class Peer:
    """Another replica, which drew `number` when it started.

    Its last message came at `last_message_at`. It is `present` unless it has `left`, which is
    final, or was silent for long. `missing` counts its messages that did not arrive, `losses` the
    gaps. `settled` says whether it knows as much of caches as others, None while it has not said.
    `full` says that it forgets some of that. `lag` is that of its last message in seconds, None
    while its clock is unknown.
    """

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.requests: Final = RequestsOfPeer()
        self.last_message_at = 0.0
        self.present = self.left = self.full = False
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
        """Whether it may own endpoints; if the memory of all is full, all that know caches may."""
        return self.present and self.settled is True and not self.full

    @property
    def broadcasts_arrive(self) -> bool:
        """Whether its messages to all arrive here, and not only its answers."""
        return self._highest > 0

    # Messages.

    def is_new(self, sequence: int) -> bool:
        """Record a message's number; return whether the message was not received before."""
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

    def receive(self, message: ReplicaMessage, now: float) -> float | None:
        """Record that it is alive; return the lag of a message to all."""
        self.last_message_at, self.present = now, not self.left
        if self._ahead is None or not message.sequence:
            return None
        self.lag = lag = max(0.0, now + self._ahead - message.noted)
        self._usual_lag += _LAG_WEIGHT * (min(lag, _LONGEST_LAG) - self._usual_lag)
        return lag

    def set_clock(self, asked: float, answered: float, now: float) -> None:
        """Learn how far its clock is ahead, from when it `answered` between two times of ours.

        An answer that took long shows little: one of the two processes may have been paused.
        """
        if asked <= now and (self._ahead is None or now - asked <= _LONGEST_ROUND):
            self._ahead = answered - (asked + now) / 2

    def sent(self, now: float) -> None:
        """Record that it sent a request to an endpoint."""
        faded = self._rate * exp((self._rated_at - now) / _RATE_SECONDS)
        self._rate, self._rated_at = faded + 1 / _RATE_SECONDS, now

    def unseen(self, now: float) -> float:
        """Return how many of its requests are probably not known here yet."""
        return self._usual_lag * self._rate * exp((self._rated_at - now) / _RATE_SECONDS)

    # Requests.

    def agrees(self, heartbeat: HeartbeatFact) -> bool:
        """Return whether it has the same requests in flight as believed here."""
        believed = self.believed()
        return len(believed) == heartbeat.in_flight and digest_of(believed) == heartbeat.digest

    def believed(self) -> set[int]:
        """Return the numbers of the requests that it is believed to have in flight."""
        waiting = {fact.number for facts in self._waiting.values() for _, fact in facts}
        over = {each for each in waiting if self.requests.ends_early(each)}
        return self.requests.in_flight.keys() | (waiting - over)

    def leave(self) -> Iterator[Event]:
        """Yield events for its requests, of which nothing more will be seen."""
        self.present = False
        self.losses += 1
        self._waiting.clear()  # chains may still come
        self._waiting_count = 0
        for request in self.requests.end_all():
            yield Unobserved(request)

    # Chains.

    def wait(self, tip: int, fact: AdmittedFact, now: float) -> bool:
        """Keep a request, if there is room, until its chain arrives.

        Return whether to ask for the chain: it was not asked for in the last `CHAIN_SECONDS`.
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
        """Drop requests that have waited since `before`; return how many."""
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
