"""Trust in the predictions for one endpoint's cache, and the detection of restarts by them.

Predictions are compared with the `cached_tokens` that responses report. A prediction that was too
high lowers trust, which discounts later predictions; one that holds raises it. A large prediction
without any hit raises the suspicion that the engine has restarted. After a restart a request finds
at most what was cached since: one that finds more clears the suspicion, and more failed predictions
confirm it. Then the modelled cache is emptied. Trust is reset too, unless no prediction has held
since the last restart. Predictions of old blocks also fail if an engine evicts a little earlier
than modelled, so three failures are needed, or two that early eviction does not explain. An
engine that reports its restarts, by its start time or by KV events, is never suspected, since a
large prediction may fail for other reasons: models with sliding windows keep blocks that only
continuations of a prompt can hit.
"""

from enum import Enum
from typing import Final

_FALLS: Final = 0.1
_RISES: Final = 0.05
"""The weights of a report in the average, if it lowers trust, and if it raises trust."""
_MAX_MISSES: Final = 4
"""The most that `_FALLS` is multiplied by, for several reports in a row without hits."""
_LARGE_TOKENS: Final = 64
"""Predictions of fewer tokens do not raise suspicion. A missing last block of up to this many does
not lower trust; neither does a larger one if the engine's longer hits lack it too."""
_MISS_BELOW: Final = 0.1
"""If less than this share of a prediction was cached, none of it counts as true."""
_TRUE_FROM: Final = 0.8
"""If this share was cached, a prediction counts as true: lengths of texts are estimates."""
_ENOUGH: Final = 3
"""After this many failed predictions in a row, the cache is gone."""
DOUBT: Final = 0.75
"""Trust below which predictions are discounted."""


class Verdict(Enum):
    """What a report means for the model of an endpoint's cache."""

    HELD = "as predicted, or better"
    MISSED = "less was cached than predicted: the engine evicts earlier than modelled"
    RESTARTED = "nothing of what was predicted is there any more"


class PredictionTrust:
    """The trust in one endpoint, in 0..1; `suspicious` if its engine may have restarted.

    `reports` counts the responses observed to their end since the engine started.
    `reports_restarts`: the engine reports restarts itself.
    """

    def __init__(self) -> None:
        self.trust = 1.0
        self.suspicious = self.reports_restarts = False
        self.reports = 0
        self._reports_hits = False
        self._drops_last = False  # the engine's hits lack their last block
        self._failed_predictions = 0
        self._failed_tokens = 0
        self._misses_in_a_row = 0
        self._has_held = False  # since the last restart

    def discount(self, cached: int) -> int:
        """Return how many of the predicted tokens to count on; small doubts do not matter."""
        return cached if self.trust >= DOUBT else int(cached * self.trust)

    def judge(
        self, predicted: int, actual: int, block: int, fresh: int = 0, early: float = 0.0
    ) -> Verdict:
        """Compare a prediction with a report, both in tokens; blocks are of `block` tokens.

        If the cache was empty when the suspicion arose, it can serve at most `fresh` tokens. The
        engine may have evicted `early` tokens before its model did. An endpoint that has only
        reported zeros may not report hits at all, so it is not suspected.
        """
        self._reports_hits = self._reports_hits or actual > 0
        self.suspicious = self.suspicious and not self.reports_restarts and actual <= fresh + block
        if predicted <= 0:
            return Verdict.HELD
        held, lacks = min(predicted, actual) / predicted, predicted - actual
        # vLLM `find_longest_cache_hit`: with EAGLE or MTP the last block of each hit is dropped.
        # That is most of a short hit, and little of a long one.
        if predicted > block and actual > 0:
            self._drops_last = 0 < lacks <= block
        if held >= _TRUE_FROM or lacks > (block if self._drops_last else min(block, _LARGE_TOKENS)):
            in_a_row = self._misses_in_a_row + 1 if held < _MISS_BELOW else 0
            self._misses_in_a_row = min(_MAX_MISSES, in_a_row)
            weight = _FALLS * max(1, self._misses_in_a_row) if held < self.trust else _RISES
            self.trust += weight * (held - self.trust)
        if held >= _TRUE_FROM or actual > predicted - 2 * block:
            self._has_held = True
            return Verdict.HELD
        if not self.suspicious:
            self._failed_predictions, self._failed_tokens = 1, predicted - actual
            empty = held < _MISS_BELOW and predicted >= max(_LARGE_TOKENS, 2 * block)
            self.suspicious = empty and self._reports_hits and not self.reports_restarts
            return Verdict.MISSED
        self._failed_predictions += 1
        self._failed_tokens += predicted - actual
        if self._failed_predictions < _ENOUGH and self._failed_tokens <= early:
            return Verdict.MISSED
        known, trust = self._has_held, self.trust
        self.restarted()
        if not known:
            self.trust = trust
        return Verdict.RESTARTED

    def restarted(self) -> None:
        """Reset the trust: the engine has restarted."""
        self.reports = 0
        self.trust = 1.0
        self.suspicious = self._has_held = False
