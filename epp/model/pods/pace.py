"""How fast one endpoint is: its own slowness, relative to what is learned of its class.

Prefill is measured by the ledger, from one first token to the next. Decoding is measured by
responses: the tokens from steps without prefills are compared with the steps that the class would
have made in the same time, with the same sequences and context.
"""

from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.events import ClassState
from epp.model.learning.decode import DecodeModel
from epp.model.learning.mean import Mean
from epp.model.learning.prefill import PrefillModel
from epp.model.learning.slowness import Slowness
from epp.values import Value

_MIN_TOKENS: Final = 32
"""The fewest tokens from steps without prefills that make a measurement."""
_MIN_SHARE: Final = 0.5
"""The least share of such tokens in a response: if most came from steps of prefills, some of those
steps may have been shared by several prompts."""
_DEFAULT_SECONDS_PER_TOKEN: Final = 0.02
"""Expected seconds per token if none was timed: an 8B model on a busy H100."""
_MAX_VALUES: Final = 50.0
"""The most values that the mean of seconds per token is taken over."""
_FARTHEST: Final = 10.0
"""The most that the seconds of a token count for, in multiples of the mean: a client may read
slowly, and a response may hang."""
_LONGEST_AT_FIRST: Final = 1.0
"""Until the mean is settled: the most seconds that count, unless that multiple is more."""
_MIN_TIMED: Final = 8
"""The durations of responses with fewer tokens are not learned from."""


class PaceClass:
    """What endpoints that count as equally fast have in common."""

    def __init__(self) -> None:
        self.prefill = PrefillModel()
        self.decode = DecodeModel()
        self.seconds_per_token = Mean(_MAX_VALUES)

    def learn_tokens(self, tokens: int, seconds: float, weight: float) -> None:
        """Learn that all `tokens` of a response but the first took `seconds`.

        The response stands for `weight` responses.
        """
        if tokens >= _MIN_TIMED and seconds > 0:
            mean = self.seconds_per_token
            most = _FARTHEST * mean.value
            most = most if mean.settled else max(most, _LONGEST_AT_FIRST)
            each = seconds / (tokens - 1)
            mean.add(min(each, most), weight)

    def state(self, label: str) -> ClassState:
        """Return what was learned."""
        prefill, decode = self.prefill, self.decode
        return (
            label,
            prefill.fit.state,
            prefill.slowness.state,
            decode.fit.state,
            decode.slowness.state,
            self.seconds_per_token.state,
        )

    def restore(self, state: ClassState) -> None:
        """Continue from what was learned elsewhere."""
        _, prefill, prefill_slowness, decode, decode_slowness, seconds_per_token = state
        self.prefill.restore(prefill)
        self.prefill.slowness.restore(prefill_slowness)
        self.decode.restore(decode)
        self.decode.slowness.restore(decode_slowness)
        if seconds_per_token is not None:
            self.seconds_per_token.restore(seconds_per_token)


@mypyc_attr(free_list_len=1, acyclic=True)
class PaceMark(Value):
    """What an endpoint has done up to one moment.

    It decoded for `seconds` without any prefill. By the first predictions, its class would have
    made `steps` in that time; `sequences` and `held` are sums over these steps. In addition, it
    made `prefill_steps`.
    """

    def __init__(
        self, seconds: float, steps: float, sequences: float, held: float, prefill_steps: int
    ) -> None:
        self.seconds: Final = seconds
        self.steps: Final = steps
        self.sequences: Final = sequences
        self.held: Final = held
        self.prefill_steps: Final = prefill_steps


