"""The share of their caches that endpoints are filled up to: less while decoding saturates a fleet.

Past its capacity a fleet serves no more by decoding more at once: each step takes longer, and what
is decoded later is cached longer. So the share falls while much waits and steps take many times
what the first sequence alone does; a smaller batch then loses a small part of the throughput, the
inverse of that many. It rises again once little waits, or steps are short. In between it stays,
so that it does not swing.
"""

from typing import Final

_MUCH_SECONDS: Final = 3.0
_LITTLE_SECONDS: Final = 1.0
"""Seconds of prefill that wait for each endpoint: the share falls beyond the first, and rises below
the second."""
_LONG_STEPS: Final = 10.0
"""How many times the shortest step a step takes if decoding saturates."""
_FALL: Final = 0.01
_RISE: Final = 0.005
"""By how much the share changes in a second."""
_LONGEST_GAP: Final = 2.0
"""Seconds that one update stands for, at most."""


class MemoryShare:
    """The share, from `least` to `most`, each 0 to 1. Times are in seconds of a monotonic clock."""

    __slots__ = ("_at", "_least", "_most", "value")

    def __init__(self, least: float, most: float) -> None:
        self._least: Final = min(least, most)
        self._most: Final = most
        self._at: float | None = None
        self.value = most

    def update(self, waiting_seconds: float, steps: float, now: float) -> None:
        """Change the share by the time since the last update.

        `waiting_seconds` of prefill wait for each endpoint, and steps take `steps` times the
        shortest.
        """
        before, self._at = self._at, now
        apart = 0.0 if before is None else min(_LONGEST_GAP, max(0.0, now - before))
        if waiting_seconds > _MUCH_SECONDS and steps > _LONG_STEPS:
            self.value = max(self._least, self.value - _FALL * apart)
        elif waiting_seconds < _LITTLE_SECONDS or steps < _LONG_STEPS / 2:
            self.value = min(self._most, self.value + _RISE * apart)
