"""Spares requests the wait for a server that has not answered the last ones."""

_TOLERATED = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class Breaker:
    """Open for a while after failures in a row; each time that one more is tried, twice as long.

    Times are seconds of any steady clock.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def open(self, now: float) -> bool:
        """Whether nothing should be asked."""
        return now < self._until

    def failed(self, now: float) -> None:
        """Take note that nothing came back."""
        self._failures += 1
        beyond = self._failures - _TOLERATED
        if beyond >= 0:
            self._until = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(beyond, 10))

    def answered(self) -> bool:
        """Take note of an answer; return whether it ends an outage."""
        outage = self._failures >= _TOLERATED
        self._failures = 0
        return outage
