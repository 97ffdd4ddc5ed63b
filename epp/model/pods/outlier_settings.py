"""When endpoints that fail are left out, and for how long."""

from typing import Final

import msgspec


class OutlierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The names and defaults are Envoy's, except the share that may be ejected at once: half.

    `consecutive_failures` (Envoy: `consecutive_5xx`) in a row eject an endpoint; 0: nothing does,
    stalls neither. Times are in seconds.
    """

    consecutive_failures: int = 5
    base_ejection_time: float = 30.0
    max_ejection_time: float = 300.0


OUTLIERS: Final = OutlierSettings()
"""The defaults."""
