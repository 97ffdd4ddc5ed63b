"""The time of a step of decoding: a formula, fitted to measurements of a class of endpoints.

    seconds = step + sequence * n + context * held

`n` sequences decode, and requests hold `held` tokens of the KV cache. vLLM computes all running
sequences in the same step, so that each gets a token every step. The defaults are those of an 8B
model on an H100; the factors are learned from responses that were observed to their end.
"""

from typing import Final

from epp.model.learning.fit import ClassFit, Fit

STEP_SECONDS: Final = 0.006
"""Seconds per step, whatever is computed in it."""
SEQUENCE_SECONDS: Final = 20e-6
"""Seconds that each sequence adds."""
CONTEXT_SECONDS: Final = 56e-9
"""Seconds that each token of context adds."""


class DecodeModel(ClassFit):
    """The factors of the formula for one class of endpoints, in seconds."""

    def __init__(self) -> None:
        super().__init__(Fit(STEP_SECONDS, SEQUENCE_SECONDS, CONTEXT_SECONDS))

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
