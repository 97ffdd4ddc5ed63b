"""Requests whose responses are not observed, and a virtual clock that guesses their course.

For each request the clock yields what would have been seen: `Generated` while it continues, and
`Aborted` when a response of the expected length would be over. The engine's own count of its
requests takes precedence if it fits the ledger:

- An overdue request continues if it may be among those that the engine runs.
- If the engine runs fewer than it should, the requests that were due first end.
- Until the next count, more end in the same order, as often as responses do on average, if that is
  known: short ones end before they are due, which only a count shows.

A count above the ledger's includes requests of other senders, and decides nothing.

The clock is the caller's, in seconds, and never goes back; nothing is lost if a call is late.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from itertools import count
from math import inf
from typing import Final

from epp.model.endpoint import EndpointId, Load
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Generated

_TOKENS_APART = 64
"""Tokens between two guesses for one request: four blocks of most engines."""
_MIN_SECONDS_APART = 0.05
"""Seconds between two guesses for one request, at least."""
_OVERDUE, _OVERDUE_SECONDS = 4.0, 10.0
"""An overdue request ends after this multiple of its expected duration, plus these seconds."""
_COUNT_SECONDS = 10.0
"""Seconds for which an engine's count is used."""
_MIN_SECONDS_PER_TOKEN = 1e-4
_MIN_SECONDS = 0.05
"""Seconds that a response takes, at least, if the next end is guessed."""
_ROUNDING = 1e-6
"""Tokens by which rounding may make a sum fall short of a whole one."""
_SLACK, _SLACK_REQUESTS = 1.05, 1.0
"""A count fits up to this factor and number above the ledger's: some requests have just ended."""


class UnobservedRequest:
    """A request whose response is not observed. Times are in seconds."""

    def __init__(  # noqa: PLR0913 (the course)
        self,
        id: RequestId,  # noqa: A002 (its name)
        endpoint_id: EndpointId,
        *,
        since: float,
        began: float,
        seconds_per_token: float,
        length: float,
        most: float = inf,
        usual: bool = True,
        answers: int = 1,
    ) -> None:
        self.id: Final = id
        self.endpoint_id: Final = endpoint_id
        self.since: Final = since
        """When it was last seen."""
        self.began: Final = began
        """When it generates its first token."""
        self.seconds_per_token: Final = max(seconds_per_token, _MIN_SECONDS_PER_TOKEN)
        """Seconds for each further token."""
        self.length: Final = length
        """The expected number of tokens of each answer: at least one."""
        self.most: Final = most
        """The most tokens that each answer may have."""
        self.answers: Final = answers
        """How many answers are generated side by side."""
        self.usual: Final = usual
        """Whether the length was learned from enough other responses."""
        self.due: Final = began + (length - 1) * self.seconds_per_token
        """When it is expected to end."""
        self.last: Final = began + _OVERDUE * (self.due - began) + _OVERDUE_SECONDS
        """When it is over, whatever the engine counts."""

    def counted(self, at: float) -> bool:
        """Return whether an engine's count at that time includes it if it had not ended."""
        return max(self.since, self.began) < at

    def generated(self, now: float) -> int:
        """Return how many tokens it is expected to have generated."""
        if now < self.began:
            return 0
        tokens = 1 + (now - self.began) / self.seconds_per_token + _ROUNDING
        return int(min(tokens, self.most, _OVERDUE * self.length)) * self.answers


class _NextEnd:
    """The next guessed end among the requests of an endpoint that were counted at a time."""

    def __init__(self, endpoint_id: EndpointId, at: float) -> None:
        self.endpoint_id: Final = endpoint_id
        self.at: Final = at


