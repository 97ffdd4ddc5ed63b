"""What a peer may cost."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection. Sizes are in bytes, times in seconds, rates per second.

    After `ping_after` without a word from the peer it is asked whether it is there, and has
    `ping_timeout` to answer. `nuisance_burst` and `nuisance_rate` say how many frames that ask
    for work and move nothing a peer may send (`Session.nuisance`). A peer that lets more than
    `max_queued` wait for its windows is left. `max_message_bytes` is as the transport is told.
    """

    max_streams: int = 10_000
    stream_window: int = 1 << 20
    max_header_bytes: int = 32 << 10
    max_message_bytes: int = 65 << 20
    max_queued: int = 1 << 30
    ping_after: float = 30.0
    ping_timeout: float = 20.0
    nuisance_burst: float = 20_000
    nuisance_rate: float = 2_000


class Patience:
    """A bucket that holds `burst` and fills by `rate` per second; full at the start."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._at: float | None = None

    def bears(self, amount: float, now: float) -> bool:
        """Take an amount out; return whether it was there."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        self._left -= amount
        return self._left >= 0
