"""Distributions as workload catalogs publish them: mean, standard deviation, least and most."""

import math
import random
from collections.abc import Callable
from typing import Literal

import msgspec

Shape = Literal["bimodal", "exponential", "fixed", "lognormal", "normal", "uniform"]
_SPREAD = 0.1
"""The spread of each mode of a bimodal distribution, as a share of it."""


class Distribution(msgspec.Struct, frozen=True):
    """A distribution of this shape; values outside of `low` to `high` become the nearer bound.

    `mean` and `deviation` are those before clamping, which moves them. `uniform` uses neither.
    """

    shape: Shape
    mean: float
    deviation: float = 0.0
    low: float = 0.0
    high: float = math.inf

    def draw(self, draw: random.Random) -> float:
        """Draw a value."""
        return min(self.high, max(self.low, _DRAWN[self.shape](self, draw)))

    def tokens(self, draw: random.Random) -> int:
        """Draw a number of tokens, at least one."""
        return max(1, round(self.draw(draw)))


def fixed(value: float) -> Distribution:
    """Return the distribution that is always `value`."""
    return Distribution("fixed", value)


def lognormal(mean: float, median: float, high: float = math.inf) -> Distribution:
    """Return the lognormal distribution with this mean, and a median that is at most the mean."""
    # The mean is exp(mu + sigma^2 / 2), the median exp(mu), the variance mean^2 (exp(sigma^2) - 1).
    deviation = mean * math.sqrt((mean / median) ** 2 - 1)
    return Distribution("lognormal", mean, deviation, 0.0, high)


def _lognormal(of: Distribution, draw: random.Random) -> float:
    variance = math.log1p((of.deviation / of.mean) ** 2)
    return draw.lognormvariate(math.log(of.mean) - variance / 2, math.sqrt(variance))


def _bimodal(of: Distribution, draw: random.Random) -> float:
    """Draw from two modes that together have the mean and deviation.

    The modes are not published: the lower one is `low`, or one deviation below the mean.
    """
    lower = max(of.low, of.mean - of.deviation)
    upper = of.mean + of.deviation**2 / (of.mean - lower)
    is_upper = draw.random() < (of.mean - lower) / (upper - lower)
    mode = upper if is_upper else lower
    return draw.normalvariate(mode, _SPREAD * mode)


_DRAWN: dict[Shape, Callable[[Distribution, random.Random], float]] = {
    "bimodal": _bimodal,
    "exponential": lambda of, draw: draw.expovariate(1 / of.mean),
    "fixed": lambda of, _: of.mean,
    "lognormal": _lognormal,
    "normal": lambda of, draw: draw.normalvariate(of.mean, of.deviation),
    "uniform": lambda of, draw: draw.uniform(of.low, of.high),
}
