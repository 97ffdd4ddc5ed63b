"""What responses showed of one endpoint's health: failures and ejections in a row, signs of life.

Times are seconds of the caller's clock, which never goes back.
"""

from math import inf
from typing import Final

from epp.model.events import EjectionReason, Failure

PromptKey = tuple[int, int, int]
"""What tells one prompt from others: hashes of its blocks and of the rest, and its size."""

_MOST_PROMPTS: Final = 128
"""Prompts of errors in a row that are remembered."""


class OutlierState:
    """One endpoint. `failures` came in a row; it last showed a sign of life at `alive_at`.

    `ejected` says why it is left out, None while it is not: since `ejected_at`, and until `until`
    at the latest. It was last given back at `returned_at`, with its failures: one more ejects it
    again, unless it succeeds first.
    """

    __slots__ = (
        "_ejections",
        "_failed_at",
        "_prompts",
        "_well_since",
        "alive_at",
        "ejected",
        "ejected_at",
        "failures",
        "returned_at",
        "until",
    )

    def __init__(self) -> None:
        self.failures = 0
        self.alive_at = -inf
        self.ejected: EjectionReason | None = None
        self.ejected_at = self.until = self.returned_at = -inf
        self._failed_at = -inf
        self._well_since = inf
        self._ejections = 0
        self._prompts: set[PromptKey] = set()

    def record_success(self, sent_at: float, now: float) -> None:
        """Record a first token, or a good answer, to a request that was sent at `sent_at`.

        One that was sent before the last failure is a sign of life, and no more. Having been well
        for as long as it was left out, the endpoint has one ejection less in a row.
        """
        self.alive_at = now
        if sent_at <= self._failed_at:
            return
        self.failures = 0
        self._prompts.clear()
        self._well_since = min(self._well_since, now)
        if self._ejections and now - self._well_since >= self.until - self.ejected_at:
            self._ejections -= 1
            self._well_since = now

    def record_failure(
        self, failure: Failure, prompt: PromptKey | None, sent_at: float, now: float
    ) -> bool:
        """Record a failure of a request that was sent at `sent_at`; return whether it counts.

        An error may be the request's own fault: each prompt counts once, and one that is not known
        never. What was sent before the endpoint was given back tells of the time before that.
        """
        if self.ejected is not None or sent_at < self.returned_at:
            return False
        if failure is Failure.ERROR:
            if prompt is None or prompt in self._prompts or len(self._prompts) >= _MOST_PROMPTS:
                return False
            self._prompts.add(prompt)
        self.failures += 1
        self._failed_at = now
        return True

    def ejection_seconds(self, base: float, most: float) -> float:
        """Return how long the next ejection lasts: `base` for each in a row, and at most `most`."""
        return min(most, base * (self._ejections + 1))

    def eject(self, reason: EjectionReason, seconds: float, now: float) -> None:
        """Leave the endpoint out for so many seconds."""
        self.ejected, self.ejected_at, self.until = reason, now, now + seconds
        self._well_since = inf
        self._ejections += 1

    def give_back(self, now: float) -> None:
        """Have the endpoint be picked again."""
        self.ejected = None
        self.returned_at = now
