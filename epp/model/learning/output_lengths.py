"""Expected lengths of responses and seconds per token (TPOT), learned from observed ones.

A response that is not observed is expected to be like those that were observed to their end.
"""

from typing import Final

from epp.model.learning.bounded import Key, make_room
from epp.model.quote import Quote
from epp.model.request import Api

_DEFAULT_TOKENS: Final = 256.0
"""Expected tokens of a response where none was observed."""
_DEFAULT_SECONDS_PER_TOKEN: Final = 0.02
"""Expected seconds per token where none was timed: an 8B model on a busy H100."""
_LEAST_GAIN: Final = 0.02
"""The weight of one more value in a mean, at least."""
_LEAST_TIMED: Final = 8
"""Tokens of a response below which its duration is not learned from."""
_EMBEDDING: Final = (Api.EMBEDDINGS, Api.GRPC_EMBED)
_ENTRIES: Final = 1000
"""Models, and classes of endpoints, that are kept at most."""


class _Mean:
    """The mean of all values, or of about the last fifty where there were more."""

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0

    def add(self, seen: float) -> None:
        self._count += 1
        self.value += max(_LEAST_GAIN, 1 / self._count) * (seen - self.value)


class OutputLengths:
    """Lengths in tokens, by target model and whether they stream; seconds per token by class.

    The entries that were made first are dropped when there are too many.
    """

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, bool], _Mean] = {}
        self._seconds_per_token: dict[object, _Mean] = {}

    def record_length(self, quote: Quote, tokens: int) -> None:
        """Learn that a request's response had `tokens` tokens; 0 where nobody counted."""
        if tokens > 0:
            _mean_of(self._lengths, (quote.target_model, quote.stream)).add(tokens)

    def record_seconds_per_token(self, speed: object, tokens: int, seconds: float) -> None:
        """Learn that all `tokens` but the first took `seconds`, on endpoints of one `speed`."""
        if tokens >= _LEAST_TIMED and seconds > 0:
            _mean_of(self._seconds_per_token, speed).add(seconds / (tokens - 1))

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
