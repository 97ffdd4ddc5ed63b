"""The series of requests, one set for each (model, target model, fairness id, priority)."""

from collections.abc import Callable, Iterator
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import MOST_VALUES, OTHER, BoundedLabel
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import Family, FamilyText, Labels, expose
from epp.model.request import InferenceRequest, Outcome, RequestId, Usage
from epp.protocol.extproc.record import RequestRecord

_SERVER_ERROR: Final = "ModelServerError"
_FIRST_ERROR_STATUS: Final = 400
_MANY: Final = 1000
_UNKNOWN: Final = InferenceRequest(id=RequestId(""))
"""Stands for a request that could not be read."""

# Looked up once: docs/adr/0013-compiled.md says why.
_COMPLETED: Final = Outcome.COMPLETED
_UNOBSERVED: Final = Outcome.UNOBSERVED


class RequestSeries:
    """What is counted of the requests that share their labels; names as in `families`."""

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

    def failed(self, code: str) -> None:
        """Count an answer that is an error."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def begun(self, record: RequestRecord) -> None:
        """Count the beginning of a response whose end is not looked at."""
        if record.streaming and record.first_byte_at is not None:
            self.ttft_streamed.observe(record.first_byte_at - record.received_at)

    def completed(self, record: RequestRecord) -> None:
        """Count a response that came whole; an error's first byte is no first token."""
        seconds = (record.finished_at or record.received_at) - record.received_at
        self.duration.observe(seconds)
        self.response_size.observe(record.response_bytes)
        if record.status is not None and record.status >= _FIRST_ERROR_STATUS:
            self.failed(_SERVER_ERROR)
            return
        first = record.first_byte_at
        if not record.streaming:
            self.ttft_whole.observe(seconds)
        elif first is not None:
            self.ttft_streamed.observe(first - record.received_at)
        if record.usage is not None:
            self._used(record.usage, seconds)
            if record.streaming and first is not None and record.usage.completion_tokens > 1:
                decoding = record.received_at + seconds - first
                self.tpot.observe(decoding / (record.usage.completion_tokens - 1))

    def _used(self, usage: Usage, seconds: float) -> None:
        if usage.prompt_tokens > 0:
            self.input_tokens.observe(usage.prompt_tokens)
        if usage.completion_tokens > 0:
            self.output_tokens.observe(usage.completion_tokens)
            self.ntpot.observe(seconds / usage.completion_tokens)
        if usage.cached_tokens is not None:
            self.cached_tokens.observe(usage.cached_tokens)

    def compared(self, predicted: int, actual: int) -> None:
        """Count a prediction of cached tokens that the model server's report can be held to."""
        self.predicted_cached.observe(predicted)
        self.actual_cached.observe(actual)
        self.cached_error.observe(predicted - actual)


_DISTRIBUTIONS: tuple[tuple[Family, str], ...] = (
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
    """Every `RequestSeries` by its labels, of which clients choose three: their number is bounded.

    A request whose end is not looked at runs for as long as it is believed to be `under_way`.
    """

    def __init__(self, under_way: Callable[[RequestId], bool], most: int = MOST_VALUES) -> None:
        self._under_way = under_way
        self._most = most
        self.model = BoundedLabel(most)
        self._fairness = BoundedLabel(most)
        self._flows: dict[Labels, RequestSeries] = {}
        self._running: dict[RequestId, RequestSeries] = {}
        self._unseen: dict[RequestId, RequestSeries] = {}
        self._many = _MANY

    def of(self, request: InferenceRequest | None) -> RequestSeries:
        """Give the flow of a request, None standing for one that could not be read."""
        request = request or _UNKNOWN
        model = self.model
        key = (
            model(request.model),
            model(request.target_model or request.model),
            self._fairness(request.fairness_id),
            str(request.priority),
        )
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= self._most:
                key = (OTHER, OTHER, OTHER, str(request.priority))
            flow = self._flows.setdefault(key, RequestSeries())
        return flow

    def start(self, request: InferenceRequest) -> None:
        """Count a request as running until `finish`."""
        flow = self.of(request)
        flow.requests += 1
        flow.running += 1
        self._running[request.id] = flow

    def finish(self, record: RequestRecord) -> None:
        """Count how a request ended."""
        flow = self._running.pop(record.id, None)
        if flow is None:
            flow = self.of(record.request)
        else:
            flow.request_size.observe(record.request_bytes)
            if record.outcome is _UNOBSERVED:
                self._leave(record, flow)
                return
            flow.running -= 1
        if record.error is not None:
            flow.failed(record.error.code)
        elif record.outcome is _COMPLETED:
            flow.completed(record)
            _compare(flow, record)

    def _leave(self, record: RequestRecord, flow: RequestSeries) -> None:
        flow.begun(record)
        self._unseen[record.id] = flow
        if len(self._unseen) > self._many:
            self._settle()
            self._many = 2 * len(self._unseen) + _MANY

    def _settle(self) -> None:
        """Count those no more as running that are not believed to be under way."""
        for each in [each for each in self._unseen if not self._under_way(each)]:
            self._unseen.pop(each).running -= 1

    def collect(self) -> Iterator[FamilyText]:
        """Give the families that have anything to say."""
        self._settle()
        flows = self._flows.items()
        counted = [(key, flow.requests) for key, flow in flows if flow.requests]
        yield from expose(families.REQUESTS, counted)
        running = [(key, flow.running) for key, flow in flows if flow.requests and key[0]]
        yield from expose(families.RUNNING, running)
        errors = [((*key, c), n) for key, flow in flows for c, n in flow.errors.items()]
        yield from expose(families.ERRORS, errors)
        streaming = (("true", "ttft_streamed"), ("false", "ttft_whole"))
        waits = [((*key, s), getattr(flow, a)) for key, flow in flows for s, a in streaming]
        yield from expose(families.TTFT, [wait for wait in waits if any(wait[1].counts)])
        for family, attribute in _DISTRIBUTIONS:
            values = [(key, getattr(flow, attribute)) for key, flow in flows]
            yield from expose(family, [value for value in values if any(value[1].counts)])


def _compare(flow: RequestSeries, record: RequestRecord) -> None:
    if record.decision is None or record.usage is None or record.usage.cached_tokens is None:
        return
    if record.served is not None and record.served != record.decision.endpoint.target:
        return  # another endpoint's cache was asked than the one predicted
    flow.compared(record.decision.predicted_cached_tokens, record.usage.cached_tokens)
