"""The time of a prefill: a formula in tokens, fitted to measurements of a class of endpoints.

    seconds = step * ceil(u / budget) + token * u + attention * u * (h + u / 2)

`u` uncached and `h` cached tokens. The defaults of `step`, `token` and `attention` are those of an
8B model on an H100; they are learned from requests that met an idle endpoint. An endpoint's
difference from its class is its slowness.
"""

from math import ceil
from typing import Final

from epp.model.learning.fit import ClassFit, Fit

TOKEN_SECONDS: Final = 40e-6
"""Seconds per token."""
ATTENTION_SECONDS: Final = 1.75e-9
"""Seconds per token and token of context before it."""
STEP_SECONDS: Final = 0.006
"""Seconds per step, whatever is computed in it."""
BUDGET_TOKENS: Final = 8192
"""Tokens that an engine prefills in one step (vLLM `max_num_batched_tokens`)."""


def steps(uncached: int) -> int:
    """Return the number of steps in which `uncached` tokens are computed, at least one."""
    return max(1, ceil(uncached / BUDGET_TOKENS))


class PrefillModel(ClassFit):
    """The formula for one class of endpoints.

    `step` is the seconds of a step without prompt tokens, `longest` those of a step full of
    uncached ones.
    """

    def __init__(self) -> None:
        self._speeds: dict[int, Speed] = {}
        super().__init__(Fit(STEP_SECONDS, TOKEN_SECONDS, ATTENTION_SECONDS))

    def _refresh(self) -> None:
        self.step, self._token, self._attention = self.fit.factors
        self.longest = self.seconds(BUDGET_TOKENS, 0)

    def seconds(self, uncached: int, cached: int) -> float:
        """Return the predicted seconds of a prefill, never less than one step's."""
        attention = self._attention * (cached + uncached / 2)
        return self.step * steps(uncached) + uncached * (self._token + attention)

    def speed(self, unit: int) -> "Speed":
        """Return the speed of endpoints of this class whose hits are multiples of `unit` tokens."""
        return self._speeds.setdefault(unit, Speed(unit, self))

    def learn(self, uncached: int, cached: int, seconds: float, *, sure: bool = True) -> None:
        """Learn from a prefill that took `seconds` and met an idle endpoint.

        `sure` is explained at `Fit.learn`.
        """
        amounts = float(steps(uncached)), float(uncached), uncached * (cached + uncached / 2)
        self.fit.learn(amounts, seconds, sure=sure)
        self._refresh()


class Speed:
    """The inputs of a prediction other than the cached blocks; similar endpoints share the object.

    Hits are multiples of `unit` tokens; 0 if prefix caching is off.
    """

    def __init__(self, unit: int, prefill: PrefillModel) -> None:
        self.unit = unit
        self.prefill = prefill
