"""What the requests at an endpoint will generate yet, and how many tokens they will hold at most.

Not all of it is held at once: what ends frees its tokens while others still generate. The most is
the peak of future memory of LightLLM's Past-Future scheduler (arXiv 2507.10150): just before a
request ends, each that goes on has generated as much as it, and those that ended before are gone.
"""

from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.learning.survival import QUARTERS

_FIRST: Final = 4
"""Lengths below this have a class of their own; from each power of two to the next there are four
classes."""
_EXACT: Final = 0.05
"""The spread below which lengths are taken for equal."""
_LATEST: Final = 1.0 + QUARTERS[-1]
"""After how many times its expected length a request has ended, whatever the spread of lengths."""


def class_of(tokens: int) -> int:
    """Return the class of a request that is to generate this many tokens yet."""
    if tokens < _FIRST:
        return tokens
    power = tokens.bit_length() - 3
    return _FIRST * power + (tokens >> power)


@mypyc_attr(acyclic=True)
class _Class:
    """Requests that are to generate about as much: sums of what is expected of them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.answers = 0
        self.coming = 0.0
        self.freed = 0.0
        self.spread = 0.0

    def ends(self) -> list[tuple[float, float, float, float]]:
        """Return after how many tokens answers end, how many of them, and what that frees.

        The last is the share of these that ended before.
        """
        answers = float(self.answers)
        mean, spread = self.coming / answers, self.spread / answers
        if spread < _EXACT:
            return [(mean, answers, self.freed, 0.0)]
        part, freed = answers / len(QUARTERS), self.freed / len(QUARTERS)
        return [(mean * (1 + spread * each), part, freed, 0.5) for each in QUARTERS]


class Growth:
    """The requests at one endpoint, by what is to come of them."""

    def __init__(self) -> None:
        self.total = 0.0
        """How many tokens are to come."""
        self._classes: Final[dict[int, _Class]] = {}  # those that ever had any
        self._most = 0.0  # of those that are there; below 0: not known

    def add(self, answers: int, coming: float, freed: int, spread: float) -> None:
        """Add a request: its answers are to have `coming` tokens yet, its end frees `freed`.

        `spread` is the deviation of the first from its mean, as a share of it: 0 if it is certain,
        to 1.
        """
        place = class_of(int(coming) // answers)
        found = self._classes.get(place)
        if found is None:
            found = self._classes[place] = _Class()
        self._most = -1.0
        self.total += coming
        found.answers += answers
        found.coming += coming
        found.freed += freed
        found.spread += answers * spread

    def remove(self, answers: int, coming: float, freed: int, spread: float) -> None:
        """Remove a request that was added with these figures."""
        found = self._classes[class_of(int(coming) // answers)]
        self._most = -1.0
        self.total -= coming
        found.answers -= answers
        if not found.answers:
            found.clear()
        else:
            found.coming -= coming
            found.freed -= freed
            found.spread -= answers * spread

    def most(self, answers: int = 0, each: float = 0.0, freed: float = 0.0) -> float:
        """Return how many tokens more than now are held at once, at most.

        Given the answers of a request that is not there yet, what each has, and what its end
        frees, it is there too, and its prompt is held already. Then it is the most until that one
        has ended: what the others hold later is the same without it.
        """
        if answers:
            return self._peak([(each, float(answers), freed, 0.0)], _LATEST * each)
        if self._most < 0:  # all endpoints are asked whenever requests wait and something happens
            self._most = self._peak([], inf)
        return self._most

    def _peak(self, ends: list[tuple[float, float, float, float]], until: float) -> float:
        """Return it, of those that are there and of those that are to end like this.

        Only what is held before each that goes on has `until` more tokens counts.
        """
        for found in self._classes.values():
            if found.answers:
                ends += found.ends()
        ends.sort()
        going_on = gone = most = 0.0
        for _, ending, _, _ in ends:
            going_on += ending
        for tokens, ending, free, before in ends:
            if tokens > until:
                return max(most, going_on * until - gone)
            most = max(most, (going_on - before * ending) * tokens - gone - before * free)
            going_on -= ending
            gone += free
        return most
