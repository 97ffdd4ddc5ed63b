"""Reports that are compared with what was sent: of an engine without requests, and of none at all.

A request is released when it ends. If one is not, its endpoint would count as loaded for good. But
an engine that reports again and again that it has no requests cannot have one that showed no life
in all that time.

A single report proves nothing. It may be late, it lacks requests that came during a long step, and
it may be a proxy's copy or another engine's. So it takes `_ENOUGH` such reports, each some time
after the one before, all later than the request's last sign of life; busy reports in between do not
matter. If a request shows life after an idle report, the report missed it: the reports of that
endpoint then count anew, twice as far apart.

What is read as a page may be a copy of one: of a proxy or cache in between, or of an engine whose
thread for metrics has died. Its requests of other senders would never end.
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
"""Seconds from one such report to the next, at least; and the most that this becomes."""
_LATE_SECONDS: Final = 10.0
"""Seconds for which a report may lack a request that was sent."""
_MAX_AGE: Final = 10.0
_MAX_AGES: Final = {ScrapeFailure.LATE: 60.0}
"""Seconds for which a report counts while scrapes fail; longer if pages are only late."""
_SERVED: Final = 3
_LAG_SECONDS: Final = 60.0
"""Own requests that were served and show a copy, if sent so long after the last change.

An exporter may renew its pages only so often, and replicas may tell of requests late.
"""
_OTHERS: Final = 4
_OTHERS_SECONDS: Final = 60.0
_OTHERS_UNSEEN_SECONDS: Final = 600.0
"""Requests of other senders, and seconds for which none of them goes on, that show a copy.

It takes longer if pages hardly show that they take more memory: in hundredths, or large blocks.
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
        self._at = self._counted = -inf  # the last one, and the last one that counts
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
    """One endpoint's reports that stay the same, which they last did not at `changed_at`.

    They are `frozen` if the engine counts the tokens of prompts and cannot have stayed the same: it
    has served requests that were sent since then, which is `proven`, or it seems to have requests
    of other senders, of which none ends, and none takes more memory. An idle engine's reports are
    not. `told`: they were proven once.
    """

    def __init__(self) -> None:
        self.changed_at = -inf
        self.frozen = self.proven = self.told = False
        self._served = self._served_before = 0  # now, and when the last report came
        self._first = UNREPORTED

    def record_served(self, sent_at: float) -> None:
        """Record that the engine has generated tokens for a request that was sent then."""
        if sent_at >= self.changed_at + _LAG_SECONDS:
            self._served += 1

    def report(self, load: Load, own: int) -> bool:
        """Compare a report with the ones before; return whether they are frozen.

        `own` requests were sent and have not ended. A sleeping engine's requests may all wait. A
        report may be older than the last requests that were served, but not than the report before.
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
    """Whether a report tells of requests, and is too old for that, as scrapes fail for a reason."""
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
    """Whether the used share shows that requests go on: SGLang has only hundredths of it."""
    return load.kv_usage != round(load.kv_usage, 2) and (load.block_size or 0) <= _MOST_BLOCK


def _is_rounded(count: float) -> bool:
    """Whether a count may have more digits than the page."""
    return count >= _EXACT and float(f"{count:.6g}") == count
