"""Which responses must be observed to their end, because the end would teach what is uncertain.

The first token of a response shows its TTFT. Its end shows its length and speed, how many tokens
the prompt really had, and how many of them were cached. The end is needed if

- an endpoint has just started, its cache does not hold what is predicted, or its speed changes;
- the responses of a model become longer or shorter;
- the cached part of a prompt was predicted from a guessed length.

Otherwise a sample is enough to notice changes: per endpoint, one response in `_SECONDS_APART`, or
all if fewer come, and at least one in `_MAX_LEFT`. If few come in all (`_LIGHT`), all are observed,
at hardly any cost.
"""

from math import inf
from typing import Final
from zlib import crc32

from epp.model.learning.output_lengths import OutputLengths
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.pod import Pod
from epp.model.prompts.reader import Prompts

_MAX_LEFT: Final = 128
"""At least one of this many responses is observed, whatever is known."""
_SECONDS_APART: Final = 10.0
"""Seconds from one of an endpoint's responses in the sample to the next."""
_LIGHT: Final = 0.1
"""All responses are observed if, over all endpoints, they are this many seconds apart or more: that
costs 2 % of a core if each has a hundred pieces."""
_GAIN: Final = 0.05
"""The weight of the last interval in the mean of the seconds between responses."""
_PAUSE: Final = 10.0
"""The most that one interval counts for, in multiples of that mean."""
_IDS: Final = 1 << 32
_FIRST_REPORTS: Final = 8
"""The number of responses that are observed after an endpoint has started."""
_SURE: Final = 0.9
"""Below this trust in an endpoint's predictions, its responses are observed."""
_TOLERATED: Final = 0.01
"""The tolerated error of the predicted cached tokens, as a share of the prompt."""
_MIN_TOKENS: Final = 2048
"""Shorter prompts count as this long, in tokens: their prefill takes as long."""


class Uncertainty:
    """Judges by what `prompts` and `output_lengths` have learned, without random numbers."""

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
            or not pod.pace.of_class.seconds_per_token.settled
            or not self._output_lengths.settled(quote.response_kind)
            or self._is_guess(request)
        ):
            return True
        # Ids are random, so that no pattern of clients matches the sample.
        sampled = crc32(quote.request_id.encode()) < share * _IDS
        if sampled:
            request.weight = 1 / share
        return sampled

    def _traffic_is_light(self, now: float) -> bool:
        self._answers_apart = _mean_apart(self._answers_apart, now - self._answered_at)
        self._answered_at = now
        return self._answers_apart >= _LIGHT

    def _is_guess(self, request: InFlightRequest) -> bool:
        """Whether the cached tokens were predicted from a length that is too uncertain."""
        quote = request.quote
        if len(quote.token_offsets) != 1:  # usage is only the sum over prompts: nothing is learned
            return False
        guessed = request.cached - quote.token_offsets[0].known
        if guessed <= 0:
            return False
        wrong = guessed * self._prompts.estimator.error(quote.target_model, quote.kind)
        return wrong > _TOLERATED * max(_MIN_TOKENS, quote.tokens)


def _share(pod: Pod, now: float) -> float:
    """Return the share of an endpoint's responses to sample, as one of them begins."""
    pod.answers_apart = _mean_apart(pod.answers_apart, now - pod.answered_at)
    pod.answered_at = now
    return max(1 / _MAX_LEFT, pod.answers_apart / _SECONDS_APART)


def _mean_apart(before: float, seconds: float) -> float:
    """Return the mean interval between responses, given the mean before and a new interval."""
    apart = min(_SECONDS_APART, seconds, _PAUSE * before)
    return apart if before > _SECONDS_APART else before + _GAIN * (apart - before)
