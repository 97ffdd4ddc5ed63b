"""Reports compared with what was sent: those without requests, and those that are mere copies.

A request is released when it ends. If that fails, its endpoint counts as loaded for good. But an
engine that reports again and again that it has no requests does not have one that showed no life
meanwhile (`IdleReports`).

A single report proves nothing. It may be late, it lacks requests that came during a long step, and
it may be a proxy's copy or another engine's. So it takes `_ENOUGH` idle reports, each some time
after the one before, and all later than the request's last sign of life. Busy reports in between do
not matter. If a request shows life after an idle report, that report missed it: the endpoint's
reports are then counted anew, twice as far apart.

A metrics page may be an old copy, from a proxy or cache in between or from an engine whose metrics
thread has died. Requests of other senders on it would never end (`FrozenReports`).
"""

from collections import deque
from math import inf
from typing import Final

from epp.model.endpoint import UNREPORTED, Load
from epp.model.events import ScrapeFailure

_ENOUGH: Final = 10
"""The number of reports that show that a request is over."""
_SECONDS_APART: Final = 30.0
_MAX_SECONDS_APART: Final = 480.0
"""The least seconds from one such report to the next, at first and after all doublings."""
_LATE_SECONDS: Final = 10.0
"""Seconds for which a report may lack a request that was sent."""
_MAX_AGE: Final = 10.0
_MAX_AGES: Final = {ScrapeFailure.LATE: 60.0}
"""Seconds for which a report counts while scrapes fail; longer if pages are only late."""
_SERVED: Final = 3
_LAG_SECONDS: Final = 60.0
"""This number of own requests shows a copy if they were sent this long after the last change.

An exporter may renew its pages seldom, and replicas may report requests late.
"""
_OTHERS: Final = 4
_OTHERS_SECONDS: Final = 60.0
_OTHERS_UNSEEN_SECONDS: Final = 600.0
"""This number of requests of other senders shows a copy if none progresses for these seconds.

The longer time is for pages that hardly show growing memory: in hundredths, or large blocks.
"""
_MOST_BLOCK: Final = 256
"""Tokens of a block that a few requests fill in that time."""
_EXACT: Final = 1e6
"""Smaller counters have all their digits if a page has six (llama.cpp)."""


class IdleReports:
    """One endpoint's reports without requests. Times are seconds of the caller's clock.

    Requests whose last sign of life was before `over_before` are over.
    """

    def __init__(self) -> None:
        self.over_before = -inf
        self._apart = _SECONDS_APART
        self._busy = False  # it has reported a running request, so that it counts them
        self._at = self._counted = -inf  # the last idle report; the last that counts
        self._times: deque[float] = deque(maxlen=_ENOUGH)

    def report(self, load: Load) -> bool:
        """Count a report; return whether it shows that requests may be over."""
        self._busy = self._busy or load.running > 0
        if not load.counted or load.running or load.waiting or not self._busy:
            return False
        self._at = max(self._at, load.at)
        if load.at < self._counted + self._apart:
            return False
        self._counted = load.at
        self._times.append(load.at)
        if len(self._times) < _ENOUGH:
            return False
        self.over_before = self._times[0] - _LATE_SECONDS
        return True

    def record_activity(self, before: float) -> None:
        """Record a sign of life of a request, the first since the time `before`."""
        if before + _LATE_SECONDS < self._at:
            self._times.clear()
            self._at = self._counted = self.over_before = -inf
            self._apart = min(_MAX_SECONDS_APART, 2 * self._apart)


class FrozenReports:
    """One endpoint's reports that stay the same; they last changed at `changed_at`.

    They are `frozen` if the engine counts the tokens of prompts, and its state must have changed:
    it has served requests that were sent since then (`proven`), or it seems to have requests of
    other senders, but none of these ends or takes more memory. An idle engine's reports may stay
    the same. `told`: it was reported once that they are proven frozen.
    """

    def __init__(self) -> None:
        self.changed_at = -inf
        self.frozen = self.proven = self.told = False
        self._served = self._served_before = 0  # requests: now, and at the last report
        self._first = UNREPORTED

    def record_served(self, sent_at: float) -> None:
        """Record that the engine has generated tokens for a request that was sent then."""
        if sent_at >= self.changed_at + _LAG_SECONDS:
            self._served += 1

    def report(self, load: Load, own: int) -> bool:
        """Compare a report with the ones before; return whether they are frozen.

        `own` requests were sent and have not ended. A sleeping engine's requests may all wait. A
        report may be older than the last served requests, but not older than the report before it.
        """
        queries, others = load.cache_queries, load.waiting + load.running - own
        served, self._served_before = self._served_before, self._served
        if queries is None or queries != self._first.cache_queries:
            self._begin(load)
        elif served >= _SERVED or others >= _OTHERS or self.frozen:
            if not load.awake or _differ(self._first, load) or _is_rounded(queries):
                self._begin(load)
            elif load.caching and queries and served >= _SERVED:
                self.frozen = self.proven = True
            elif others >= _OTHERS:
                seconds = _OTHERS_SECONDS if _shows_growth(load) else _OTHERS_UNSEEN_SECONDS
                self.frozen = self.frozen or load.at - self.changed_at >= seconds
        return self.frozen

    def _begin(self, load: Load) -> None:
        """Compare the next reports with this one, which differs from those before."""
        self._first, self.changed_at = load, load.at
        self.frozen = self.proven = False
        self._served = self._served_before = 0


def is_old(load: Load, reason: ScrapeFailure, now: float) -> bool:
    """Whether a report with requests is too old to count, while scrapes fail for this reason."""
    tells = load.counted or load.waiting or load.running or load.kv_usage
    return bool(tells) and _MAX_AGES.get(reason, _MAX_AGE) < now - load.at < inf


def _differ(first: Load, load: Load) -> bool:
    return (
        load.running != first.running
        or load.waiting != first.waiting
        or load.kv_usage != first.kv_usage
        or load.cache_hits != first.cache_hits
        or load.started_at != first.started_at
    )


def _shows_growth(load: Load) -> bool:
    """Whether the used share of memory shows progress; SGLang reports it in hundredths."""
    return load.kv_usage != round(load.kv_usage, 2) and (load.block_size or 0) <= _MOST_BLOCK


def _is_rounded(count: float) -> bool:
    """Whether the page may show fewer digits than the count has."""
    return count >= _EXACT and float(f"{count:.6g}") == count
