"""Sums up predictions: how much too much, too little, and how often by a block or more."""

from collections.abc import Sequence

import msgspec

from bench.accuracy.observation import Guess


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Percentages of all prompt tokens; `off` is a percentage of the requests.

    `over` and `under` add up to `mae`. `hit` is what was really cached.
    """

    requests: int
    hit: float
    over: float
    under: float
    off: float

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self.over + self.under


def errors(guesses: Sequence[Guess], block: int) -> Errors:
    """Sum up. Raises ValueError if there is nothing to sum up."""
    prompt = sum(guess.prompt for guess in guesses)
    if not prompt:
        raise ValueError("no request said what was cached")
    share = 100 / prompt
    return Errors(
        requests=len(guesses),
        hit=share * sum(guess.actual for guess in guesses),
        over=share * sum(max(0, guess.error) for guess in guesses),
        under=share * sum(max(0, -guess.error) for guess in guesses),
        off=100 * sum(abs(guess.error) >= block for guess in guesses) / len(guesses),
    )
