"""The share of their caches up to which endpoints are filled: less if decoding saturates.

How much a larger batch helps depends on how long its steps take, compared with a step of one
sequence: if they take n times as long, a batch that is larger by some percent raises the throughput
by an n-th of that. If steps are short, as with short prompts and long answers, memory is filled. If
they are long, a part is left to the prefixes of conversations that return.

Past its capacity a fleet serves no more by decoding more at once: each step takes longer, and
prefixes are evicted sooner. So the share falls while much prefill waits and steps are long. It
rises again once little waits, or steps are short. In between it stays, so that it does not
oscillate.
"""

from typing import Final

_MUCH_SECONDS: Final = 3.0
_LITTLE_SECONDS: Final = 1.0
"""Seconds of prefill that wait for each endpoint: the share falls beyond the first, and rises below
the second."""
_LONG_STEPS: Final = 10.0
"""The `Pod.step_ratio` from which on decoding saturates."""
SHORT_STEPS: Final = 4.0
"""The `Pod.step_ratio` up to which steps are short."""
_FALL: Final = 0.01
_RISE: Final = 0.005
"""By how much the share changes in a second."""
_LONGEST_GAP: Final = 2.0
"""Seconds that one update stands for, at most."""


class MemoryShare:
    """The share, from `least` to `most`, each 0 to 1. Times are in seconds of a monotonic clock.

    If steps are short, it is higher by the difference between `while_short` and `most`.
    """

    def __init__(self, least: float, most: float, while_short: float = 0.0) -> None:
        self._least: Final = min(least, most)
        self._most: Final = most
        self._more: Final = max(0.0, while_short - most)
        self._at: float | None = None
        self.value = most

    def at(self, steps: float) -> float:
        """Return the share of an endpoint whose `Pod.step_ratio` is `steps`."""
        short = (_LONG_STEPS - steps) / (_LONG_STEPS - SHORT_STEPS)
        return self.value + self._more * min(1.0, max(0.0, short))

    def update(self, waiting_seconds: float, steps: float, now: float) -> None:
        """Change the share by the time since the last update.

        `waiting_seconds` of prefill wait for each endpoint; `steps` is the mean `Pod.step_ratio`.
        """
        before, self._at = self._at, now
        apart = 0.0 if before is None else min(_LONGEST_GAP, max(0.0, now - before))
        if waiting_seconds > _MUCH_SECONDS and steps > _LONG_STEPS:
            self.value = max(self._least, self.value - _FALL * apart)
        elif waiting_seconds < _LITTLE_SECONDS or steps < SHORT_STEPS:
            self.value = min(self._most, self.value + _RISE * apart)
