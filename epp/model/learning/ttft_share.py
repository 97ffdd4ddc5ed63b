"""The share of the end-to-end latency of a fleet's responses that is TTFT.

It weighs seconds of decoding against seconds of TTFT: if TTFT is a tenth of the latency, a second
is a ten times larger part of the TTFT than of the whole response.
"""

from typing import Final

from epp.model.learning.mean import Mean, MeanState

DEFAULT_TTFT_SHARE: Final = 0.05
"""The share until enough responses were observed."""
_MAX: Final = 200.0
"""The most responses that a mean is taken over."""
_MIN_SECONDS: Final = 1e-6
"""Shorter responses, in seconds, are not learned from."""
_FARTHEST: Final = 10.0
"""The most that one response counts for, in multiples of the mean: a response may hang."""

TtftShareState = tuple[MeanState, MeanState]
"""The states of TTFT and of end-to-end latency."""


class TtftShare:
    """The mean TTFT over the mean end-to-end latency, of about the last two hundred responses.

    `value` is in 0..1.
    """

    def __init__(self) -> None:
        self.value = DEFAULT_TTFT_SHARE
        self._ttft, self._end_to_end = Mean(_MAX), Mean(_MAX)

    def learn(self, ttft: float, end_to_end: float, weight: float = 1.0) -> None:
        """Learn that a response began after `ttft` seconds and ended after `end_to_end`.

        It stands for `weight` responses, one of which was observed.
        """
        if not 0 < ttft <= end_to_end or end_to_end < _MIN_SECONDS:
            return
        if self._end_to_end.settled:
            most = _FARTHEST * self._end_to_end.value
            if end_to_end > most:
                ttft, end_to_end = ttft * most / end_to_end, most
        self._ttft.add(ttft, weight)
        self._end_to_end.add(end_to_end, weight)
        self._take()

    @property
    def state(self) -> TtftShareState | None:
        """The state; None before the first response."""
        ttft, end_to_end = self._ttft.state, self._end_to_end.state
        return None if ttft is None or end_to_end is None else (ttft, end_to_end)

    def restore(self, state: TtftShareState) -> None:
        """Replace the state by one that was learned elsewhere."""
        ttft, end_to_end = state
        self._ttft.restore(ttft)
        self._end_to_end.restore(end_to_end)
        self._take()

    def _take(self) -> None:
        if self._ttft.settled and self._end_to_end.settled:
            self.value = min(1.0, self._ttft.value / self._end_to_end.value)
