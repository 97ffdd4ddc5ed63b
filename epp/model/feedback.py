"""How far an endpoint's cache does what is predicted of it: trust, and signs of a restart.

Predictions are held to the `cached_tokens` that responses report. One that promised too much
lowers trust, which is what predictions are discounted by; one that held raises it. A large
promise of which nothing was true, and one broken after it, mean that the engine has begun anew:
its first request found nothing, the next ones at most what that has left.
"""

from enum import Enum

_FALLS, _RISES = 0.1, 0.05
_LARGE_TOKENS = 64
_LITTLE = 0.1
_MOST_OF = 0.8
"""A prediction that held so far is as good as held: lengths of texts are estimates."""
_DOUBT = 0.75


class Verdict(Enum):
    """What one report says of the model of an endpoint's cache."""

    HELD = "as predicted, or better"
    MISSED = "less was cached than predicted: the engine evicts earlier than believed"
    RESTARTED = "nothing of what was predicted is there any more"


class Feedback:
    """What was learned of one endpoint from reports. `trust` is in 0..1."""

    __slots__ = ("_empty", "_reported", "trust")

    def __init__(self) -> None:
        self.trust = 1.0
        self._empty = False
        self._reported = False

    def discount(self, cached: int) -> int:
        """Return what may be counted on of a prediction; small doubts change nothing."""
        return cached if self.trust >= _DOUBT else int(cached * self.trust)

    def judge(self, predicted: int, actual: int, block: int) -> Verdict:
        """Hold a prediction to a report, both in tokens; blocks are of `block` tokens.

        An endpoint that has reported nothing but zeros may not report at all: it is not taken
        for restarted.
        """
        self._reported = self._reported or actual > 0
        if predicted <= 0:
            return Verdict.HELD
        held = min(predicted, actual) / predicted
        self.trust += (_FALLS if held < self.trust else _RISES) * (held - self.trust)
        missed = held < _MOST_OF and actual <= predicted - 2 * block
        empty = held < _LITTLE and predicted >= max(_LARGE_TOKENS, 2 * block)
        if not missed:
            self._empty = self._empty and actual == 0
            return Verdict.HELD
        if not self._reported or not self._empty:
            self._empty = empty
            return Verdict.MISSED
        self.restarted()
        return Verdict.RESTARTED

    def restarted(self) -> None:
        """Forget what an engine that is gone has done."""
        self.trust = 1.0
        self._empty = False
