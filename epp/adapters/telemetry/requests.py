"""Metrics of requests: one set of series per (model, target model, fairness id, priority)."""

from collections.abc import Callable, Iterator
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import MAX_VALUES, OTHER, BoundedLabel
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import Family, FamilyText, Labels, expose
from epp.model.request import InferenceRequest, RequestId, Usage
from epp.protocol.extproc.record import Outcome, RequestRecord

_SERVER_ERROR: Final = "ModelServerError"
_FIRST_ERROR_STATUS: Final = 400
_MIN_EXPIRE_ABOVE: Final = 1000
"""Unobserved requests above which those that are over are dropped before the next page."""
_UNKNOWN: Final = InferenceRequest(id=RequestId(""))
"""Stands for a request whose body could not be parsed."""

# Looked up once: docs/adr/0013-compiled.md says why.
_COMPLETED: Final = Outcome.COMPLETED
_UNOBSERVED: Final = Outcome.UNOBSERVED


class RequestSeries:
    """The series of the requests that share their labels; names are those of `families`."""

    def __init__(self) -> None:
        self.requests = 0
        self.running = 0
        self.errors: dict[str, int] = {}
        self.duration = Histogram(families.LATENCY_BOUNDS)
        self.request_size = Histogram(families.REQUEST_SIZE_BOUNDS)
        self.response_size = Histogram(families.RESPONSE_SIZE_BOUNDS)
        self.input_tokens = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.output_tokens = Histogram(families.OUTPUT_TOKEN_BOUNDS)
        self.cached_tokens = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.ntpot = Histogram(families.NTPOT_BOUNDS)
        self.tpot = Histogram(families.TPOT_BOUNDS)
        self.ttft_streamed = Histogram(families.TTFT_BOUNDS)
        self.ttft_whole = Histogram(families.TTFT_BOUNDS)
        self.predicted_cached = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.actual_cached = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.cached_error = Histogram(families.CACHED_ERROR_BOUNDS)

    def count_error(self, code: str) -> None:
        """Count an error response."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def observe_first_byte(self, record: RequestRecord) -> None:
        """Observe the TTFT of a response whose end is not observed."""
        if record.streaming and record.first_byte_at is not None:
            self.ttft_streamed.observe(record.first_byte_at - record.received_at)

    def observe_response(self, record: RequestRecord) -> None:
        """Observe a complete response; the first byte of an error is no first token."""
        seconds = (record.finished_at or record.received_at) - record.received_at
        self.duration.observe(seconds)
        self.response_size.observe(record.response_bytes)
        if record.status is not None and record.status >= _FIRST_ERROR_STATUS:
            self.count_error(_SERVER_ERROR)
            return
        first = record.first_byte_at
        if not record.streaming:
            self.ttft_whole.observe(seconds)
        elif first is not None:
            self.ttft_streamed.observe(first - record.received_at)
        if record.usage is not None:
            self._observe_usage(record.usage, seconds)
            if record.streaming and first is not None and record.usage.completion_tokens > 1:
                decoding = record.received_at + seconds - first
                self.tpot.observe(decoding / (record.usage.completion_tokens - 1))

    def _observe_usage(self, usage: Usage, seconds: float) -> None:
        if usage.prompt_tokens > 0:
            self.input_tokens.observe(usage.prompt_tokens)
        if usage.completion_tokens > 0:
            self.output_tokens.observe(usage.completion_tokens)
            self.ntpot.observe(seconds / usage.completion_tokens)
        if usage.cached_tokens is not None:
            self.cached_tokens.observe(usage.cached_tokens)

    def observe_prediction(self, predicted: int, actual: int) -> None:
        """Observe cached tokens as predicted and as the model server reported them."""
        self.predicted_cached.observe(predicted)
        self.actual_cached.observe(actual)
        self.cached_error.observe(predicted - actual)


_HISTOGRAMS: tuple[tuple[Family, str], ...] = (
    (families.DURATION, "duration"),
    (families.REQUEST_SIZE, "request_size"),
    (families.RESPONSE_SIZE, "response_size"),
    (families.INPUT_TOKENS, "input_tokens"),
    (families.OUTPUT_TOKENS, "output_tokens"),
    (families.CACHED_TOKENS, "cached_tokens"),
    (families.NTPOT, "ntpot"),
    (families.TPOT, "tpot"),
    (families.PREDICTED_CACHED, "predicted_cached"),
    (families.ACTUAL_CACHED, "actual_cached"),
    (families.CACHED_ERROR, "cached_error"),
)


class RequestMetrics:
    """The `RequestSeries` by labels, at most `most` of them, as clients choose three of the labels.

    A request whose end is not observed counts as running while `under_way` says so.
    """

    def __init__(self, under_way: Callable[[RequestId], bool], most: int = MAX_VALUES) -> None:
        self._under_way = under_way
        self._most = most
        self.model = BoundedLabel(most)
        self._fairness = BoundedLabel(most)
        self._series: dict[Labels, RequestSeries] = {}
        self._running: dict[RequestId, RequestSeries] = {}
        self._unobserved: dict[RequestId, RequestSeries] = {}
        self._expire_above = _MIN_EXPIRE_ABOVE

    def of(self, request: InferenceRequest | None) -> RequestSeries:
        """Return the series of a request; None stands for one that could not be parsed."""
        request = request or _UNKNOWN
        model = self.model
        key = (
            model(request.model),
            model(request.target_model or request.model),
            self._fairness(request.fairness_id),
            str(request.priority),
        )
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._most:
                key = (OTHER, OTHER, OTHER, str(request.priority))
            series = self._series.setdefault(key, RequestSeries())
        return series

    def start(self, request: InferenceRequest) -> None:
        """Count a request, as running until `finish`."""
        series = self.of(request)
        series.requests += 1
        series.running += 1
        self._running[request.id] = series

    def finish(self, record: RequestRecord) -> None:
        """Observe the end of a request."""
        series = self._running.pop(record.id, None)
        if series is None:
            series = self.of(record.request)
        else:
            series.request_size.observe(record.request_bytes)
            if record.outcome is _UNOBSERVED:
                self._finish_unobserved(record, series)
                return
            series.running -= 1
        if record.error is not None:
            series.count_error(record.error.code)
        elif record.outcome is _COMPLETED:
            series.observe_response(record)
            _observe_prediction(series, record)

    def _finish_unobserved(self, record: RequestRecord, series: RequestSeries) -> None:
        series.observe_first_byte(record)
        self._unobserved[record.id] = series
        if len(self._unobserved) > self._expire_above:
            self._expire_unobserved()
            self._expire_above = 2 * len(self._unobserved) + _MIN_EXPIRE_ABOVE

    def _expire_unobserved(self) -> None:
        """Stop counting requests as running that are not under way any more."""
        for each in [each for each in self._unobserved if not self._under_way(each)]:
            self._unobserved.pop(each).running -= 1

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families that have samples."""
        self._expire_unobserved()
        all_series = self._series.items()
        counted = [(key, series.requests) for key, series in all_series if series.requests]
        yield from expose(families.REQUESTS, counted)
        running = [
            (key, series.running) for key, series in all_series if series.requests and key[0]
        ]
        yield from expose(families.RUNNING, running)
        errors = [((*key, c), n) for key, series in all_series for c, n in series.errors.items()]
        yield from expose(families.ERRORS, errors)
        streaming = (("true", "ttft_streamed"), ("false", "ttft_whole"))
        waits = [
            ((*key, s), getattr(series, a)) for key, series in all_series for s, a in streaming
        ]
        yield from expose(families.TTFT, [wait for wait in waits if any(wait[1].counts)])
        for family, attribute in _HISTOGRAMS:
            values = [(key, getattr(series, attribute)) for key, series in all_series]
            yield from expose(family, [value for value in values if any(value[1].counts)])


def _observe_prediction(series: RequestSeries, record: RequestRecord) -> None:
    if record.decision is None or record.usage is None or record.usage.cached_tokens is None:
        return
    if record.served is not None and record.served != record.decision.endpoint.target:
        return  # the prediction was for another endpoint's cache
    series.observe_prediction(record.decision.predicted_cached_tokens, record.usage.cached_tokens)
