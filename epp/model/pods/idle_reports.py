"""Reports of an engine without any request, which show that requests in the books are over.

A request is released when it ends. If one is not, its endpoint would count as loaded for good. But
an engine that reports again and again that it has no requests cannot have one that showed no life
in all that time.

A single report proves nothing. It may be late, it lacks requests that came during a long step, and
it may be a proxy's copy or another engine's. So it takes `_ENOUGH` such reports, each some time
after the one before, all later than the request's last sign of life; busy reports in between do not
matter. If a request shows life after an idle report, the report missed it: the reports of that
endpoint then count anew, twice as far apart.
"""

from collections import deque
from math import inf
from typing import Final

from epp.model.endpoint import Load

_ENOUGH: Final = 10
"""The number of reports that show that a request is over."""
_SECONDS_APART: Final = 30.0
_MAX_SECONDS_APART: Final = 480.0
"""Seconds from one such report to the next, at least; and the most that this becomes."""
_LATE_SECONDS: Final = 10.0
"""Seconds for which a report may lack a request that was sent."""


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
