"""How far an endpoint's cache does what is predicted of it: trust, and signs of a restart.

Predictions are held to the `cached_tokens` that responses report. One that promised too much
lowers trust, which is what predictions are discounted by; one that held raises it. Several large
promises in a row of which nothing was true mean that the engine has begun anew.
"""

from enum import Enum

_FALLS, _RISES = 0.1, 0.05
_EMPTY_HANDED = 2
"""So many broken promises in a row are a restart."""
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

    __slots__ = ("_broken", "_reported", "trust")

    def __init__(self) -> None:
        self.trust = 1.0
        self._broken = 0
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
        broken = predicted >= max(_LARGE_TOKENS, 2 * block) and held < _LITTLE
        if not broken:
            if actual > 0:
                self._broken = 0
            missed = held < _MOST_OF and actual <= predicted - 2 * block
            return Verdict.MISSED if missed else Verdict.HELD
        self._broken += 1
        if self._broken < _EMPTY_HANDED or not self._reported:
            return Verdict.MISSED
        self.restarted()
        return Verdict.RESTARTED

    def restarted(self) -> None:
        """Forget what an engine that is gone has done."""
        self.trust = 1.0
        self._broken = 0
