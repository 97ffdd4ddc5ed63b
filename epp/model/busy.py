"""How busy the fleet is: the share of endpoints with prefill to do, averaged over some seconds."""

from collections.abc import Sequence
from math import exp

_SECONDS = 10.0


class BusyShare:
    """An exponential average; `value` is in 0..1."""

    __slots__ = ("_at", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._at = 0.0

    def note(self, owed: Sequence[float], now: float) -> None:
        """Take note of the seconds of prefill that each endpoint that was asked for owes."""
        if owed:
            gain = 1.0 - exp(-max(0.0, now - self._at) / _SECONDS)
            busy = len(owed) - owed.count(0.0)
            self.value += gain * (busy / len(owed) - self.value)
            self._at = now
