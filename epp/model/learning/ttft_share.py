"""The share of the time of responses in which their users wait for first tokens, in a fleet.

It says what a second of decoding is worth: where first tokens take a tenth of the time, a second
less of either is ten times as large a part of the one as of the other.
"""

from typing import Final

from epp.model.learning.mean import Mean, MeanState

DEFAULT_TTFT_SHARE: Final = 0.05
"""The share before enough responses were observed."""
_MOST: Final = 200.0
"""The responses that a mean is of, at most."""
_LEAST_SECONDS: Final = 1e-6
"""What a response takes, at least: nothing is learned from a shorter one."""
_FARTHEST: Final = 10.0
"""How many times the mean one response counts for: one that hangs says little of others."""

TtftShareState = tuple[MeanState, MeanState]
"""What is known of TTFT, and of end-to-end latency."""


class TtftShare:
    """The mean TTFT over the mean end-to-end latency, of about the last two hundred responses.

    `value` is in 0..1.
    """

    __slots__ = ("_end_to_end", "_ttft", "value")

    def __init__(self) -> None:
        self.value = DEFAULT_TTFT_SHARE
        self._ttft, self._end_to_end = Mean(_MOST), Mean(_MOST)

    def learn(self, ttft: float, end_to_end: float, weight: float = 1.0) -> None:
        """Learn that a response began after `ttft` seconds and ended after `end_to_end`.

        It stands for `weight` responses, of which one was observed.
        """
        if not 0 < ttft <= end_to_end or end_to_end < _LEAST_SECONDS:
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
        """What is known; None before the first response."""
        ttft, end_to_end = self._ttft.state, self._end_to_end.state
        return None if ttft is None or end_to_end is None else (ttft, end_to_end)

    def restore(self, state: TtftShareState) -> None:
        """Go on from what is known elsewhere."""
        ttft, end_to_end = state
        self._ttft.restore(ttft)
        self._end_to_end.restore(end_to_end)
        self._take()

    def _take(self) -> None:
        if self._ttft.settled and self._end_to_end.settled:
            self.value = min(1.0, self._ttft.value / self._end_to_end.value)
