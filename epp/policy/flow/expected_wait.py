"""How long a request will wait: the work that goes before it, divided by the recent rate of work.

Work is in seconds of an engine. The rate is taken over the last half minute in which any request
waited. Until requests have waited for a second, and a few were released, the rate is unknown and no
wait is expected. All requests of higher priority go before a request. Those of its own priority go
before it if they come first in its flow; other flows get as much work as its own. Later arrivals do
not count.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import exp, inf
from typing import Final

from epp.policy.flow.held import HeldRequest, Rank
from epp.policy.flow.line import Line

_MEMORY_SECONDS: Final = 30.0
_MIN_SECONDS: Final = 1.0
"""Seconds in which any request waited, before the rate is known."""
_MIN_RELEASES: Final = 1.5
"""Released requests before it is known; old ones fade."""
_LONGEST_STEP: Final = 5.0
"""The most time that counts between two calls: a longer gap is a pause of the process."""
_MIN_WORK: Final = 1e-3
"""The least work that a request counts for."""
_AGE: Final = 0.1
_AGE_PER_REQUEST: Final = 100e-6
"""How old the snapshot of the line may be: making it takes about 2 µs for each request."""


class ReleaseRate:
    """Seconds of engine work that are released per second in which any request waits."""

    def __init__(self) -> None:
        self._work = self._seconds = self._releases = 0.0
        self._at = inf  # infinite: no request waits

    def begin(self, now: float) -> None:
        """Count time from now on: a request waits."""
        if self._at == inf:
            self._at = now

    def pause(self) -> None:
        """Stop counting time: no request waits."""
        self._at = inf

    def add(self, work: float, now: float) -> None:
        """Count work that was released."""
        self._advance(now)
        self._work += work
        self._releases += 1.0

    def value(self, now: float) -> float:
        """Return the rate; infinite if it is not known."""
        self._advance(now)
        if self._seconds < _MIN_SECONDS or self._releases < _MIN_RELEASES:
            return inf
        return self._work / self._seconds

    def _advance(self, now: float) -> None:
        step = min(max(0.0, now - self._at), _LONGEST_STEP)
        kept = exp(-step / _MEMORY_SECONDS)
        self._work *= kept
        self._releases *= kept
        self._seconds = self._seconds * kept + step
        self._at = max(self._at, now)


class _BandSnapshot:
    """The requests of one priority at one moment, with the work before each."""

    def __init__(self, requests: Iterable[HeldRequest]) -> None:
        flows: dict[str, list[tuple[Rank, float]]] = defaultdict(list)
        for held in requests:
            flows[held.flow].append((held.rank, _work(held)))
        self._flows: dict[str, tuple[Sequence[Rank], Sequence[float]]] = {}
        for name, entries in flows.items():
            entries.sort()
            ranks, works = zip(*entries, strict=True)
            self._flows[name] = ranks, tuple(accumulate(works, initial=0.0))
        self._totals = sorted(before[-1] for _, before in self._flows.values())
        self._sums = list(accumulate(self._totals, initial=0.0))

    @property
    def work(self) -> float:
        """The work of all of them."""
        return self._sums[-1]

    def before(self, held: HeldRequest) -> float:
        """Return the work that goes before a request of this priority."""
        ranks, sums = self._flows.get(held.flow, ((), (0.0,)))
        own = sums[bisect_left(ranks, held.rank)]
        share = own + _work(held)
        less = bisect_left(self._totals, share)  # flows that have less than that
        others = self._sums[less] + share * (len(self._totals) - less)
        return own + others - min(share, sums[-1])  # `others` has its own flow too


class ExpectedWait:
    """Estimates waits in one line."""

    def __init__(self, line: Line) -> None:
        self.rate: Final = ReleaseRate()
        self._line: Final = line
        self._bands: dict[int, _BandSnapshot] = {}
        self._refreshed_at = -inf

    def released(self, held: HeldRequest, now: float) -> None:
        """Count a request that waited and was released."""
        self.rate.add(_work(held), now)

    def seconds(self, held: HeldRequest, now: float) -> float:
        """Return how long a request will wait from now on; 0 if that is unknown."""
        if not self._line.requests:
            return 0.0
        self._refresh(now)
        own = self._bands.get(held.request.priority)
        work = 0.0 if own is None else own.before(held)
        for priority, band in self._bands.items():
            if priority > held.request.priority:
                work += band.work
        return work / self.rate.value(now)

    def _refresh(self, now: float) -> None:
        oldest = now - _AGE - _AGE_PER_REQUEST * self._line.requests
        if oldest < self._refreshed_at <= now:
            return
        self._refreshed_at = now
        bands: dict[int, list[HeldRequest]] = defaultdict(list)
        for held in self._line:
            bands[held.request.priority].append(held)
        self._bands = {priority: _BandSnapshot(found) for priority, found in bands.items()}


def _work(held: HeldRequest) -> float:
    return max(_MIN_WORK, held.work)
