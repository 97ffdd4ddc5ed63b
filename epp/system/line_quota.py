"""Bounds how often similar lines are logged."""

from typing import Final

_MAX_SUBJECTS: Final = 1_000
"""Subjects that are remembered; one more, and all are forgotten."""


class LineQuota:
    """Passes one line about each subject in `interval` seconds, and counts the others."""

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._passed: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def take(self, subject: str, now: float) -> int | None:
        """Return how many lines were left out before this one; None to leave it out too.

        `now` is in seconds.
        """
        if now - self._passed.get(subject, -self._interval) < self._interval:
            self._left_out[subject] = self._left_out.get(subject, 0) + 1
            return None
        if len(self._passed) >= _MAX_SUBJECTS:
            self._passed.clear()
            self._left_out.clear()
        self._passed[subject] = now
        return self._left_out.pop(subject, 0)
