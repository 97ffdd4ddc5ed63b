"""How long to wait before something that failed is tried again."""

import random
from collections.abc import Callable


class Backoff:
    """Delays in seconds that double from `least` to `most`, each shortened by up to a half.

    `chance` gives numbers in 0..1, so that many replicas do not come back at one time.
    """

    def __init__(
        self, least: float, most: float, chance: Callable[[], float] = random.random
    ) -> None:
        self._least = least
        self._most = most
        self._chance = chance
        self._delay = least

    def next(self) -> float:
        """The delay after one more failure."""
        delay, self._delay = self._delay, min(self._most, self._delay * 2)
        return delay * (1 - self._chance() / 2)

    def reset(self) -> None:
        """Start over: it worked."""
        self._delay = self._least
