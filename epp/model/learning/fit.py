"""A sum of terms fitted to recent measurements: each term's share is learned, none is negative."""

from collections.abc import Sequence
from typing import Final

_MEMORY: Final = 0.98
"""The weight of each measurement against the one after it."""
_PRIOR: Final = 2.0
"""The weight of the defaults' proportions, in measurements."""
_LEAST_PRIOR: Final = 0.01
_MOST_PRIOR: Final = 0.1
"""Bounds of that weight, as a share of the weight of what was measured."""
_SWEEPS: Final = 3
_LEAST: Final = 0.01
_MOST: Final = 1e4
"""Bounds of a share."""
_MOST_SURPRISE: Final = 10.0
"""How many times its prediction a measurement may count for while there are few."""
_ENOUGH: Final = 16
"""Measurements after which one that is far off says nothing of the others."""
_FAR: Final = 2.0
"""How many times its prediction, or which part of it, is far off."""


class Fit:
    """seconds = sum of share * term; terms are seconds by default, so that each share begins as 1.

    Weighted least squares over recent measurements, each with a variance in proportion to its
    prediction, solved by a few rounds of coordinate descent after each of them. Shares that
    measurements do not tell apart are alike, so that terms keep the proportions of their defaults:
    these weigh a tenth of what was measured, and less with every measurement.
    """

    __slots__ = ("_count", "_moments", "_sizes", "_totals", "shares")

    def __init__(self, terms: int) -> None:
        self.shares = [1.0] * terms
        self._moments = [[0.0] * terms for _ in range(terms)]
        self._totals = [0.0] * terms
        self._sizes = [0.0] * terms
        self._count = 0

    @property
    def settled(self) -> bool:
        """Whether there were enough measurements to tell by them which ones are far off."""
        return self._count >= _ENOUGH

    def predict(self, terms: Sequence[float]) -> float:
        """Return the seconds that terms add up to."""
        return sum([share * term for share, term in zip(self.shares, terms, strict=True)])

    def learn(self, terms: Sequence[float], seconds: float, *, sure: bool = True) -> None:
        """Learn that what has these terms, not all of them 0, took `seconds`.

        What is not `sure` counts while there are few.

        One that took many times what was predicted was not alone, or something broke, and one
        that took no time was not computed: of the first few each counts within bounds, later ones
        that are far off are left out.
        """
        predicted = self.predict(terms)
        if seconds <= 0:
            return
        if not self.settled:
            seconds = max(predicted / _FAR, min(seconds, _MOST_SURPRISE * predicted))
        elif not (sure and predicted / _FAR <= seconds <= predicted * _FAR):
            return
        self._count += 1
        for row, (moments, term) in enumerate(zip(self._moments, terms, strict=True)):
            weighted = term / predicted
            for column, other in enumerate(terms):
                moments[column] = moments[column] * _MEMORY + weighted * other
            self._sizes[row] = self._sizes[row] * _MEMORY + term
            self._totals[row] = self._totals[row] * _MEMORY + weighted * seconds
        for _ in range(_SWEEPS):
            self._sweep()

    def _sweep(self) -> None:
        shares, sizes = self.shares, self._sizes
        prior = max(_LEAST_PRIOR, min(_MOST_PRIOR, _PRIOR / self._count))
        for row, moments in enumerate(self._moments):
            own = moments[row]
            if own <= 0:
                continue
            common = self.predict(sizes) / sum(sizes)
            others = sum([moment * share for moment, share in zip(moments, shares, strict=True)])
            rest = self._totals[row] - (others - own * shares[row])
            share = (rest / own + prior * common) / (1 + prior)
            shares[row] = min(_MOST, max(_LEAST, share))
