"""The expected lengths of responses, learned from responses observed to their end.

Unobserved responses are expected to be like these. Streams come in pieces: if an engine speculates,
or sends several tokens at once (vLLM `--stream-interval`), there are fewer pieces than tokens.
"""

from collections.abc import Sequence
from typing import Final

from epp.model.learning.bounded import LONGEST_NAME, make_room
from epp.model.learning.mean import Mean, MeanState
from epp.model.learning.survival import Survival, SurvivalState
from epp.model.learning.ttft_share import TtftShare

_DEFAULT_TOKENS: Final = 256.0
"""Expected tokens of a response if none was observed."""
_MAX_VALUES: Final = 50.0
"""The most values that a mean is taken over."""
_MAX_TIMES: Final = 32.0
"""The most that one length counts for, in multiples of the mean: engines may report nonsense."""
_MAX_AT_FIRST: Final = 16384.0
"""Until the mean is settled: the most that one length counts for, in tokens, unless that multiple
of the mean is more."""
_LAST: Final = 8.0
"""The number of responses that the spread is averaged over, roughly."""
_MIN_PIECES: Final = 16
"""In streams of fewer pieces, pieces without a token at both ends would count for too much."""
_MOST_IN_A_PIECE: Final = 256.0
"""The most tokens per piece that are believed."""
_LONGEST: Final = float(1 << 20)
_ENTRIES: Final = 1000
"""The most models that are kept."""

ResponseKind = tuple[str, bool]
"""The target model of a response, and whether it streams."""

ResponsesState = tuple[str, bool, MeanState, SurvivalState]
"""The state of a kind: target model, whether it streams, mean length, and survival."""


class _KindLengths:
    """The lengths of the responses of one kind."""

    def __init__(self) -> None:
        self.mean: Final = Mean(_MAX_VALUES)
        self.in_a_piece: Final = Mean(_MAX_VALUES)
        self.survival: Final = Survival()


class OutputLengths:
    """Lengths in tokens, by kind of response.

    `ttft_share` is over all responses. `spread` is the average distance of the last lengths from
    the mean of their kind, as a share of that mean, at most 1. The oldest entries are dropped when
    there are too many.
    """

    def __init__(self) -> None:
        self.ttft_share: Final = TtftShare()
        self.spread = 0.0
        self._models: dict[str, dict[bool, _KindLengths]] = {}  # inner key: whether they stream

    def record_length(
        self, kind: ResponseKind, tokens: int, limit: int | None = None, weight: float = 1.0
    ) -> None:
        """Learn that a response had `tokens` tokens, 0 if they were not counted.

        `limit` is the client's limit. The response stands for `weight` responses, one of which was
        observed.
        """
        if tokens > 0 and len(kind[0]) <= LONGEST_NAME:
            lengths = self._of(kind)
            mean = lengths.mean
            most = _MAX_TIMES * mean.value
            most = most if mean.settled else max(most, _MAX_AT_FIRST)
            # `min` of two numbers compiles to a comparison; of three it is a call.
            allowed = float(min(tokens, limit or tokens))
            length = min(allowed, most)
            mean.add(length, weight)
            lengths.survival.record(length, weight)
            self.spread += (lengths.survival.spread - self.spread) / _LAST

    def record_pieces(self, kind: ResponseKind, tokens: int, pieces: int) -> None:
        """Learn that a stream, whose length is recorded, had `tokens` in this many pieces."""
        lengths = self._known(kind) if tokens > 0 and pieces >= _MIN_PIECES else None
        if lengths is not None:
            each = min(tokens / pieces, _MOST_IN_A_PIECE)
            lengths.in_a_piece.add(each, float(pieces))

    def tokens_in(self, kind: ResponseKind, pieces: int) -> int:
        """Return how many tokens a stream has in these pieces: one in each, if nothing is known."""
        lengths = self._known(kind)
        each = 0.0 if lengths is None else lengths.in_a_piece.value
        return max(1, round(pieces * each)) if each and pieces else pieces

    def _of(self, kind: ResponseKind) -> "_KindLengths":
        """Return the lengths of a kind, new ones for a new kind."""
        model, stream = kind
        of_model = self._models.get(model)
        if of_model is None:
            make_room(self._models, _ENTRIES)
            of_model = self._models[model] = {}
        lengths = of_model.get(stream)
        if lengths is None:
            lengths = of_model[stream] = _KindLengths()
        return lengths

    def _known(self, kind: ResponseKind) -> "_KindLengths | None":
        model, stream = kind
        of_model = self._models.get(model)
        return None if of_model is None else of_model.get(stream)

    @property
    def state(self) -> list[ResponsesState]:
        """What was learned of lengths."""
        known: list[ResponsesState] = []
        for model, of_model in self._models.items():
            for stream, lengths in of_model.items():
                length = lengths.mean.state
                if length is not None:
                    known.append((model, stream, length, lengths.survival.state))
        return known

    def restore(self, states: Sequence[ResponsesState]) -> None:
        """Continue from lengths that were learned elsewhere."""
        for model, stream, length, survival in states:
            if len(model) <= LONGEST_NAME:
                lengths = self._of((model, stream))
                lengths.mean.restore(length)
                lengths.survival.restore(survival)

    def settled(self, kind: ResponseKind) -> bool:
        """Return whether enough is known of the lengths of a kind."""
        lengths = self._known(kind)
        return lengths is not None and lengths.mean.settled

    def length(self, kind: ResponseKind, limit: int | None = None) -> float:
        """Return how many tokens a response is expected to have: at least 1, at most `limit`."""
        model, stream = kind
        of_model, tokens = self._models.get(model), _DEFAULT_TOKENS
        if of_model is not None:
            lengths = of_model.get(stream) or of_model[not stream]
            tokens = lengths.mean.value
        return max(1.0, tokens if limit is None else min(tokens, limit))

    def remaining(self, kind: ResponseKind, limit: int | None, generated: int) -> float:
        """Return how many more tokens a response is expected to have after `generated`."""
        usual = self.length(kind, limit)
        if not generated:
            return usual
        lengths = self._known(kind)
        most = _LONGEST if limit is None else max(0.0, limit - generated)
        if lengths is None:
            return min(most, max(usual - generated, generated / 2))
        return min(most, lengths.survival.remaining(generated, usual))