class UnobservedRequests:
    """All requests that are not observed. `due` is the time of the next guess."""

    def __init__(self) -> None:
        self.due = inf
        self._requests: dict[RequestId, UnobservedRequest] = {}
        self._by_endpoint: dict[EndpointId, dict[RequestId, UnobservedRequest]] = {}
        self._counted: dict[EndpointId, tuple[float, bool]] = {}  # when, and whether it fitted
        self._next_ends: dict[EndpointId, _NextEnd] = {}
        self._agenda: list[tuple[float, int, UnobservedRequest | _NextEnd]] = []
        self._tickets = count()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._requests

    def add(self, unseen: UnobservedRequest) -> None:
        """Add a request, in place of one of the same id; guesses begin at its `since`."""
        self.discard(unseen.id)
        self._requests[unseen.id] = unseen
        self._by_endpoint.setdefault(unseen.endpoint_id, {})[unseen.id] = unseen
        self._plan(unseen, unseen.since, unseen.since)

    def discard(self, request: RequestId) -> None:
        """Stop guessing for a request; an unknown one is ignored."""
        unseen = self._requests.pop(request, None)
        if unseen is None:
            return
        here = self._by_endpoint[unseen.endpoint_id]
        del here[request]
        if not here:
            del self._by_endpoint[unseen.endpoint_id]
            self._counted.pop(unseen.endpoint_id, None)
            self._next_ends.pop(unseen.endpoint_id, None)

    def advance(self, now: float) -> Iterator[tuple[float, Generated | Aborted]]:
        """Yield the guessed events up to `now` as `(time, event)`, in order of time."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= now:
            at, _, planned = heappop(agenda)
            if isinstance(planned, _NextEnd):
                over = self._end_one(planned, at)
                if over is not None:
                    yield at, over
            elif self._requests.get(planned.id) is planned:
                yield at, self._next(planned, at, now)
        self.due = agenda[0][0] if agenda else inf

    def _next(self, unseen: UnobservedRequest, at: float, now: float) -> Generated | Aborted:
        if at >= (unseen.last if self._may_run(unseen, at) else unseen.due):
            self.discard(unseen.id)
            return Aborted(unseen.id, unseen.generated(at))
        self._plan(unseen, at, now)
        return Generated(unseen.id, unseen.generated(at))

    def _end_one(self, planned: _NextEnd, at: float) -> Aborted | None:
        """End the counted request that was due first; plan the next end."""
        there = self._usual(planned.endpoint_id, planned.at)
        if self._next_ends.get(planned.endpoint_id) is not planned or not there:
            return None
        over = min(there, key=_due)
        self.discard(over.id)
        self._plan_end(planned.endpoint_id, planned.at, at, 1.0)
        return Aborted(over.id, over.generated(at))

    def _plan_end(self, endpoint_id: EndpointId, counted: float, now: float, ends: float) -> None:
        """Plan the next end among the counted requests, for when this many ends are expected."""
        self._next_ends.pop(endpoint_id, None)
        there = self._usual(endpoint_id, counted)
        a_second = sum([1.0 / max(_MIN_SECONDS, each.due - each.began) for each in there])
        if ends >= a_second * _COUNT_SECONDS:  # a later count comes first
            return
        self._next_ends[endpoint_id] = planned = _NextEnd(endpoint_id, counted)
        when = now + ends / a_second
        heappush(self._agenda, (when, next(self._tickets), planned))
        self.due = min(self.due, when)

    def _usual(self, endpoint_id: EndpointId, at: float) -> list[UnobservedRequest]:
        """Return the requests of known length that an engine's count of that time included."""
        here = self._by_endpoint.get(endpoint_id, {})
        return [each for each in here.values() if each.usual and each.counted(at)]

    def _plan(self, unseen: UnobservedRequest, at: float, now: float) -> None:
        """Plan the next guess: some tokens later, or the end. If `at` is long past, skip to now.

        A request that was observed for longer than `last` ends at once, not in the past.
        """
        step = max(_MIN_SECONDS_APART, _TOKENS_APART * unseen.seconds_per_token)
        end = unseen.due if at < unseen.due else max(at, unseen.last)
        when = min(max(now, unseen.began) + step, end)
        heappush(self._agenda, (when, next(self._tickets), unseen))
        self.due = min(self.due, when)

    def reconcile(
        self, endpoint_id: EndpointId, load: Load, booked: int, coming: int
    ) -> list[Aborted]:
        """Compare an endpoint's ledger with its engine's own count of requests, as reported.

        `coming` of the `booked` requests in the ledger may not have arrived yet. Returns the ends
        of requests that can no longer be there.
        """
        at, here = load.at, self._by_endpoint.get(endpoint_id)
        if here is None or at <= self._counted.get(endpoint_id, (-inf, False))[0]:
            return []
        requests = load.waiting + load.running
        fits = requests <= _SLACK * booked + _SLACK_REQUESTS
        self._counted[endpoint_id] = at, fits
        there = [each for each in here.values() if each.counted(at)]
        over = nsmallest(booked - coming - int(requests), there, key=_due)
        for each in over:
            self.discard(each.id)
        if fits:
            self._plan_end(endpoint_id, at, at, 1.0 + max(0.0, requests - booked))
        else:
            self._next_ends.pop(endpoint_id, None)
        return [Aborted(each.id, each.generated(at)) for each in over]

    def ends_at(self, endpoint_id: EndpointId, now: float) -> list[Aborted]:
        """Return the ends of all requests at an endpoint that is gone."""
        here = self._by_endpoint.get(endpoint_id, {})
        return [Aborted(each.id, each.generated(now)) for each in here.values()]

    def _may_run(self, unseen: UnobservedRequest, now: float) -> bool:
        """Return whether a recent count that fits the books was taken after `unseen.since`."""
        at, fitted = self._counted.get(unseen.endpoint_id, (-inf, False))
        return fitted and at > max(unseen.since, now - _COUNT_SECONDS)


def _due(unseen: UnobservedRequest) -> float:
    return unseen.due
