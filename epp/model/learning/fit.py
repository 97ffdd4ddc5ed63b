"""A sum of three terms, fitted to recent measurements; the share of a term is never negative."""

from typing import Final

from epp.model.learning.slowness import ClassSlowness

_MEMORY: Final = 0.98
"""The weight of each measurement against the one after it."""
_PRIOR: Final = 2.0
"""The weight of the defaults' proportions, in measurements."""
_MIN_PRIOR: Final = 0.01
_MAX_PRIOR: Final = 0.1
"""Bounds of that weight, as a share of the weight of what was measured."""
_SWEEPS: Final = 3
_MIN: Final = 0.01
_MAX: Final = 1e4
"""Bounds of a share."""
_MAX_SURPRISE: Final = 10.0
"""While measurements are few, the most that one counts for, in multiples of its prediction."""
_ENOUGH: Final = 16
"""After this many measurements, one that is far off is ignored."""
_KEPT: Final = 0.5
"""The weight of earlier measurements after `Fit.multiply`."""
_FAR: Final = 2.0
"""A measurement is far off if it differs from its prediction by more than this factor."""
_MAX_UNSURE: Final = 0.9
"""If a larger share of the last measurements is unsure, unsure ones count."""

Amounts = tuple[float, float, float]
"""One number per term."""
FitState = tuple[Amounts, tuple[Amounts, Amounts, Amounts], Amounts, Amounts, int]
"""The state of a `Fit`: shares, moments, totals, sizes, and a count."""


class _Term:
    """One term of the sum, with its decaying sums over measurements, in seconds.

    `first`, `second` and `third` are its moments with each term. They are attributes because these
    compile to C fields, while numbers in a list are objects (docs/adr/0013-compiled.md).
    """

    def __init__(self, default: float) -> None:
        self.default: Final = default
        self.share = 1.0
        self.first = self.second = self.third = 0.0
        self.total = 0.0
        self.size = 0.0

    @property
    def moments(self) -> Amounts:
        """The moments with each term."""
        return self.first, self.second, self.third

    def restore(self, share: float, moments: Amounts, total: float, size: float) -> None:
        """Replace the state by one that was learned elsewhere."""
        self.share, self.total, self.size = share, total, size
        self.first, self.second, self.third = moments

    def add(self, seconds: float, weight: float, terms: Amounts, total: float) -> None:
        """Add a measurement of `total` seconds, of which this term has `seconds` by its default."""
        first, second, third = terms
        self.first = self.first * _MEMORY + weight * first
        self.second = self.second * _MEMORY + weight * second
        self.third = self.third * _MEMORY + weight * third
        self.size = self.size * _MEMORY + seconds
        self.total = self.total * _MEMORY + weight * total

    def scale(self, times: float) -> None:
        """Reduce the weight of earlier measurements, because all now takes `times` as long."""
        moments = _KEPT / times
        self.first *= moments
        self.second *= moments
        self.third *= moments
        self.total *= _KEPT
        self.size *= _KEPT

    def set_share(self, share: float) -> None:
        """Set the share, within its bounds."""
        self.share = min(_MAX, max(_MIN, share))


