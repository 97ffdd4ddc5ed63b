"""The slowness of an endpoint: how many times as long as its class predicts it takes.

It is a mean of logarithms over about the last dozen measurements. While measurements are few, it is
pulled towards the mean of the class. Old measurements lose weight to that mean, so that an endpoint
that was slow is tried again.
"""

from math import exp, log
from typing import Final

_MAX_COUNT: Final = 12.0
"""Measurements after which each new one weighs the same."""
_PRIOR: Final = 1.0
"""The weight of the mean of the class, in measurements."""
_SMALL_SECONDS: Final = 0.05
"""A measurement of this many seconds has half the weight of a long one: times are rounded up to
whole steps."""
_FARTHEST_UP: Final = log(2.0)
_FARTHEST_DOWN: Final = log(1.5)
"""The most that one measurement counts for, up and down: errors are mostly upward."""
_DRIFT_GAIN: Final = 0.2
_MAX_DRIFT: Final = 0.2
_FEW: Final = 3.0
"""The most that earlier measurements count for once the last few differ from them."""
_MAX: Final = log(100.0)
_CENTRE_STEP: Final = 0.01
"""How far one measurement moves the centre of its class."""
_MAX_COMMON: Final = log(1.25)
"""How far the centre may be from the class's prediction before the prediction is corrected."""
_KEPT_SECONDS: Final = 60.0
"""Seconds without a measurement before the known ones fade."""
_FADE_SECONDS: Final = 600.0
"""Seconds in which they fade to 1/e."""
_HALFWAY_SECONDS: Final = 60.0
"""The same for an endpoint that approached the mean of its class when last measured."""

ClassSlownessState = tuple[float, float]
"""The state of a class without its endpoints: centre and scale."""
SlownessState = tuple[float, float, float, bool]
"""The state of an endpoint: logarithm, count, drift, and whether it was measured again."""


class ClassSlowness:
    """The logarithms of a class: `count` of measured endpoints, their `total`, and the `centre`.

    The centre is roughly the median of the measured endpoints, so that no single one moves it far.
    `scale` is the factor by which the class has changed its predictions since the start.
    """

    def __init__(self) -> None:
        self.endpoints: dict[Slowness, None] = {}
        self.count = 0
        self.total = 0.0
        self.centre = 0.0
        self.scale = 1.0

    @property
    def mean(self) -> float:
        """The mean over endpoints; 0 if none was measured."""
        return self.total / self.count if self.count else 0.0

    @property
    def common(self) -> float:
        """How many times as long as predicted the class's endpoints take; 1 if nearly as long."""
        return 1.0 if abs(self.centre) < _MAX_COMMON else exp(self.centre)

    @property
    def state(self) -> ClassSlownessState:
        """The learned state, without that of endpoints."""
        return self.centre, self.scale

    def restore(self, state: ClassSlownessState) -> None:
        """Replace the state by one that was learned elsewhere; endpoints stay as they are."""
        self.centre, self.scale = state

    def rescale(self, times: float) -> None:
        """Record that the class multiplied its predictions by `times`; those for endpoints stay.

        An endpoint that was not measured since the last time follows the class.
        """
        common = log(times)
        self.scale *= times
        self.centre -= common
        for each in self.endpoints:
            each.rebase(common)


class Slowness:
    """One endpoint's slowness: `value` is 1 if it takes as long as its class predicts, 2 if twice.

    Times are in seconds of a clock that never goes back.
    """

    def __init__(self, of_class: ClassSlowness) -> None:
        self._class = of_class
        self._at = 0.0
        of_class.endpoints[self] = None
        self._start()

    @property
    def state(self) -> SlownessState:
        """The learned state."""
        return self._log, self._count, self._drift, self._measured

    def restore(self, state: SlownessState, now: float) -> None:
        """Replace the state by one that was learned elsewhere for this class; it counts as new."""
        self._leave()
        self._log, self._count, self._drift, self._measured = state
        self._at = now
        if self._count:
            self._class.count += 1
            self._class.total += self._log
        self.value = exp(self._log)

    def _leave(self) -> None:
        if self._count:
            self._class.count -= 1
            self._class.total -= self._log

    def _start(self) -> None:
        self._count = 0.0
        self._log = self._class.mean
        self._drift = 0.0  # of the last few measurements
        self._measured = False
        self.value = exp(self._log)

    def join(self, of_class: ClassSlowness) -> None:
        """Leave the class, and start over in another as if never measured."""
        self._leave()
        del self._class.endpoints[self]
        self._class = of_class
        of_class.endpoints[self] = None
        self._start()

    def rebase(self, common: float) -> None:
        """Predict as long as before, though the class now predicts more by the logarithm `common`.

        If nothing was measured since the last time, stay as far from the class as before.
        """
        if self._measured:
            self._measured = False
            self._move(-common)

    def learn(self, expected: float, seconds: float, now: float) -> float:
        """Learn that a job took `seconds`, for which the class first predicted `expected` seconds.

        So jobs that were sent before the class changed its predictions can be compared with current
        ones. Returns by how much the logarithm changed.
        """
        of_class = self._class
        expected *= of_class.scale
        if expected <= 0 or seconds <= 0:
            return 0.0
        if not self._count:
            of_class.count += 1
            of_class.total += self._log
        self._at = now
        self._measured = True
        off = log(seconds) - log(expected) - self._log  # a ratio may be more than a float holds
        off = min(_FARTHEST_UP, max(-_FARTHEST_DOWN, off))
        self._drift += _DRIFT_GAIN * (off - self._drift)
        known, size = self._count, expected
        if not self.settled:
            known, size = min(_FEW, known), max(size, seconds)
        weight = size / (size + _SMALL_SECONDS)
        self._count = min(_MAX_COUNT, known + weight)
        # the mean of the class is the first value, as heavy as _PRIOR measurements
        before = self._log
        self._move(off * weight / (self._count + _PRIOR))
        of_class.centre += min(_CENTRE_STEP, max(-_CENTRE_STEP, self._log - of_class.centre))
        return self._log - before

    def take_back(self, taught: float) -> None:
        """Undo a change that `learn` returned, because the job was not the expected one."""
        if self._count:
            self._move(-taught)

    @property
    def settled(self) -> bool:
        """Whether the last few measurements agree with it: it has not just changed."""
        return abs(self._drift) < _MAX_DRIFT

    @property
    def relative(self) -> float:
        """How many times as long it takes as the centre of its class.

        Measurements are divided by this before the class learns from them.
        """
        return exp(self._log - self._class.centre)

    @property
    def by_first_prediction(self) -> float:
        """How many times as long it takes as its class predicted at first (`learn`)."""
        return self.value * self._class.scale

    def fade(self, now: float) -> None:
        """Forget measurements of long ago."""
        to_mean = self._class.mean - self._log
        halfway = not self.settled and to_mean * self._drift > 0
        idle = now - self._at - (0.0 if halfway else _KEPT_SECONDS)
        if idle <= 0 or not self._count:
            return
        self._at += idle
        kept = exp(-idle / (_HALFWAY_SECONDS if halfway else _FADE_SECONDS))
        self._count = min(self._count, max(1.0, self._count * kept))
        self._move((1 - kept) * to_mean)

    def _move(self, by: float) -> None:
        before = self._log
        self._log = min(_MAX, max(-_MAX, before + by))
        self._class.total += self._log - before
        self.value = exp(self._log)
