"""What responses are expected to be like, learned from observed ones: their lengths and times.

A response that is not observed is expected to be like those that were observed to their end.
"""

from math import log
from typing import Final

from epp.model.learning.bounded import Key, make_room
from epp.model.learning.ttft_share import TtftShare
from epp.model.quote import Quote
from epp.model.request import Api

_DEFAULT_TOKENS: Final = 256.0
"""Expected tokens of a response where none was observed."""
_DEFAULT_SECONDS_PER_TOKEN: Final = 0.02
"""Expected seconds per token where none was timed: an 8B model on a busy H100."""
_LEAST_GAIN: Final = 0.02
"""The weight of one more value in a mean, at least."""
_ENOUGH: Final = 16
"""Values after which a mean is settled."""
_DRIFT_GAIN: Final = 0.25
_MOST_DRIFT: Final = 1.75
"""Mean absolute deviations of the last few values after which the mean has changed: where it has
not, these are 3.7 standard deviations of that drift."""
_LEAST_CHANGE: Final = 0.1
"""A drift that is no change, whatever the deviation: a tenth of the value."""
_FARTHEST: Final = 4.0
"""Mean absolute deviations that one value counts for, at most."""
_MOST_TIMES: Final = 32.0
"""How many times the mean one length counts for where the mean is settled: some engines lie."""
_LEAST_TIMED: Final = 8
"""Tokens of a response below which its duration is not learned from."""
_EMBEDDING: Final = (Api.EMBEDDINGS, Api.GRPC_EMBED)
_ENTRIES: Final = 1000
"""Models, and classes of endpoints, that are kept at most."""


class _Mean:
    """The mean of all values, or of about the last fifty where there were more.

    Where the last few values are others, by their logarithms, the mean begins anew: `settled` is
    False until there are enough of them.
    """

    __slots__ = ("_count", "_drift", "_log", "_spread", "_weight", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0
        self._log = 0.0  # the mean of logarithms, and their mean absolute deviation
        self._spread = 0.0
        self._drift = 0.0  # the mean deviation of the last few
        self._weight = 1.0  # the mean of weights

    @property
    def settled(self) -> bool:
        return self._count >= _ENOUGH

    def add(self, seen: float, weight: float) -> None:
        """Add a value, which is more than 0 and stands for `weight` values."""
        self._count += 1
        gain = max(_LEAST_GAIN, 1 / self._count)
        self._weight += gain * (weight - self._weight)
        self.value += min(1.0, gain * weight / self._weight) * (seen - self.value)
        off = log(seen) - self._log
        self._log += gain * off
        if self._count > 1:
            self._spread += gain * (abs(off) - self._spread)
            farthest = _FARTHEST * self._spread  # one alone is no drift
            self._drift += _DRIFT_GAIN * (min(farthest, max(-farthest, off)) - self._drift)
        most = max(_LEAST_CHANGE, _MOST_DRIFT * self._spread)
        if self._count > _ENOUGH and abs(self._drift) > most:
            self._count, self._drift = 1, 0.0


class OutputLengths:
    """Lengths in tokens, by target model and whether they stream; seconds per token by class.

    `ttft_share` is that of all responses. The entries that were made first are dropped when there
    are too many.
    """

    def __init__(self) -> None:
        self.ttft_share: Final = TtftShare()
        self._lengths: dict[tuple[str, bool], _Mean] = {}
        self._seconds_per_token: dict[object, _Mean] = {}

    def record_length(self, quote: Quote, tokens: int, weight: float = 1.0) -> None:
        """Learn that a request's response had `tokens` tokens; 0 where nobody counted.

        It stands for `weight` responses, of which one was observed.
        """
        if tokens > 0:
            mean = _mean_of(self._lengths, (quote.target_model, quote.stream))
            most = _MOST_TIMES * mean.value if mean.settled else tokens
            mean.add(min(tokens, most, quote.max_tokens or tokens), weight)

    def record_seconds_per_token(
        self, speed: object, tokens: int, seconds: float, weight: float = 1.0
    ) -> None:
        """Learn that all `tokens` but the first took `seconds`, on endpoints of one `speed`."""
        if tokens >= _LEAST_TIMED and seconds > 0:
            _mean_of(self._seconds_per_token, speed).add(seconds / (tokens - 1), weight)

    def settled(self, quote: Quote, speed: object) -> bool:
        """Return whether enough is known of the length of a request's response, and its speed."""
        length = self._lengths.get((quote.target_model, quote.stream))
        pace = self._seconds_per_token.get(speed)
        return length is not None and length.settled and pace is not None and pace.settled

    def length(self, quote: Quote) -> float:
        """Return how many tokens a request is expected to generate; at least one."""
        if quote.api in _EMBEDDING or not quote.chains:
            return 1.0
        model = quote.target_model
        mean = self._lengths.get((model, quote.stream))
        mean = mean or self._lengths.get((model, not quote.stream))
        tokens = _DEFAULT_TOKENS if mean is None else mean.value
        return max(1.0, tokens if quote.max_tokens is None else min(tokens, quote.max_tokens))

    def seconds_per_token(self, speed: object) -> float:
        """Return how long a token is expected to take on endpoints of one `speed`."""
        mean = self._seconds_per_token.get(speed)
        return _DEFAULT_SECONDS_PER_TOKEN if mean is None else mean.value


def _mean_of(means: dict[Key, _Mean], key: Key) -> _Mean:
    mean = means.get(key)
    if mean is None:
        make_room(means, _ENTRIES)
        mean = means[key] = _Mean()
    return mean
