"""How far an endpoint's cache does what is predicted of it: trust, and signs of a restart.

Predictions are held to the `cached_tokens` that responses report. One that promised too much
lowers trust, which is what predictions are discounted by; one that held raises it. A large
promise of which nothing was true raises the suspicion that the engine has begun anew. Then a
request finds at most what has come since: one that finds more clears the engine, a second broken
promise convicts it.
"""

from enum import Enum
from typing import Final

_FALLS: Final = 0.1
_RISES: Final = 0.05
_LARGE_TOKENS: Final = 64
_LITTLE: Final = 0.1
_MOST_OF: Final = 0.8
"""A prediction that held so far is as good as held: lengths of texts are estimates."""
DOUBT: Final = 0.75
"""Trust below this discounts what is predicted."""


class Verdict(Enum):
    """What one report says of the model of an endpoint's cache."""

    HELD = "as predicted, or better"
    MISSED = "less was cached than predicted: the engine evicts earlier than believed"
    RESTARTED = "nothing of what was predicted is there any more"


class PredictionTrust:
    """What was learned of one endpoint from reports. `trust` is in 0..1.

    `suspicious` where its cache may be a new one.
    """

    __slots__ = ("_reported", "suspicious", "trust")

    def __init__(self) -> None:
        self.trust = 1.0
        self.suspicious = False
        self._reported = False

    def discount(self, cached: int) -> int:
        """Return what may be counted on of a prediction; small doubts change nothing."""
        return cached if self.trust >= DOUBT else int(cached * self.trust)

    def judge(self, predicted: int, actual: int, block: int, fresh: int = 0) -> Verdict:
        """Hold a prediction to a report, both in tokens; blocks are of `block` tokens.

        `fresh` is the most that a cache could serve that was empty when suspicion arose. An
        endpoint that has reported nothing but zeros may not report at all: it is not suspected.
        """
        self._reported = self._reported or actual > 0
        self.suspicious = self.suspicious and actual <= fresh + block
        if predicted <= 0:
            return Verdict.HELD
        held = min(predicted, actual) / predicted
        self.trust += (_FALLS if held < self.trust else _RISES) * (held - self.trust)
        if held >= _MOST_OF or actual > predicted - 2 * block:
            return Verdict.HELD
        if self.suspicious:
            self.restarted()
            return Verdict.RESTARTED
        empty = held < _LITTLE and predicted >= max(_LARGE_TOKENS, 2 * block)
        self.suspicious = empty and self._reported
        return Verdict.MISSED

    def restarted(self) -> None:
        """Forget what an engine that is gone has done."""
        self.trust = 1.0
        self.suspicious = False
