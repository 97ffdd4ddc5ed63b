"""What the requests at an endpoint will still generate, and the most tokens that they will hold.

Not all of it is held at once: a request that ends frees its tokens while others still generate. The
most is the peak of future memory of LightLLM's Past-Future scheduler (arXiv 2507.10150). Memory
peaks just before a request ends. By then each request that continues has generated equally many
tokens, and those that ended before hold nothing.
"""

from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.learning.survival import QUARTERS

_FIRST: Final = 4
"""Each length below this has its own class; between two powers of two there are four classes."""
_EXACT: Final = 0.05
"""The spread below which lengths count as equal."""
_LATEST: Final = 1.0 + QUARTERS[-1]
"""A request has ended after this many times its expected length, whatever the spread."""


def class_of(tokens: int) -> int:
    """Return the class of a request that will still generate this many tokens."""
    if tokens < _FIRST:
        return tokens
    power = tokens.bit_length() - 3
    return _FIRST * power + (tokens >> power)


@mypyc_attr(acyclic=True)
class _Class:
    """Requests that will still generate about the same: sums over what is expected of them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.answers = 0
        self.coming = 0.0
        self.freed = 0.0
        self.spread = 0.0

    def ends(self) -> list[tuple[float, float, float, float]]:
        """Return where answers end: after how many tokens, how many, freed tokens, and a share.

        That share of these answers is assumed to have ended earlier.
        """
        answers = float(self.answers)
        mean, spread = self.coming / answers, self.spread / answers
        if spread < _EXACT:
            return [(mean, answers, self.freed, 0.0)]
        part, freed = answers / len(QUARTERS), self.freed / len(QUARTERS)
        return [(mean * (1 + spread * each), part, freed, 0.5) for each in QUARTERS]


class Growth:
    """The requests at one endpoint, by how many tokens they will still generate."""

    def __init__(self) -> None:
        self.total = 0.0
        """The tokens that are expected of all requests."""
        self._classes: Final[dict[int, _Class]] = {}  # all classes that ever had a request
        self._most = 0.0  # the result of `most`; below 0: not known

    def add(self, answers: int, coming: float, freed: int, spread: float) -> None:
        """Add a request expected to generate `coming` more tokens; its end frees `freed` tokens.

        `spread` is the deviation of that length, as a share of its mean: 0 if it is certain, at
        most 1.
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
        """Return how many more tokens than now will be held at once, at most.

        A request that was not sent yet may be included: the number of its `answers`, the length of
        `each`, and the tokens that its end frees; its prompt counts as held already. The result is
        then the most until that request has ended: what others hold later does not depend on it.
        """
        if answers:
            return self._peak([(each, float(answers), freed, 0.0)], _LATEST * each)
        if self._most < 0:  # called for all endpoints at each event while requests wait
            self._most = self._peak([], inf)
        return self._most

    def _peak(self, ends: list[tuple[float, float, float, float]], until: float) -> float:
        """Return the most that is held, with these ends added to those of the requests here.

        Only the time until each continuing answer has `until` more tokens counts.
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