class Fit:
    """seconds = sum of factor * amount. The `factors`, in seconds per unit, begin as defaults.

    Each factor is its default times a share. The shares are learned by weighted least squares over
    recent measurements; the variance of a measurement is in proportion to its prediction. A few
    rounds of coordinate descent after each measurement solve this. Shares that measurements cannot
    distinguish stay equal, so that the factors keep the proportions of their defaults. The weight
    of these is a tenth of the measurements' weight at first, and at last a hundredth.
    """

    def __init__(self, first: float, second: float, third: float) -> None:
        self.factors: Amounts = (first, second, third)
        self._first: Final = _Term(first)
        self._second: Final = _Term(second)
        self._third: Final = _Term(third)
        self._count = 0
        self._unsure = 0.0  # the unsure share of the last measurements

    @property
    def settled(self) -> bool:
        """Whether there are enough measurements to recognize those that are far off."""
        return self._count >= _ENOUGH

    @property
    def state(self) -> FitState:
        """The learned state."""
        first, second, third = self._first, self._second, self._third
        return (
            (first.share, second.share, third.share),
            (first.moments, second.moments, third.moments),
            (first.total, second.total, third.total),
            (first.size, second.size, third.size),
            self._count,
        )

    def restore(self, state: FitState) -> None:
        """Replace the state by one that was learned elsewhere with the same defaults."""
        shares, moments, totals, sizes, self._count = state
        self._first.restore(shares[0], moments[0], totals[0], sizes[0])
        self._second.restore(shares[1], moments[1], totals[1], sizes[1])
        self._third.restore(shares[2], moments[2], totals[2], sizes[2])
        self._publish()

    def learn(self, amounts: Amounts, seconds: float, *, sure: bool = True) -> None:
        """Learn that something with these amounts, not all of them 0, took `seconds`.

        A measurement that is not `sure` only counts while measurements are few, or if nearly all of
        the last ones were unsure: then the fit is wrong.

        If it took many times the prediction, something else ran too, or failed. If it took no time,
        nothing was computed. So the first few measurements count within bounds, and later ones that
        are far off are ignored.
        """
        first, second, third = self._first, self._second, self._third
        one, two, three = amounts
        one, two, three = first.default * one, second.default * two, third.default * three
        predicted = self._predict(one, two, three)
        if seconds <= 0:
            return
        self._unsure += (1.0 - _MEMORY) * ((not sure) - self._unsure)
        sure = sure or self._unsure > _MAX_UNSURE
        if not self.settled:
            seconds = max(predicted / _FAR, min(seconds, _MAX_SURPRISE * predicted))
        elif not (sure and predicted / _FAR <= seconds <= predicted * _FAR):
            return
        self._count += 1
        terms = one, two, three
        first.add(one, one / predicted, terms, seconds)
        second.add(two, two / predicted, terms, seconds)
        third.add(three, three / predicted, terms, seconds)
        prior = max(_MIN_PRIOR, min(_MAX_PRIOR, _PRIOR / self._count))
        for _ in range(_SWEEPS):
            self._solve(first, first.first, prior)
            self._solve(second, second.second, prior)
            self._solve(third, third.third, prior)
        self._publish()

    def multiply(self, times: float) -> float:
        """Multiply all predictions by `times`, within bounds; return the factor that was used.

        Earlier measurements then count for less: they were wrong, or no longer hold.
        """
        before = self._predict_sizes() if times != 1.0 else 0.0
        if before <= 0:
            return 1.0
        first, second, third = self._first, self._second, self._third
        first.set_share(first.share * times)
        second.set_share(second.share * times)
        third.set_share(third.share * times)
        times = self._predict_sizes() / before
        if times == 1.0:
            return times
        first.scale(times)
        second.scale(times)
        third.scale(times)
        self._publish()
        return times

    def _predict(self, first: float, second: float, third: float) -> float:
        """Return the total seconds, if the terms take these seconds by their defaults."""
        return self._first.share * first + self._second.share * second + self._third.share * third

    def _predict_sizes(self) -> float:
        return self._predict(self._first.size, self._second.size, self._third.size)

    def _publish(self) -> None:
        first, second, third = self._first, self._second, self._third
        self.factors = (
            first.default * first.share,
            second.default * second.share,
            third.default * third.share,
        )

    def _solve(self, term: _Term, own: float, prior: float) -> None:
        """Set a term's share to what measurements show if the other shares are right."""
        if own <= 0:
            return
        first, second, third = self._first, self._second, self._third
        common = self._predict_sizes() / (first.size + second.size + third.size)
        others = self._predict(term.first, term.second, term.third)
        rest = term.total - (others - own * term.share)
        term.set_share((rest / own + prior * common) / (1 + prior))


class ClassFit:
    """The fit for one class of endpoints, and the slowness of these.

    `_refresh` is called whenever the fit has changed.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.slowness = ClassSlowness()
        self._refresh()

    def _refresh(self) -> None:
        """Adopt the factors of the fit."""

    def restore(self, state: FitState) -> None:
        """Replace the fit by one that was learned elsewhere."""
        self.fit.restore(state)
        self._refresh()

    def recentre(self) -> None:
        """If most endpoints differ from the fit, correct it; predictions for endpoints stay."""
        times = self.fit.multiply(self.slowness.common)
        if times != 1.0:
            self.slowness.rescale(times)
            self._refresh()
