"""The time that a prefill takes: a formula in tokens, fitted to what endpoints of a class show.

    seconds = t0 * ceil(u / budget) + k * (c1 * u + c2 * u * (h + u / 2))

`u` uncached and `h` cached tokens. The defaults are an 8B model on an H100; the shape holds for
other models, so only `t0` and the scale `k` are learned, by least squares over recent requests
that met an idle endpoint. Before there is enough to go by, the defaults weigh in.
"""

from math import ceil
from typing import Final

C1: Final = 40e-6
"""Seconds a token."""
C2: Final = 1.75e-9
"""Seconds a token and token of context before it."""
STEP_SECONDS: Final = 0.006
"""Seconds a step, whatever is computed in it: t0."""
BUDGET_TOKENS: Final = 8192
"""Tokens that an engine prefills in one step (vLLM `max_num_batched_tokens`)."""

_MEMORY: Final = 0.97
"""The weight of each prefill against the one after it."""
_PRIOR: Final = 0.02
"""The weight of each of the two default points."""
_LEAST_SCALE: Final = 0.01
_MOST_SCALE: Final = 1e4
_LEAST_STEP_SECONDS: Final = 1e-4
_MOST_SURPRISE: Final = 10.0
"""How many times its prediction a prefill may count for."""
_LEAST_SPREAD: Final = 1e-3
"""Variance of the work, as a share of its mean square, below which no slope is fitted."""


def work(uncached: int, cached: int) -> float:
    """Return the seconds that a prefill of so many tokens takes by default, without its steps."""
    return C1 * uncached + C2 * uncached * (cached + uncached / 2)


class PrefillModel:
    """The fit for one class of endpoints.

    A step takes `step` seconds besides the work in it, which takes `scale` times the default;
    `longest` is the seconds of a step with as many tokens as fit, none of them cached.
    """

    __slots__ = ("_n", "_speeds", "_x", "_xx", "_xy", "_y", "longest", "scale", "step")

    def __init__(self) -> None:
        self._speeds: dict[int, Speed] = {}
        self.step = STEP_SECONDS
        self.scale = 1.0
        self.longest = self.seconds(BUDGET_TOKENS, 0)
        # Decayed sums over (x, y) = (default work, measured time), both in seconds. They start
        # with two weak points on the default line, at x = 0 and x = 1.
        self._n = 2 * _PRIOR
        self._x = _PRIOR
        self._xx = _PRIOR
        self._y = _PRIOR * (1 + 2 * STEP_SECONDS)
        self._xy = _PRIOR * (1 + STEP_SECONDS)

    def seconds(self, uncached: int, cached: int) -> float:
        """Return the predicted seconds of a prefill, never less than one step's."""
        steps = max(1, ceil(uncached / BUDGET_TOKENS))
        return self.step * steps + self.scale * work(uncached, cached)

    def speed(self, unit: int) -> "Speed":
        """Return the speed of endpoints of this class whose hits are multiples of `unit` tokens."""
        return self._speeds.setdefault(unit, Speed(unit, self))

    def learn(self, uncached: int, cached: int, seconds: float) -> None:
        """Learn from a prefill that took `seconds` and met an idle endpoint.

        One that took many times what was predicted was not alone, or something broke: it counts
        as a few times that, so that a slow class is learned in a few steps and a stall fades.
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
        self.step = max(_LEAST_STEP_SECONDS, (self._y - self.scale * self._x) / self._n)
        self.longest = self.seconds(BUDGET_TOKENS, 0)


class Speed:
    """What a prediction depends on besides the cached blocks; endpoints alike share the object.

    Hits are multiples of `unit` tokens; 0 where prefix caching is off.
    """

    __slots__ = ("prefill", "unit")

    def __init__(self, unit: int, prefill: PrefillModel) -> None:
        self.unit = unit
        self.prefill = prefill
