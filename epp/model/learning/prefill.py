"""How long a prefill takes: a formula in tokens, fitted to what endpoints of a class show.

    seconds = t0 * ceil(u / budget) + k * (c1 * u + c2 * u * (h + u / 2))

`u` uncached and `h` cached tokens. The defaults are an 8B model on an H100; the shape holds for
other models, so only `t0` and the scale `k` are learned, by least squares over recent requests
that met an idle endpoint. Before there is enough to go by, the defaults weigh in.
"""

from math import ceil
from typing import Final

C1: Final = 40e-6
"""Seconds a token, and ..."""
C2: Final = 1.75e-9
"""... seconds a token and token of context before it."""
STEP_SECONDS: Final = 0.006
BUDGET_TOKENS: Final = 8192
"""Tokens that an engine prefills in one step (vLLM `max_num_batched_tokens`)."""

_MEMORY: Final = 0.97
_PRIOR: Final = 0.02
_LEAST_SCALE: Final = 0.01
_MOST_SCALE: Final = 1e4
_MOST_SURPRISE: Final = 10.0
_LEAST_SPREAD: Final = 1e-3
"""Variance of the work, as a share of its mean square, below which it tells nothing of a slope."""


def work(uncached: int, cached: int) -> float:
    """Return the default seconds of a prefill, steps aside."""
    return C1 * uncached + C2 * uncached * (cached + uncached / 2)


class PrefillModel:
    """The fit for one class of endpoints; `longest` is how long their longest step takes."""

    __slots__ = ("_n", "_speeds", "_x", "_xx", "_xy", "_y", "longest", "scale", "step")

    def __init__(self) -> None:
        self._speeds: dict[int, Speed] = {}
        self.step = STEP_SECONDS
        self.scale = 1.0
        self.longest = self.seconds(BUDGET_TOKENS, 0)
        # Decayed sums over (x, y) = (default work, seconds); two weak points on the default line.
        self._n = 2 * _PRIOR
        self._x = _PRIOR
        self._xx = _PRIOR
        self._y = _PRIOR * (1 + 2 * STEP_SECONDS)
        self._xy = _PRIOR * (1 + STEP_SECONDS)

    def seconds(self, uncached: int, cached: int) -> float:
        """Predict a prefill; never less than one step."""
        steps = max(1, ceil(uncached / BUDGET_TOKENS))
        return self.step * steps + self.scale * work(uncached, cached)

    def speed(self, unit: int) -> "Speed":
        """Return the speed of endpoints of this class whose hits are multiples of `unit`."""
        return self._speeds.setdefault(unit, Speed(unit, self))

    def learn(self, uncached: int, cached: int, seconds: float) -> None:
        """Take in one prefill that had the endpoint for itself.

        One that took many times what was predicted had not, or something broke: it counts as
        that many times, so that a slow class is learned in a few steps and a stall forgotten.
        """
        x = work(uncached, cached)
        seconds = min(seconds, _MOST_SURPRISE * self.seconds(uncached, cached))
        self._n = self._n * _MEMORY + 1
        self._x = self._x * _MEMORY + x
        self._xx = self._xx * _MEMORY + x * x
        self._y = self._y * _MEMORY + seconds
        self._xy = self._xy * _MEMORY + x * seconds
        self._fit()

    def _fit(self) -> None:
        spread = self._n * self._xx - self._x * self._x
        if spread > _LEAST_SPREAD * self._n * self._xx:
            slope = (self._n * self._xy - self._x * self._y) / spread
            self.scale = min(_MOST_SCALE, max(_LEAST_SCALE, slope))
        self.step = max(1e-4, (self._y - self.scale * self._x) / self._n)
        self.longest = self.seconds(BUDGET_TOKENS, 0)


class Speed:
    """How fast an endpoint is, whatever it holds: hits count in whole `unit` tokens, 0 for none.

    Endpoints with the same speed share the object, and with it predictions for a prompt.
    """

    __slots__ = ("prefill", "unit")

    def __init__(self, unit: int, prefill: PrefillModel) -> None:
        self.unit = unit
        self.prefill = prefill
