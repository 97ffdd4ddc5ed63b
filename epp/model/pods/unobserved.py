"""What goes on out of sight: requests whose responses are left to the proxy still run.

A virtual clock says of each what would have been seen: `Generated` as it goes on, and its end,
`Aborted`, when an answer of the expected length would be over. Where an engine's own count of its
requests goes together with the books, that decides instead: who is expected to have ended, but may
still be among those that it runs, stays; and where it runs fewer than must be there, those end
whose time came first. A count that is larger than the books has others' requests in it, and tells
nothing.

The clock is the caller's, and never goes back; nothing is lost where a call comes late.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from itertools import count
from math import inf
from operator import attrgetter

import msgspec

from epp.model.endpoint import EndpointId, Load
from epp.model.events import Aborted, Generated
from epp.model.request import RequestId

_TOKENS_TOLD = 32
_LEAST_STEP = 0.05
"""How often a request is said to have gone on: every two blocks of most engines, and seconds."""
_PATIENCE, _PATIENCE_SECONDS = 4.0, 10.0
"""How many times its expected length, and seconds besides, a request may be overdue."""
_COUNT_SECONDS = 10.0
"""How long a count is good for."""
_LEAST_PACE = 1e-4
_ROUNDING = 1e-6
_SLACK, _SLACK_REQUESTS = 1.05, 1.0
"""How many more than booked an engine may count: some of them have just ended."""


class UnobservedRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request that nobody observes, at `place`; nothing was seen of it after `since`.

    It generates its first token at `began`, one more every `pace` seconds, `length` of them as
    far as is known, which is at least one, and never more than `most`.
    """

    id: RequestId
    place: EndpointId
    since: float
    began: float
    seconds_per_token: float
    length: float
    most: float = inf

    @property
    def due(self) -> float:
        """When it is expected to end."""
        return self.began + (self.length - 1) * max(self.seconds_per_token, _LEAST_PACE)

    @property
    def last(self) -> float:
        """When it is over, whatever an engine counts."""
        return self.began + _PATIENCE * (self.due - self.began) + _PATIENCE_SECONDS

    def generated(self, now: float) -> int:
        """Return how many tokens it has brought about."""
        if now < self.began:
            return 0
        tokens = 1 + (now - self.began) / max(self.seconds_per_token, _LEAST_PACE) + _ROUNDING
        return int(min(tokens, self.most, _PATIENCE * self.length))


class UnobservedRequests:
    """All unseen requests. `due` is when the next of them has something to tell, if any."""

    def __init__(self) -> None:
        self.due = inf
        self._unseen: dict[RequestId, UnobservedRequest] = {}
        self._places: dict[EndpointId, dict[RequestId, UnobservedRequest]] = {}
        self._counted: dict[EndpointId, tuple[float, bool]] = {}  # when, and whether it agreed
        self._agenda: list[tuple[float, int, UnobservedRequest]] = []
        self._tickets = count()

    def __len__(self) -> int:
        return len(self._unseen)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._unseen

    def take(self, unseen: UnobservedRequest) -> None:
        """Follow a request from now on, in place of one of the same name."""
        self.forget(unseen.id)
        self._unseen[unseen.id] = unseen
        self._places.setdefault(unseen.place, {})[unseen.id] = unseen
        self._plan(unseen, unseen.since, unseen.since)

    def forget(self, request: RequestId) -> None:
        """Tell no more of a request."""
        unseen = self._unseen.pop(request, None)
        if unseen is None:
            return
        here = self._places[unseen.place]
        del here[request]
        if not here:
            del self._places[unseen.place]
            self._counted.pop(unseen.place, None)

    def advance(self, now: float) -> Iterator[tuple[float, Generated | Aborted]]:
        """Tell, in order of time, what has happened up to `now`, and when."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= now:
            at, _, unseen = heappop(agenda)
            if self._unseen.get(unseen.id) is unseen:
                yield at, self._next(unseen, at, now)
        self.due = agenda[0][0] if agenda else inf

    def _next(self, unseen: UnobservedRequest, at: float, now: float) -> Generated | Aborted:
        if at >= (unseen.last if self._kept(unseen, at) else unseen.due):
            self.forget(unseen.id)
            return Aborted(unseen.id, unseen.generated(at))
        self._plan(unseen, at, now)
        return Generated(unseen.id, unseen.generated(at))

    def _plan(self, unseen: UnobservedRequest, at: float, now: float) -> None:
        """Come back some tokens on, and at the end; where `at` is long past, skip what is, too."""
        step = max(_LEAST_STEP, _TOKENS_TOLD * unseen.seconds_per_token)
        end = unseen.due if at < unseen.due else unseen.last
        when = min(max(now, unseen.began) + step, end)
        heappush(self._agenda, (when, next(self._tickets), unseen))
        self.due = min(self.due, when)

    def counted(self, place: EndpointId, load: Load, books: tuple[int, int]) -> list[Aborted]:
        """Hold the books of a place to its engine's own count of requests, as reported.

        The `books` have so many requests in all, and so many that may not be there yet. Returns
        the ends of those that cannot be there any more.
        """
        at, here = load.at, self._places.get(place)
        if here is None or at <= self._counted.get(place, (-inf, False))[0]:
            return []
        requests, (booked, coming) = load.waiting + load.running, books
        self._counted[place] = at, requests <= _SLACK * booked + _SLACK_REQUESTS
        there = [each for each in here.values() if max(each.since, each.began) < at]
        over = nsmallest(booked - coming - int(requests), there, key=attrgetter("due"))
        for each in over:
            self.forget(each.id)
        return [Aborted(each.id, each.generated(at)) for each in over]

    def _kept(self, unseen: UnobservedRequest, now: float) -> bool:
        """Whether a late count that has all of a place's requests has this one, too."""
        at, agreed = self._counted.get(unseen.place, (-inf, False))
        return agreed and at > max(unseen.since, now - _COUNT_SECONDS)
