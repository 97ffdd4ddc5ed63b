"""The time of a step of decoding: a formula, fitted to measurements of a class of endpoints.

    seconds = step + sequence * n + context * held

`n` sequences decode, and requests hold `held` tokens of the KV cache. vLLM computes all running
sequences in the same step, so that each gets a token every step. The defaults are an 8B model on an
H100; the shares of the terms are learned from responses that were observed to their end.
"""

from typing import Final

from epp.model.learning.fit import Fit, FitState
from epp.model.learning.slowness import ClassSlowness

STEP_SECONDS: Final = 0.006
"""Seconds a step, whatever is computed in it."""
SEQUENCE_SECONDS: Final = 20e-6
"""Seconds that each sequence adds."""
CONTEXT_SECONDS: Final = 56e-9
"""Seconds that each token adds which sequences look back at."""


class DecodeModel:
    """The fit for one class of endpoints.

    `step`, `sequence` and `context` are the factors of the formula, in seconds. `slowness` is that
    of the endpoints of the class.
    """

    __slots__ = ("context", "fit", "sequence", "slowness", "step")

    def __init__(self) -> None:
        self.fit = Fit(STEP_SECONDS, SEQUENCE_SECONDS, CONTEXT_SECONDS)
        self.slowness = ClassSlowness()
        self._refresh()

    def _refresh(self) -> None:
        self.step, self.sequence, self.context = self.fit.factors

    def seconds(self, sequences: float, held: float) -> float:
        """Return the predicted seconds of a step."""
        return self.step + self.sequence * sequences + self.context * held

    def learn(self, sequences: float, held: float, seconds: float, *, sure: bool = True) -> None:
        """Learn that steps with these sequences and tokens took `seconds` each, on average.

        `sure` is explained at `Fit.learn`.
        """
        self.fit.learn((1.0, sequences, held), seconds, sure=sure)
        self._refresh()

    def restore(self, state: FitState) -> None:
        """Replace the fit by one that was learned elsewhere."""
        self.fit.restore(state)
        self._refresh()

    def take_over(self) -> None:
        """If most endpoints differ from the fit, correct it; each endpoint's prediction stays."""
        times = self.fit.multiply(self.slowness.common)
        if times != 1.0:
            self.slowness.take_over(times)
            self._refresh()
