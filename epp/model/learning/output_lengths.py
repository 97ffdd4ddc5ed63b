"""The expected lengths and times of responses, learned from those observed to their end.

Responses that are not observed are expected to be like them.
"""

from collections.abc import Sequence
from typing import Final

from epp.model.learning.bounded import LONGEST_NAME, Key, make_room
from epp.model.learning.mean import Mean, MeanState
from epp.model.learning.survival import Survival, SurvivalState
from epp.model.learning.ttft_share import TtftShare

_DEFAULT_TOKENS: Final = 256.0
"""Expected tokens of a response if none was observed."""
_DEFAULT_SECONDS_PER_TOKEN: Final = 0.02
"""Expected seconds per token if none was timed: an 8B model on a busy H100."""
_MAX_VALUES: Final = 50.0
"""The values that a mean is of, at most."""
_MAX_TIMES: Final = 32.0
"""The most that one length counts for, in multiples of the mean, as engines may report nonsense."""
_MAX_AT_FIRST: Final = 16384.0
"""The most that one length counts for, in tokens, until the mean is settled, unless the multiple is
more."""
_LAST: Final = 8.0
"""The number of responses that the spread is averaged over, roughly."""
_FARTHEST: Final = 10.0
"""The most that the seconds of a token count for, in multiples of the mean: a client may read
slowly, and a response may hang."""
_LONGEST_AT_FIRST: Final = 1.0
"""The most that they count for until the mean is settled, unless the multiple is more."""
_MIN_TIMED: Final = 8
"""Tokens of a response below which its duration is not learned from."""
_LONGEST: Final = float(1 << 20)
_ENTRIES: Final = 1000
"""Models, and classes of endpoints, that are kept at most."""

ResponseKind = tuple[str, bool]
"""The target model of a response, and whether it streams."""

ResponsesState = tuple[str, bool, MeanState, SurvivalState]
"""The state of a kind of response: target model, whether it streams, and its mean length."""


class OutputLengths:
    """Lengths in tokens, by kind of response; seconds per token by class.

    `ttft_share` is that of all responses. `spread` is the average distance of the last lengths from
    the mean of their kind, as a share of it, at most 1. The oldest entries are dropped when there
    are too many.
    """

    def __init__(self) -> None:
        self.ttft_share: Final = TtftShare()
        self.spread = 0.0
        self._lengths: dict[ResponseKind, Mean] = {}
        self._survivals: dict[ResponseKind, Survival] = {}
        self._seconds_per_token: dict[object, Mean] = {}

    def record_length(
        self, kind: ResponseKind, tokens: int, limit: int | None = None, weight: float = 1.0
    ) -> None:
        """Learn that a response had `tokens` tokens, 0 if they were not counted.

        `limit` is the client's. It counts for `weight` responses, one of which was observed.
        """
        if tokens > 0 and len(kind[0]) <= LONGEST_NAME:
            mean = _mean_of(self._lengths, kind)
            most = _MAX_TIMES * mean.value
            most = most if mean.settled else max(most, _MAX_AT_FIRST)
            # Of two numbers each: mypyc compiles that to a comparison, and calls `min` for three.
            allowed = float(min(tokens, limit or tokens))
            length = min(allowed, most)
            mean.add(length, weight)
            survival = self._survival_of(kind)
            survival.record(length, weight)
            self.spread += (survival.spread - self.spread) / _LAST

    def _survival_of(self, kind: ResponseKind) -> Survival:
        survival = self._survivals.get(kind)
        if survival is None:
            make_room(self._survivals, _ENTRIES)
            survival = self._survivals[kind] = Survival()
        return survival

    def record_seconds_per_token(
        self, speed: object, tokens: int, seconds: float, weight: float = 1.0
    ) -> None:
        """Learn that all `tokens` but the first took `seconds`, on endpoints of one `speed`."""
        if tokens >= _MIN_TIMED and seconds > 0:
            mean = _mean_of(self._seconds_per_token, speed)
            most = _FARTHEST * mean.value
            most = most if mean.settled else max(most, _LONGEST_AT_FIRST)
            each = seconds / (tokens - 1)
            mean.add(min(each, most), weight)

    @property
    def state(self) -> list[ResponsesState]:
        """The state of lengths."""
        known: list[ResponsesState] = []
        for (model, stream), survival in self._survivals.items():
            mean = self._lengths.get((model, stream))
            length = None if mean is None else mean.state
            if length is not None:
                known.append((model, stream, length, survival.state))
        return known

    def restore(self, states: Sequence[ResponsesState]) -> None:
        """Replace the state of lengths by one from elsewhere."""
        for model, stream, length, survival in states:
            if len(model) <= LONGEST_NAME:
                _mean_of(self._lengths, (model, stream)).restore(length)
                self._survival_of((model, stream)).restore(survival)

    def speed_state(self, speed: object) -> MeanState | None:
        """Return the state of the seconds of a token; None if none was timed."""
        mean = self._seconds_per_token.get(speed)
        return None if mean is None else mean.state

    def restore_speed(self, speed: object, state: MeanState) -> None:
        """Replace the state of the seconds of a token by one from elsewhere."""
        _mean_of(self._seconds_per_token, speed).restore(state)

    def settled(self, kind: ResponseKind, speed: object) -> bool:
        """Return whether enough is known of the length of a response, and its speed."""
        length = self._lengths.get(kind)
        pace = self._seconds_per_token.get(speed)
        return length is not None and length.settled and pace is not None and pace.settled

    def length(self, kind: ResponseKind, limit: int | None = None) -> float:
        """Return how many tokens a response is expected to have: one to `limit`, None for any."""
        model, stream = kind
        mean = self._lengths.get(kind) or self._lengths.get((model, not stream))
        tokens = _DEFAULT_TOKENS if mean is None else mean.value
        return max(1.0, tokens if limit is None else min(tokens, limit))

    def remaining(self, kind: ResponseKind, limit: int | None, generated: int) -> float:
        """Return how many tokens a response is expected to go on for after `generated`."""
        usual = self.length(kind, limit)
        if not generated:
            return usual
        survival = self._survivals.get(kind)
        if survival is None:
            return max(usual - generated, generated / 2)
        most = _LONGEST if limit is None else max(0.0, limit - generated)
        return min(most, survival.remaining(generated, usual))

    def seconds_per_token(self, speed: object) -> float:
        """Return how long a token is expected to take on endpoints of one `speed`."""
        mean = self._seconds_per_token.get(speed)
        return _DEFAULT_SECONDS_PER_TOKEN if mean is None else mean.value


def _mean_of(means: dict[Key, Mean], key: Key) -> Mean:
    mean = means.get(key)
    if mean is None:
        make_room(means, _ENTRIES)
        mean = means[key] = Mean(_MAX_VALUES)
    return mean
