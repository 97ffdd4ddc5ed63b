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
_KEPT: Final = 0.5
"""What measurements weigh that were made before all was multiplied."""
_FAR: Final = 2.0
"""How many times its prediction, or which part of it, is far off."""
_MOST_UNSURE: Final = 0.9
"""The share of the last measurements up to which those that are not sure are left out."""

Amounts = tuple[float, float, float]
"""One of each term of a sum of three."""
FitState = tuple[Amounts, tuple[Amounts, Amounts, Amounts], Amounts, Amounts, int]
"""What a `Fit` of three terms has learned: shares, moments, totals, sizes, and a count."""


class Fit:
    """seconds = sum of factor * amount. The factors begin as `defaults`, in seconds for one.

    Each factor is its default times a share, and the shares are learned: by weighted least squares
    over recent measurements, each with a variance in proportion to its prediction, solved by a few
    rounds of coordinate descent after each of them. Shares that measurements do not tell apart are
    alike, so that factors keep the proportions of their defaults: these weigh a tenth of what was
    measured, and less with every measurement.
    """

    __slots__ = (
        "_count",
        "_defaults",
        "_moments",
        "_shares",
        "_sizes",
        "_totals",
        "_unsure",
        "factors",
    )

    def __init__(self, *defaults: float) -> None:
        terms = len(defaults)
        self.factors = list(defaults)
        self._defaults = defaults
        self._shares = [1.0] * terms
        self._moments = [[0.0] * terms for _ in range(terms)]
        self._totals = [0.0] * terms
        self._sizes = [0.0] * terms
        self._count = 0
        self._unsure = 0.0  # the share of the last measurements

    @property
    def settled(self) -> bool:
        """Whether there were enough measurements to tell by them which ones are far off."""
        return self._count >= _ENOUGH

    @property
    def state(self) -> FitState:
        """What was learned, of three terms."""
        one, two, three = [(row[0], row[1], row[2]) for row in self._moments]
        shares, totals, sizes = self._shares, self._totals, self._sizes
        return (
            (shares[0], shares[1], shares[2]),
            (one, two, three),
            (totals[0], totals[1], totals[2]),
            (sizes[0], sizes[1], sizes[2]),
            self._count,
        )

    def restore(self, state: FitState) -> None:
        """Go on from what was learned elsewhere, with the same defaults."""
        shares, moments, totals, sizes, self._count = state
        self._shares, self._totals, self._sizes = list(shares), list(totals), list(sizes)
        self._moments = [list(row) for row in moments]
        self._publish()

    def learn(self, amounts: Sequence[float], seconds: float, *, sure: bool = True) -> None:
        """Learn that what has these amounts, not all of them 0, took `seconds`.

        What is not `sure` counts while there are few, and if nearly all of the last ones were not:
        then it is the fit that is wrong.

        One that took many times what was predicted was not alone, or something broke, and one
        that took no time was not computed: of the first few each counts within bounds, later ones
        that are far off are left out.
        """
        terms = [each * amount for each, amount in zip(self._defaults, amounts, strict=True)]
        predicted = self._predict(terms)
        if seconds <= 0:
            return
        self._unsure += (1.0 - _MEMORY) * ((not sure) - self._unsure)
        sure = sure or self._unsure > _MOST_UNSURE
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
        self._publish()

    def multiply(self, times: float) -> float:
        """Have all take so many times as long, within bounds; return how many that is.

        What was measured before counts for less: it was wrong, or is no longer so.
        """
        before = self._predict(self._sizes) if times != 1.0 else 0.0
        if before <= 0:
            return 1.0
        self._shares = [min(_MOST, max(_LEAST, share * times)) for share in self._shares]
        times = self._predict(self._sizes) / before
        if times == 1.0:
            return times
        kept = _KEPT / times
        self._moments = [[kept * moment for moment in row] for row in self._moments]
        self._totals = [_KEPT * total for total in self._totals]
        self._sizes = [_KEPT * size for size in self._sizes]
        self._publish()
        return times

    def _predict(self, terms: Sequence[float]) -> float:
        return sum([share * term for share, term in zip(self._shares, terms, strict=True)])

    def _publish(self) -> None:
        self.factors = [
            each * share for each, share in zip(self._defaults, self._shares, strict=True)
        ]

    def _sweep(self) -> None:
        shares, sizes = self._shares, self._sizes
        prior = max(_LEAST_PRIOR, min(_MOST_PRIOR, _PRIOR / self._count))
        for row, moments in enumerate(self._moments):
            own = moments[row]
            if own <= 0:
                continue
            common = self._predict(sizes) / sum(sizes)
            others = sum([moment * share for moment, share in zip(moments, shares, strict=True)])
            rest = self._totals[row] - (others - own * shares[row])
            share = (rest / own + prior * common) / (1 + prior)
            shares[row] = min(_MOST, max(_LEAST, share))
