"""Limits on the resources of one peer, and the token bucket that enforces a rate."""

import msgspec


class PeerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a port, and of each connection to it. Times are in seconds, sizes in bytes."""

    max_connections: int = 1 << 14
    """Connections of the port."""
    max_open_streams: int = 50_000
    """Streams over all connections."""
    max_streams: int = 10_000
    """Streams of one connection."""
    stream_window: int = 1 << 20
    """The flow-control window of a stream."""
    max_header_bytes: int = 32 << 10
    """The headers of one request."""
    max_message_bytes: int = 65 << 20
    """The largest message."""
    max_queued: int = 1 << 30
    """Bytes that may wait for a peer's windows before its connection is closed."""
    handshake_seconds: float = 10.0
    """The time for the TLS handshake, and again for the first SETTINGS."""
    ping_after: float = 30.0
    """A peer is pinged after this time without a byte from it."""
    ping_timeout: float = 20.0
    """The time to answer a ping before the connection is aborted."""
    abuse_burst: float = 20_000
    """Frames that ask for work and move nothing, at once (`Session.abuse_score`)."""
    abuse_rate: float = 2_000
    """The same, per second."""


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
