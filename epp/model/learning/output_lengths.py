"""How long answers are, and how fast they come: learned from those that were observed to the end.

It speaks for the others: what is not observed is taken to be like what is.
"""

from typing import Final

from epp.model.learning.bounded import Key, make_room
from epp.model.request import Api, InferenceRequest

_TOKENS: Final = 256.0
"""How long an answer is taken to be where none was seen."""
_SECONDS: Final = 0.02
"""What a token takes where none was timed: an 8B model on an H100 with company."""
_LEAST_GAIN: Final = 0.02
_LEAST_TIMED: Final = 8
_MOST: Final = 1000


class _Mean:
    """The mean of what was seen; of the last fifty or so where it was more."""

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0

    def add(self, seen: float) -> None:
        self._count += 1
        self.value += max(_LEAST_GAIN, 1 / self._count) * (seen - self.value)


class OutputLengths:
    """Lengths in tokens, by target model and whether they stream; paces in seconds a token.

    Of all that were heard of, the first are forgotten when there are too many.
    """

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, bool], _Mean] = {}
        self._paces: dict[object, _Mean] = {}

    def ended(self, request: InferenceRequest, tokens: int) -> None:
        """Take in how many tokens an answer came to; 0 where nobody counted."""
        if tokens > 0:
            _mean_of(self._lengths, (request.target_model, request.stream)).add(tokens)

    def timed(self, speed: object, tokens: int, seconds: float) -> None:
        """Take in how long all tokens but the first took, on endpoints of one `speed`."""
        if tokens >= _LEAST_TIMED and seconds > 0:
            _mean_of(self._paces, speed).add(seconds / (tokens - 1))

    def length(self, request: InferenceRequest) -> float:
        """Return how many tokens a request is expected to generate; at least one."""
        if request.api is Api.EMBEDDINGS or not request.prompts:
            return 1.0
        model = request.target_model
        mean = self._lengths.get((model, request.stream))
        mean = mean or self._lengths.get((model, not request.stream))
        tokens = _TOKENS if mean is None else mean.value
        return max(1.0, tokens if request.max_tokens is None else min(tokens, request.max_tokens))

    def seconds_per_token(self, speed: object) -> float:
        """Return how long a token is expected to take on endpoints of one `speed`."""
        mean = self._paces.get(speed)
        return _SECONDS if mean is None else mean.value


def _mean_of(means: dict[Key, _Mean], key: Key) -> _Mean:
    mean = means.get(key)
    if mean is None:
        make_room(means, _MOST)
        mean = means[key] = _Mean()
    return mean
