"""How busy the fleet is: the share of endpoints with prefill to do, averaged over some seconds."""

from math import exp
from typing import Final

_SECONDS: Final = 10.0


class BusyShare:
    """An exponential average; `value` is in 0..1."""

    __slots__ = ("_at", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._at = 0.0

    def note(self, busy: int, lookup: int, now: float) -> None:
        """Take note that so many of the endpoints that were asked for have prefill to do."""
        if lookup:
            gain = 1.0 - exp(-max(0.0, now - self._at) / _SECONDS)
            self.value += gain * (busy / lookup - self.value)
            self._at = now
