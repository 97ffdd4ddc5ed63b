"""Usage limit policies: up to which saturation of the pool each priority band may send.

Names, parameters and rules are llm-d-router's.
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from epp.policy.plugins import PluginContext, PluginParameters

_HALF = 0.5
"""The saturation from which on a closed band has turns."""


@runtime_checkable
class UsageLimitPolicy(Protocol):
    """Sets ceilings of saturation for priorities."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return a ceiling for each of the priorities, which are in descending order.

        A band sends nothing while the pool's saturation is at its ceiling or above.
        """


class StaticUsageLimitPolicy(PluginParameters, frozen=True):
    """One ceiling for all priorities."""

    threshold: float = 1.0

    def __post_init__(self) -> None:
        if self.threshold <= 0:
            raise ValueError("`threshold` must be above 0")

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return the threshold for each."""
        return [self.threshold] * len(priorities)


class PriorityHoldbackPolicy(PluginParameters, frozen=True):
    """Lower ceilings for lower priorities, in proportion to their ranks or values."""

    min_ceiling: float
    max_ceiling: float = 1.0
    shape: Literal["linear"] = "linear"
    domain: Literal["rank", "value"] = "rank"

    def __post_init__(self) -> None:
        if not 0 <= self.min_ceiling < self.max_ceiling <= 1:
            raise ValueError("0 <= `minCeiling` < `maxCeiling` <= 1 must hold")

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return linear ceilings between both bounds; the greatest for a single priority."""
        count = len(priorities)
        if count <= 1:
            return [self.max_ceiling] * count
        low, span = priorities[-1], priorities[0] - priorities[-1]
        height = self.max_ceiling - self.min_ceiling
        if self.domain == "rank":
            return [self.max_ceiling - place * height / (count - 1) for place in range(count)]
        return [self.min_ceiling + (each - low) / span * height for each in priorities]


class SoftReflectiveCeilingPolicy(PluginParameters, frozen=True):
    """Ceilings that fall as saturation rises; a closed band has a turn now and then."""

    def start(self, _context: PluginContext) -> "_SoftReflective":
        """Return the started policy, which counts the turns."""
        return _SoftReflective()


class _SoftReflective:
    """The ceiling of rank `i` of `n` is `1 - i * saturation / (n - 1)`; the first is always 1.

    Above its ceiling, a band is open in one of `saturation / (1 - saturation)` calls if the
    saturation is from 0.5 to below 1, and closed otherwise.
    """

    def __init__(self) -> None:
        self._looks = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return 1 for each band that is open, 0 for each other one."""
        self._looks += 1
        last, turn = len(priorities) - 1, self._turn(saturation)
        return [
            1.0 if not rank or saturation < 1 - rank * saturation / last else turn
            for rank in range(len(priorities))
        ]

    def _turn(self, saturation: float) -> float:
        if not _HALF <= saturation < 1:
            return 0.0
        period = round(saturation / (1 - saturation))
        return 1.0 if self._looks % period == 0 else 0.0
