"""The settings of flow control; the defaults need no knowledge of the fleet."""

from math import inf
from typing import Final

import msgspec

from epp.policy.flow.fairness import FairnessPolicy, StartTimeFairness
from epp.policy.flow.orders import OrderingPolicy
from epp.policy.flow.usage_limits import StaticUsageLimitPolicy, UsageLimitPolicy
from epp.policy.plugins import SaturationDetector


class BandLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may wait in one priority band, and in which order it goes."""

    max_requests: float = 5000.0
    """The most requests that wait (llm-d-router's default)."""
    max_bytes: float = 1e9
    """The most bytes that their bodies have (llm-d-router's default)."""
    ttl: float = inf
    """Seconds after which a request that still waits is refused; infinite: it never is."""
    fairness: FairnessPolicy = StartTimeFairness()
    """Which of its flows goes next."""
    order: OrderingPolicy | None = None
    """Which request of a flow goes next; None: the shortest prefill, with ageing."""


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of llm-d-router's gate: when the pool as a whole has room."""

    detector: SaturationDetector
    """Measures how busy the pool is; 1: saturated."""
    usage_limits: UsageLimitPolicy = StaticUsageLimitPolicy()
    """The saturation up to which each band may send."""
    name: str = "utilization-detector"
    """The detector's name in the file."""
    priorities: tuple[int, ...] = ()
    """The priorities that have a band of their own."""


STALE_SECONDS: Final = 10.0
"""The age in seconds from which on a report is ignored, by default."""
_MISSED_REPORTS: Final = 3


def stale_after(interval: float) -> float:
    """Return the age in seconds from which on a report is ignored, if one is due each `interval`.

    That is after a few missed reports, if these are far apart.
    """
    return max(STALE_SECONDS, _MISSED_REPORTS * interval)


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a request waits, for how long, and in which order waiting requests are sent."""

    holds: bool = True
    """Whether requests wait for room at an endpoint; if not, those that would have waited are only
    counted."""
    gate: GateSettings | None = None
    """When requests wait for the pool; None: they never do."""
    prefill_seconds: float = 0.3
    """An endpoint that owes this much prefill has no room."""
    most_memory: float = 0.8
    """The share of an endpoint's cache that prompts and expected responses may take."""
    short_steps_memory: float = 1.0
    """The same share at an endpoint whose steps are short, so that a larger batch helps."""
    least_memory: float = 0.6
    """The same share while decoding saturates the fleet."""
    batch_prefill_share: float = 0.1
    """An endpoint that owes this share of `prefill_seconds` has no room for requests of negative
    priority."""
    batch_memory_share: float = 0.22
    """The share of the memory for other requests that those of negative priority may fill."""
    ageing: float = 0.03
    """How many seconds of prefill a second of waiting is worth, in the order of release."""
    most_seconds: float = 240.0
    """How long a request waits for room before it is sent anyway.

    Envoy ends a stream that is idle for 5 minutes (`stream_idle_timeout`)."""
    empty_seconds: float = 0.0
    """How long a request waits for the first endpoint of an empty pool; infinite: as long as for
    room."""
    bands: dict[int, BandLimits] = {}
    """Limits of the priorities that have limits of their own."""
    band: BandLimits = BandLimits()
    """Limits of every other priority."""
    negative_band: BandLimits | None = None
    """Limits of every other priority below 0; None: those of `band`."""
    max_requests: float = inf
    """The most requests that wait in all bands."""
    max_bytes: float = inf
    """The most bytes that the bodies of all waiting requests have."""
    stale_seconds: float = STALE_SECONDS
    """The age of a report from which on the room of its endpoint is not known."""

    def longest(self, *, empty: bool) -> float:
        """Return the longest wait of a request that comes now, or while the pool is `empty`."""
        seconds = self.empty_seconds if empty and self.empty_seconds < inf else 0.0
        return max(self.most_seconds, seconds)

    def limits_of(self, priority: int) -> BandLimits:
        """Return the limits of a priority band."""
        rest = self.band
        if priority < 0 and self.negative_band is not None:
            rest = self.negative_band
        return self.bands.get(priority, rest)