class Pace:
    """The speed of one endpoint.

    A prefill takes `prefill_slowness` times as long as its class predicts, and a step of decoding
    `decode_slowness` times as long.
    """

    def __init__(self, of_class: PaceClass) -> None:
        self.of_class = of_class
        self.prefill_slowness = Slowness(of_class.prefill.slowness)
        self.decode_slowness = Slowness(of_class.decode.slowness)
        self._at = inf  # nothing was counted yet
        self._seconds = self._steps = self._sequences = self._held = 0.0
        self._prefill_steps = 0

    def join(self, of_class: PaceClass) -> None:
        """Leave the class, and start over in another."""
        self.of_class = of_class
        self.prefill_slowness.join(of_class.prefill.slowness)
        self.decode_slowness.join(of_class.decode.slowness)

    def fade(self, now: float) -> None:
        """Forget measurements of long ago."""
        self.prefill_slowness.fade(now)
        self.decode_slowness.fade(now)

    @property
    def longest_step(self) -> float:
        """The seconds of a step that prefills as much as fits."""
        return self.prefill_slowness.value * self.of_class.prefill.longest

    @property
    def seconds_per_token(self) -> float:
        """How long a token of a response is expected to take."""
        of_class = self.of_class.seconds_per_token.value
        return self.decode_slowness.relative * (of_class or _DEFAULT_SECONDS_PER_TOKEN)

    def decode_seconds(self, sequences: float, held: float) -> float:
        """Return the seconds that decoding adds to a step, whether it prefills or not."""
        decode = self.of_class.decode
        return self.decode_slowness.value * (decode.sequence * sequences + decode.context * held)

    def step_seconds(self, sequences: float, held: float) -> float:
        """Return the seconds of a step that only decodes, this many sequences."""
        return self.decode_slowness.value * self.of_class.decode.seconds(sequences, held)

    # Measurements.

    def count(self, sequences: float, held: float, now: float, *, prefilling: bool) -> None:
        """Count the time since the last call, in which these sequences held these tokens."""
        apart, self._at = now - self._at, now
        if prefilling or sequences <= 0 or apart <= 0:
            return
        decode = self.of_class.decode
        steps = apart * decode.slowness.scale / decode.seconds(sequences, held)
        self._seconds += apart
        self._steps += steps
        self._sequences += sequences * steps
        self._held += held * steps

    def count_prefill(self, steps: int) -> None:
        """Count the steps of a prefill; in each of them decodes get a token as well."""
        self._prefill_steps += steps

    def mark(self) -> PaceMark:
        """Return what was done up to the last count."""
        return PaceMark(
            self._seconds, self._steps, self._sequences, self._held, self._prefill_steps
        )

    def learn_prefill(self, expected: float, seconds: float, now: float) -> float:
        """Learn that a prefill for which the class at first predicted `expected` took `seconds`.

        Nothing is learned while little is known of the class: the first measured endpoint would
        look faster or slower than the others. Returns what `Slowness.learn` does.
        """
        if not self.of_class.prefill.fit.settled:
            return 0.0
        taught = self.prefill_slowness.learn(expected, seconds, now)
        self.of_class.prefill.recentre()
        return taught

    def learn_prompt(self, uncached: int, cached: int, seconds: float) -> None:
        """Teach the class by a prompt that met an idle endpoint."""
        slowness = self.prefill_slowness
        self.of_class.prefill.learn(
            uncached, cached, seconds / slowness.relative, sure=slowness.settled
        )

    def learn_decode(self, since: PaceMark, tokens: int, now: float) -> None:
        """Learn that a response went on by `tokens` since a mark."""
        least = max(_MIN_TOKENS, _MIN_SHARE * tokens)
        tokens -= self._prefill_steps - since.prefill_steps
        steps, seconds = self._steps - since.steps, self._seconds - since.seconds
        if tokens < least or steps <= 0:
            return
        sequences, held = self._sequences - since.sequences, self._held - since.held
        decode, slowness = self.of_class.decode, self.decode_slowness
        each = seconds / tokens / slowness.relative
        if decode.fit.settled:
            slowness.learn(seconds * tokens / steps, seconds, now)
            decode.recentre()
        decode.learn(sequences / steps, held / steps, each, sure=slowness.settled)
