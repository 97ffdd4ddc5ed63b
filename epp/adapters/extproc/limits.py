"""Limits of what one peer may cost, and the token bucket that enforces a rate."""

import msgspec


class PeerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a port, and of each connection to it.

    Sizes are in bytes, times in seconds, rates per second. A port takes `max_connections`, and
    `max_open_streams` over all of them, `max_streams` on each. A peer has `handshake_seconds` for
    its TLS handshake, and as long for its first SETTINGS. After `ping_after` without a byte from it
    it is pinged, and has `ping_timeout` to answer before its connection is aborted.
    `abuse_burst` and `abuse_rate` say how many frames that ask for work and move nothing it
    may send (`Session.abuse_score`). The connection of a peer that lets more than `max_queued` wait
    for its windows is closed. `max_message_bytes` is replaced by the transport's own limit.
    """

    max_connections: int = 1 << 14
    max_open_streams: int = 50_000
    max_streams: int = 10_000
    stream_window: int = 1 << 20
    max_header_bytes: int = 32 << 10
    max_message_bytes: int = 65 << 20
    max_queued: int = 1 << 30
    handshake_seconds: float = 10.0
    ping_after: float = 30.0
    ping_timeout: float = 20.0
    abuse_burst: float = 20_000
    abuse_rate: float = 2_000


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate` per second; full at the start."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._tokens = burst
        self._at: float | None = None

    def take(self, tokens: float, now: float) -> bool:
        """Remove tokens; return whether there were as many. `now` is in seconds."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= tokens
        return self._tokens >= 0


class LineQuota:
    """Lets one line about each subject pass in `interval` seconds, and counts the others."""

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._passed: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def take(self, subject: str, now: float) -> int | None:
        """Return how many were left out before a line, None for one that is to be left out.

        Subjects are kept, so there must be few. `now` is in seconds.
        """
        if now - self._passed.get(subject, -self._interval) < self._interval:
            self._left_out[subject] = self._left_out.get(subject, 0) + 1
            return None
        self._passed[subject] = now
        return self._left_out.pop(subject, 0)
