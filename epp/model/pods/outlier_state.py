"""One endpoint's health by its responses: failures and ejections in a row, signs of life.

A row is in the order in which requests were sent: a failure may be answered at once, while a good
answer to a request of the same second takes a minute.

Times are seconds of the caller's clock, which never goes back.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from epp.model.events import EjectionReason

PromptKey = tuple[int, int, int]
"""The key of a prompt: the hashes of its last block and of the rest, and its size."""

_MAX_FAILURES: Final = 128
"""Failures that are remembered."""
_SLOW_IN_ONE: Final = 3
"""If an endpoint may only be slow, this many requests count as one failure."""
_KEPT: Final = 0.95
"""The weight of a failure against the next one in the share of failures."""
_MAX_BETWEEN: Final = 50
"""The most requests between two failures that count in that share."""


class FailedRequest:
    """A request that failed, sent at `sent_at`.

    `prompt` is its prompt's key if the prompt may be the cause, else None; `stages` are the states
    of other endpoints that encoded or computed the prompt. `slow`: the answer may only be late.
    """

    def __init__(
        self,
        sent_at: float,
        prompt: PromptKey | None = None,
        stages: "Sequence[OutlierState]" = (),
        *,
        slow: bool = False,
    ) -> None:
        self.sent_at: Final = sent_at
        self.prompt: Final = prompt
        self.stages: Final = stages
        self.slow: Final = slow


class OutlierState:
    """One endpoint. `failures` came in a row; it last showed a sign of life at `alive_at`.

    `ejected` says why it is left out, from `ejected_at` until `until` at the latest; None while it
    is not left out. It last returned at `returned_at` and kept its failures: one more ejects it
    again, unless it succeeds first. `blamed`: other endpoints failed on requests of which it
    computed a stage.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.blamed = False
        self.alive_at = -inf
        self.ejected: EjectionReason | None = None
        self.ejected_at = self.until = self.returned_at = -inf
        self._failed: list[FailedRequest] = []  # by `sent_at`: those after the last success
        self._served_at = -inf  # when the last served request was sent
        self._well_since = inf
        self._ejections = 0
        self._lately_failed = self._lately_sent = 0.0
        self._sent = 0  # requests sent in all, at the last failure

    @property
    def has_served(self) -> bool:
        """Whether it has served any request."""
        return self._served_at > -inf

    def share(self, sent: int) -> float:
        """Return the share of requests that failed lately, if `sent` were sent in all."""
        return self._lately_failed / max(1.0, self._lately_sent + sent - self._sent)

    def count_failure(self, sent: int) -> None:
        """Count a failure of any request, if `sent` were sent in all."""
        between, self._sent = sent - self._sent, sent
        self._lately_failed = _KEPT * self._lately_failed + 1.0
        self._lately_sent = _KEPT * self._lately_sent + min(_MAX_BETWEEN, between)

    def record_success(self, sent_at: float, now: float) -> Sequence[FailedRequest]:
        """Record a first token, or a good answer, to a request that was sent at `sent_at`.

        Returns the failures of requests that were sent before it, whose row it ends. Once the
        endpoint was well for as long as it was left out, it has one ejection less in a row.
        """
        self.alive_at = now
        self._served_at = max(self._served_at, sent_at)
        ended: Sequence[FailedRequest] = ()
        if self._failed:
            ended = [each for each in self._failed if each.sent_at < sent_at]
            self._keep(self._failed[len(ended) :])
        if not self._failed and self._ejections:
            self._well_since = min(self._well_since, now)
            if now - self._well_since >= self.until - self.ejected_at:
                self._ejections -= 1
                self._well_since = now
        return ended

    def record_failure(self, request: FailedRequest, unanswered: Iterable[float]) -> bool:
        """Record a failure; return whether it counts.

        It does not count if the request was sent before one that was served, or before the endpoint
        last returned. A prompt that may be the cause counts once. A row ends at each of the
        `unanswered` requests, which are given by the times at which they were sent.
        """
        sent_at, prompt = request.sent_at, request.prompt
        if self.ejected is not None or sent_at < max(self.returned_at, self._served_at):
            return False
        if prompt is not None and any(each.prompt == prompt for each in self._failed):
            return False
        insort(self._failed, request, key=lambda each: each.sent_at)
        del self._failed[:-_MAX_FAILURES]
        after, before = -inf, inf
        for each in unanswered:
            if each < sent_at:
                after = max(after, each)
            elif each > sent_at:
                before = min(before, each)
        self.failures = _length([each for each in self._failed if after < each.sent_at < before])
        return True

    def forgive(self, stage: "OutlierState") -> None:
        """Take back the failures of requests of which the endpoint of `stage` had a part."""
        self._keep([each for each in self._failed if stage not in each.stages])

    def _keep(self, failed: list[FailedRequest]) -> None:
        self._failed = failed
        self.failures = min(self.failures, _length(failed))

    def ejection_seconds(self, base: float, most: float) -> float:
        """Return how long the next ejection lasts: `base` for each in a row, and at most `most`."""
        return min(most, base * (self._ejections + 1))

    def eject(self, reason: EjectionReason, seconds: float, now: float) -> None:
        """Leave the endpoint out for this many seconds."""
        self.ejected, self.ejected_at, self.until = reason, now, now + seconds
        self._well_since = inf
        self._ejections += 1

    def uneject(self, now: float) -> None:
        """Let the endpoint be picked again."""
        self.ejected = None
        self.returned_at = now


def _length(row: Sequence[FailedRequest]) -> int:
    """Return how many failures a row counts as."""
    slow = sum([each.slow for each in row])
    return len(row) - slow + slow // _SLOW_IN_ONE
