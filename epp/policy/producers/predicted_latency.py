"""Predicted latencies: the fleet's own prediction of TTFT, and a learned time per output token.

llm-d-router asks prediction servers, which training servers keep up to date. Here both are learned
in process: TTFT is what `least-ttft` compares, and TPOT a line over the requests that an endpoint
runs, fitted to the responses that were seen.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated

import msgspec

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.events import Event
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import Aborted, Finished, FirstToken
from epp.policy.attribute_sources import LatencyPrediction
from epp.policy.bounds import BoundedParameters, above_zero
from epp.policy.effects import mapped_to, without_effect
from epp.policy.plugins import Candidates, PluginContext

_OWN = mapped_to("the fleet's own predictions")
_EVERY = without_effect("every streamed response is learned from")

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
_LONGEST_OBJECTIVE = 1e9
"""Milliseconds: 12 days. A longer objective is ignored."""
_MIN_TOKENS = 8
"""Tokens of a response below which its time per token is not learned from."""
_MEMORY = 0.99
"""The weight of each response against the one after it."""
_STEP_SECONDS, _SLOPE_SECONDS = 0.006, 20e-6
"""Seconds of a step, and those that a running request adds, until they are measured."""


def slo(request: InferenceRequest, names: Sequence[str]) -> float:
    """Return an objective that a request names, in milliseconds; 0 without a number above 0.

    One above `_LONGEST_OBJECTIVE` is ignored.
    """
    for name in names:
        if (text := request.headers.get(name)) is None:
            continue
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 < value <= _LONGEST_OBJECTIVE:
            return value
    return 0.0


class TimePerToken:
    """Seconds per output token as a line over the requests that run at an endpoint.

    Least squares over about the last hundred responses; the line never falls.
    """

    def __init__(self) -> None:
        # Decayed sums over (x, y) = (running, seconds), with two weak points on the default line.
        self._n, self._x, self._xx = 0.02, 1.0, 100.0
        self._y = 0.02 * _STEP_SECONDS + 1.0 * _SLOPE_SECONDS
        self._xy = 1.0 * _STEP_SECONDS + 100.0 * _SLOPE_SECONDS

    def learn(self, running: float, seconds: float) -> None:
        """Learn that a token took `seconds` while `running` requests ran."""
        self._n = self._n * _MEMORY + 1
        self._x = self._x * _MEMORY + running
        self._xx = self._xx * _MEMORY + running * running
        self._y = self._y * _MEMORY + seconds
        self._xy = self._xy * _MEMORY + running * seconds

    def seconds(self, running: float) -> float:
        """Return the seconds that a token is expected to take."""
        mean, spread = self._x / self._n, self._n * self._xx - self._x * self._x
        slope = (self._n * self._xy - self._x * self._y) / spread if spread > 1e-9 else 0.0  # noqa: PLR2004 (no spread)
        return max(0.0, self._y / self._n + max(0.0, slope) * (running - mean))


class PredictedLatencyProducer(BoundedParameters, frozen=True):
    """Predicts TTFT and TPOT, and how far they are from the objectives that requests name."""

    slo_buffer_factor: Annotated[float, above_zero("a factor, such as 1")] = 1.0
    """A factor on the objectives."""
    context_ttl: Annotated[str | int, without_effect("requests are tracked until they end")] = (
        msgspec.field(default="5m", name="contextTTL")
    )
    streaming_mode: Annotated[bool, _OWN] = False
    endpoint_role_label: Annotated[str, _OWN] = ""
    predict_in_produce: Annotated[bool, without_effect("predictions are made when asked for")] = (
        True
    )
    use_encoder_cache_features: Annotated[bool, _OWN] = False
    sampling_mean: Annotated[float, _EVERY] = 1000.0
    max_decode_token_samples_for_prediction: Annotated[int, _EVERY] = 0
    prefix_match_info_producer_name: Annotated[str, _OWN] = ""
    in_flight_load_producer_name: Annotated[str, _OWN] = ""
    encoder_cache_match_info_producer_name: Annotated[str, _OWN] = ""

    def start(self, context: PluginContext) -> "PredictedLatency":
        """Return a producer that learns from the fleet's events."""
        predicted = PredictedLatency(self.slo_buffer_factor)
        context.subscribe((FirstToken, Finished, Aborted), predicted.learn)
        return predicted


class _Sent(msgspec.Struct, eq=False):
    running: float
    answers: int
    began: float = inf


class PredictedLatency:
    """Predicts latencies for requests; learns from those that were committed."""

    def __init__(self, buffer: float) -> None:
        self._buffer = buffer
        self._time_per_token = TimePerToken()
        self._sent: dict[RequestId, _Sent] = {}

    def latencies(
        self, request: InferenceRequest, candidates: Candidates
    ) -> list[LatencyPrediction | None]:
        """Return one prediction for each candidate."""
        ttft, tpot = slo(request, TTFT_HEADERS), slo(request, TPOT_HEADERS)
        return [self._predict(each, ttft, tpot) for each in candidates]

    def seconds_per_token(self, candidate: Candidate) -> float:
        """Return the time that a token of the request is predicted to take at a candidate."""
        return self._time_per_token.seconds(candidate.running + 1)

    def _predict(self, candidate: Candidate, ttft_slo: float, tpot_slo: float) -> LatencyPrediction:
        ttft = 1e3 * candidate.predicted_ttft
        tpot = 1e3 * self.seconds_per_token(candidate)
        ttft_headroom = ttft_slo * self._buffer - ttft
        tpot_headroom = tpot_slo * self._buffer - tpot
        met = (not ttft_slo or ttft_headroom >= 0) and (not tpot_slo or tpot_headroom >= 0)
        return LatencyPrediction(
            ttft, tpot, ttft_headroom, tpot_headroom, candidate.requests, valid=met
        )

    def committed(self, request: InferenceRequest, decision: Decision, _: float) -> None:
        """Note what ran at the endpoint as a request was sent there."""
        if request.stream:
            where = decision.endpoint.id
            for each in decision.candidates:
                if each.endpoint.id == where:
                    answers = request.n * max(1, len(each.chains))  # of each prompt
                    self._sent[request.id] = _Sent(max(1.0, each.running), answers)

    def learn(self, event: Event, now: float, guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Learn from a response that was seen to its end."""
        if isinstance(event, FirstToken) and event.request_id in self._sent:
            self._sent[event.request_id].began = now
        elif isinstance(event, Finished | Aborted):
            sent = self._sent.pop(event.request_id, None)
            if isinstance(event, Finished) and sent is not None and not guessed:
                tokens = event.tokens // sent.answers  # they are generated side by side
                if tokens >= _MIN_TOKENS and now > sent.began:
                    seconds = (now - sent.began) / (tokens - 1)
                    self._time_per_token.learn(sent.running, seconds)
