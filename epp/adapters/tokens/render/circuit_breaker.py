"""Stops requests to a server that is out of order."""

from math import inf

_TOLERATED_FAILURES = 2
"""Failures in a row after which requests pause."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0


class CircuitBreaker:
    """Stops requests to a server for some time after failures in a row.

    The pause doubles with each further failure. Of requests that are in flight together, only
    one failure counts. Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._last = -inf
        self._until = 0.0

    def is_open(self, now: float) -> bool:
        """Whether no request may be sent."""
        return now < self._until

    def record_failure(self, sent: float, now: float) -> None:
        """Record a request, sent at `sent`, without a response."""
        if sent < self._last:
            return
        self._last = now
        self._failures += 1
        beyond = self._failures - _TOLERATED_FAILURES
        if beyond >= 0:
            self._until = now + min(
                _MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(beyond, 10)
            )

    def record_success(self) -> bool:
        """Record a response; return whether it ends an outage."""
        outage = self._failures >= _TOLERATED_FAILURES
        self._failures = 0
        return outage
