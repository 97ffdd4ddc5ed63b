"""A mean of values that may change: it starts over if the last few values differ from it."""

from math import log
from typing import Final

_ENOUGH: Final = 16
"""The number of values after which a mean is settled."""
_DRIFT_GAIN: Final = 0.25
_MAX_DRIFT: Final = 1.75
"""If the last few values deviate by this many mean absolute deviations, the mean has changed: for
an unchanged mean this is 3.7 standard deviations of their drift."""
_MIN_CHANGE: Final = 0.1
"""The greatest drift that never counts: a tenth of the value."""
_FARTHEST: Final = 4.0
"""The most that one value counts for, in mean absolute deviations."""
_MAX_KEPT: Final = 4.0
"""When the mean starts over, it is at most this multiple of the last value."""

MeanState = tuple[float, int, float, float, float, float]
"""The state: value, count, mean logarithm, spread, drift, and mean weight."""


class Mean:
    """The mean of all values, or of about the last `most` if there were more.

    If the logarithms of the last few values differ from the mean logarithm, the mean starts over:
    `settled` is False until there are enough new values.
    """

    def __init__(self, most: float) -> None:
        self.value = 0.0
        self._least_gain = 1 / most
        self._count = 0
        self._log = 0.0  # the mean of logarithms, and their mean absolute deviation
        self._spread = 0.0
        self._drift = 0.0  # the mean deviation of the last few
        self._weight = 0.0  # the mean of weights; 0 before the first

    @property
    def settled(self) -> bool:
        """Whether there are enough values."""
        return self._count >= _ENOUGH

    @property
    def state(self) -> MeanState | None:
        """The state; None before the first value."""
        if not self._count:
            return None
        return self.value, self._count, self._log, self._spread, self._drift, self._weight

    def restore(self, state: MeanState) -> None:
        """Replace the state by one that was learned elsewhere."""
        self.value, self._count, self._log, self._spread, self._drift, self._weight = state

    def add(self, seen: float, weight: float) -> None:
        """Add a value, which is more than 0 and stands for `weight` values."""
        self._count += 1
        gain = max(self._least_gain, 1 / self._count)
        self._weight = self._weight or weight
        self._weight += gain * (weight - self._weight)
        self.value += min(1.0, gain * weight / self._weight) * (seen - self.value)
        off = log(seen) - self._log
        self._log += gain * off
        if self._count > 1:
            self._spread += gain * (abs(off) - self._spread)
            farthest = _FARTHEST * self._spread  # so that one value alone is not a drift
            self._drift += _DRIFT_GAIN * (min(farthest, max(-farthest, off)) - self._drift)
        most = max(_MIN_CHANGE, _MAX_DRIFT * self._spread)
        if self._count > _ENOUGH and abs(self._drift) > most:
            # The old mean counts as one of the new values, whatever number those stand for.
            self._count, self._drift, self._weight = 1, 0.0, 0.0
            self.value = min(self.value, _MAX_KEPT * seen)
