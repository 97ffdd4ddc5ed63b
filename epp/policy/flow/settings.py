"""The settings of flow control; the defaults need no knowledge of the fleet."""

from math import inf

import msgspec


class BandLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may wait in one priority band."""

    max_requests: float = 5000.0
    """Requests that wait, at most (llm-d-router's default)."""
    max_bytes: float = 1e9
    """Bytes of their bodies, at most (llm-d-router's default)."""
    ttl: float = inf
    """Seconds after which a request that still waits is refused; infinite: it never is."""


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a request waits, how long, and in which order those that wait go."""

    holds: bool = True
    """Whether requests wait at all; if not, it is only counted what would have waited."""
    prefill_seconds: float = 0.3
    """An endpoint that owes this much prefill has no room."""
    most_memory: float = 0.7
    """The share of an endpoint's cache that prompts and expected responses may take at rest."""
    least_memory: float = 0.5
    """The same while decoding is what saturates the fleet."""
    ageing: float = 0.05
    """How many seconds of prefill a second of waiting is worth, in the order of release."""
    most_seconds: float = 240.0
    """How long a request waits for room before it is sent all the same.

    Envoy ends a stream that is idle for 5 minutes (`stream_idle_timeout`)."""
    empty_seconds: float = 0.0
    """How long a request waits for the first endpoint of a pool without any."""
    bands: dict[int, BandLimits] = {}
    """Limits of priorities of their own."""
    band: BandLimits = BandLimits()
    """Limits of every other priority."""
    max_requests: float = inf
    """Requests that wait in all bands, at most."""
    max_bytes: float = inf
    """Bytes of their bodies, at most."""

    def limits_of(self, priority: int) -> BandLimits:
        """Return the limits of a priority band."""
        return self.bands.get(priority, self.band)
