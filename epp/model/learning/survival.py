"""How many tokens remain of a response that has reached some length.

A single predicted length is useless for a response that has exceeded it. Instead, lengths of
responses are counted in classes a fifth apart, with decaying weights, so that the remaining length
can be computed at any age.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

_RATIO: Final = 1.2
_LONGEST: Final = 1 << 20
_MAX: Final = 512.0
"""The most responses that are counted: beyond it, the counts are halved."""
_ENOUGH: Final = 8.0
"""How many responses must have exceeded an age for their remaining lengths to be used."""
QUARTERS: Final[tuple[float, ...]] = (-0.863, -0.523, 0.0, 1.386)
"""For exponential lengths: each quarter's mean less the whole mean, as a share of the latter."""
_STALE_SHARE: Final = 1 / 16
"""If this share of the responses is new, the sums are recomputed."""

SurvivalState = tuple[Sequence[float], Sequence[float]]
"""The number of responses in each class, and the sum of their tokens."""


def _bounds() -> list[float]:
    bounds = [1.0]
    while bounds[-1] < _LONGEST:
        bounds.append(max(bounds[-1] + 1.0, bounds[-1] * _RATIO))
    return bounds


_BOUNDS: Final = _bounds()
"""The longest response of each class, in tokens."""


def _class_of(tokens: float) -> int:
    """Return the class of a length, as `bisect_left` does, without making numbers into objects."""
    first, end = 0, len(_BOUNDS)
    while first < end:
        middle = (first + end) >> 1
        if _BOUNDS[middle] < tokens:
            first = middle + 1
        else:
            end = middle
    return first


class Survival:
    """The lengths of responses of one kind, in tokens."""

    def __init__(self) -> None:
        classes = len(_BOUNDS) + 1
        self._counts = [0.0] * classes
        self._lengths = [0.0] * classes
        self._longest = 0  # no response has a greater class
        self._total = 0.0
        self._stale = 0.0
        self._squares = 0.0  # of lengths
        self.spread = 0.0
        """The deviation of the lengths from their mean, as a share of it, at most 1."""
        self._outlived = [0.0] * (classes + 1)  # responses of a class, or of a longer one
        self._sums = [0.0] * (classes + 1)  # their lengths

    @property
    def state(self) -> SurvivalState:
        """The counted lengths; sums are recomputed, so that both replicas continue alike."""
        self._sum_up()
        return self._counts, self._lengths

    def restore(self, state: SurvivalState) -> None:
        """Replace the counts by another replica's; do nothing if these have other classes."""
        counts, lengths = state
        if len(counts) == len(lengths) == len(self._counts):
            self._counts, self._lengths = list(counts), list(lengths)
            self._longest = len(counts) - 1
            each = zip(lengths, counts, strict=True)
            self._squares = sum([length * length / count for length, count in each if count > 0.0])
            self._sum_up()

    def record(self, tokens: float, weight: float = 1.0) -> None:
        """Count a response of `tokens` tokens, which stands for `weight` responses."""
        position = _class_of(tokens)
        self._longest = max(self._longest, position)
        self._counts[position] += weight
        self._lengths[position] += weight * tokens
        self._total += weight
        self._stale += weight
        self._squares += weight * tokens * tokens
        if self._total > _MAX:
            self._counts = [each / 2 for each in self._counts]
            self._lengths = [each / 2 for each in self._lengths]
            self._total /= 2
            self._squares /= 2
        if self._stale >= self._total * _STALE_SHARE:
            self._sum_up()

    def _sum_up(self) -> None:
        self._stale = outlived = length = 0.0
        for position in range(self._longest, -1, -1):
            outlived += self._counts[position]
            length += self._lengths[position]
            self._outlived[position] = outlived
            self._sums[position] = length
        self._total = outlived
        if outlived >= _ENOUGH:
            square = length * length / outlived
            self.spread = min(1.0, sqrt(max(0.0, self._squares / square - 1.0)))

    def remaining(self, generated: float, usual: float) -> float:
        """Return how many tokens remain of a response that has `generated` so far.

        If too few responses got this far, `usual` is the expected length, and a response that has
        exceeded it is assumed to be half done.
        """
        position = _class_of(generated + 1.0)
        outlived = self._outlived[position]
        known = max(0.0, self._sums[position] - outlived * generated)
        if outlived >= _ENOUGH:
            return known / outlived
        guess = usual - generated if generated < usual / 2 else max(usual / 2, generated)
        return (known + (_ENOUGH - outlived) * guess) / _ENOUGH
