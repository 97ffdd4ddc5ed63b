"""What the end of a response would teach: which responses are to be observed to their end.

With its first token a response has told its time to first token. Its end tells its length and
speed, how many tokens the prompt really had, and how many of them were cached. That is needed
if it is not known well enough: of an endpoint that has just started, or whose cache does not
hold what is predicted, or whose speed changes; of a model whose responses have become longer or
shorter; and of a prompt whose cached part was predicted by a length that is a guess. Of the others
a sample is enough to notice that something changes: of each endpoint one response in some seconds,
or all where fewer come, but never less than one in `_MAX_LEFT`. Where so few come in all that it
costs next to nothing to observe them, all are observed.
"""

from math import inf
from typing import Final
from zlib import crc32

from epp.model.learning.output_lengths import OutputLengths
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.pod import Pod
from epp.model.prompts.reader import Prompts

_MAX_LEFT: Final = 128
"""Responses of which one is observed, whatever is known."""
_SECONDS_APART: Final = 10.0
"""Seconds from one of an endpoint's responses in the sample to the next."""
_LIGHT: Final = 0.1
"""Seconds between responses, of all endpoints together, from which on all are observed: that costs
2 % of a core if they have a hundred pieces each."""
_GAIN: Final = 0.05
"""The weight of one in the mean of the seconds between responses."""
_PAUSE: Final = 10.0
"""How many times that mean a pause between two responses counts at most."""
_IDS: Final = 1 << 32
_FIRST_REPORTS: Final = 8
"""Responses that are observed of an endpoint that has started."""
_SURE: Final = 0.9
"""Trust in an endpoint's predictions below which its reports are needed."""
_TOLERATED: Final = 0.01
"""The share of a prompt by which the prediction of its cached tokens may be wrong."""
_MIN_TOKENS: Final = 2048
"""Tokens of a prompt for which a shorter one counts: their prefill takes no longer."""


class Uncertainty:
    """Judges by what `prompts` and `output_lengths` have learned. The core draws no chance."""

    def __init__(self, prompts: Prompts, output_lengths: OutputLengths) -> None:
        self._prompts: Final = prompts
        self._output_lengths: Final = output_lengths
        self._answered_at = -inf
        self._answers_apart = inf

    def needs_end(self, request: InFlightRequest, now: float) -> bool:
        """Return whether the end of a response that has begun would teach what is uncertain.

        It is called once for each response.
        """
        quote, pod = request.quote, request.pod
        if not quote.chains:
            return False
        share, feedback = _share(pod, now), pod.feedback
        if (
            self._traffic_is_light(now)
            or feedback.reports < _FIRST_REPORTS
            or feedback.suspicious
            or feedback.trust < _SURE
            or not pod.pace.decode_slowness.settled
            or not self._output_lengths.settled(quote.response_kind, pod.prefill)
            or self._is_guess(request)
        ):
            return True
        # Ids are drawn by chance: nothing that clients do is in step with them.
        sampled = crc32(quote.request_id.encode()) < share * _IDS
        if sampled:
            request.weight = 1 / share
        return sampled

    def _traffic_is_light(self, now: float) -> bool:
        self._answers_apart = _mean_apart(self._answers_apart, now - self._answered_at)
        self._answered_at = now
        return self._answers_apart >= _LIGHT

    def _is_guess(self, request: InFlightRequest) -> bool:
        """Whether the cached tokens were predicted by a length that may be too wrong."""
        quote = request.quote
        if len(quote.token_offsets) != 1:  # usage counts all prompts together: nothing is learned
            return False
        guessed = request.cached - quote.token_offsets[0].known
        if guessed <= 0:
            return False
        wrong = guessed * self._prompts.estimator.error(quote.target_model, quote.kind)
        return wrong > _TOLERATED * max(_MIN_TOKENS, quote.tokens)


def _share(pod: Pod, now: float) -> float:
    """Return the share of an endpoint's responses that is its sample, if one has begun."""
    pod.answers_apart = _mean_apart(pod.answers_apart, now - pod.answered_at)
    pod.answered_at = now
    return max(1 / _MAX_LEFT, pod.answers_apart / _SECONDS_APART)


def _mean_apart(before: float, seconds: float) -> float:
    """Return the mean of seconds between responses, `before` and after one more of `seconds`."""
    apart = min(_SECONDS_APART, seconds, _PAUSE * before)
    return apart if before > _SECONDS_APART else before + _GAIN * (apart - before)
