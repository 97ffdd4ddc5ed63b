"""Metrics of requests: one set of series per (model, target model, fairness id, priority).

Three of these are the client's words, so that a name has series of its own only once a model server
has answered it with 2xx, and only while there is room on the page.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import IDLE_SECONDS, OTHER, Flow, FlowBytes, label
from epp.adapters.telemetry.decisions import Reuse
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import Family, FamilyText, Samples, expose
from epp.model.request import InferenceRequest, RequestId, Usage
from epp.protocol.extproc.record import Outcome, RequestRecord

_SERVER_ERROR: Final = "ModelServerError"
_FIRST_GOOD_STATUS: Final = 200  # RFC 9110 §15.3
_LAST_GOOD_STATUS: Final = 299
_FIRST_ERROR_STATUS: Final = 400
_MIN_EXPIRE_ABOVE: Final = 1000
"""Above this number of unobserved requests, those that are over are dropped at once."""
_UNKNOWN: Final = InferenceRequest(id=RequestId(""))
"""Stands for a request whose body could not be parsed."""
_SWEEP_SECONDS: Final = 1.0
_MAX_FORGOTTEN: Final = 128
"""The most models and priorities with counts of forgotten flows: as many as flows on a page."""
_MAX_NAMED: Final = 100
"""The most models and priorities whose running requests are named before any good answer."""
_FAIRNESS_SHARE: Final = 0.5
"""The share of the page for fairness ids; above it one is `other`, unless it is the default."""
_MODEL_SHARE: Final = 0.95
"""Above this share models are `other` too: the rest is for one flow of each priority."""

FlowKey = tuple[str, str, str, int]
"""A flow in the client's words: model, target model, fairness id, priority."""

# Looked up once: docs/adr/0013-compiled.md says why.
_COMPLETED: Final = Outcome.COMPLETED
_UNOBSERVED: Final = Outcome.UNOBSERVED


class RequestSeries:
    """The series of the requests that share their labels, with the names of `families`.

    `shared` if the requests are of several flows. `used_at` is when the last one ended.
    """

    def __init__(self, labels: Flow, *, shared: bool) -> None:
        self.labels = labels
        self.shared = shared
        self.used_at = 0.0
        self.requests = 0
        self.running = 0
        self.errors = Counter[str]()
        self.duration = Histogram(families.LATENCY_BOUNDS)
        self.request_size = Histogram(families.REQUEST_SIZE_BOUNDS)
        self.response_size = Histogram(families.RESPONSE_SIZE_BOUNDS)
        self.input_tokens = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.output_tokens = Histogram(families.OUTPUT_TOKEN_BOUNDS)
        self.cached_tokens = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.ntpot = Histogram(families.NTPOT_BOUNDS)
        self.tpot = Histogram(families.TPOT_BOUNDS)
        self.itl = Histogram(families.ITL_BOUNDS)
        self.ttft_streamed = Histogram(families.TTFT_BOUNDS)
        self.ttft_whole = Histogram(families.TTFT_BOUNDS)
        self.predicted_cached = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.actual_cached = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self.cached_error = Histogram(families.CACHED_ERROR_BOUNDS)
        self.reuse = Reuse()

    def observe_response(self, record: RequestRecord) -> None:
        """Observe a complete response; the first byte of an error is not a first token."""
        seconds = (record.finished_at or record.received_at) - record.received_at
        self.duration.observe(seconds)
        self.response_size.observe(record.response_bytes)
        if record.denied or (record.status is not None and record.status >= _FIRST_ERROR_STATUS):
            self.errors[_SERVER_ERROR] += 1
            return
        first, usage = record.first_byte_at, record.usage
        if not record.streaming:
            self.ttft_whole.observe(seconds)
        elif first is not None:
            self.ttft_streamed.observe(first - record.received_at)
            decoding = record.received_at + seconds - first
            if record.response_chunks > 1:
                gaps = record.response_chunks - 1
                self.itl.observe_many(decoding / gaps, gaps)
            if usage is not None and usage.completion_tokens > 1:
                self.tpot.observe(decoding / (usage.completion_tokens - 1))
        if usage is not None:
            self._observe_usage(usage, seconds)

    def _observe_usage(self, usage: Usage, seconds: float) -> None:
        if usage.prompt_tokens > 0:
            self.input_tokens.observe(usage.prompt_tokens)
        if usage.completion_tokens > 0:
            self.output_tokens.observe(usage.completion_tokens)
            self.ntpot.observe(seconds / usage.completion_tokens)
        if usage.cached_tokens is not None:
            self.cached_tokens.observe(usage.cached_tokens)

    def observe_prediction(self, record: RequestRecord) -> None:
        """Observe cached tokens as predicted and as the model server reported them."""
        decision, usage = record.decision, record.usage
        if decision is None or usage is None or usage.cached_tokens is None or record.follows_up:
            return
        actual = usage.cached_tokens
        self.reuse.observe(decision, usage.prompt_tokens, actual)
        if record.elsewhere:
            return  # the prediction was for another endpoint's cache
        predicted = decision.predicted_cached_tokens
        self.predicted_cached.observe(predicted)
        self.actual_cached.observe(actual)
        self.cached_error.observe(predicted - actual)

    def add(self, other: "RequestSeries") -> None:
        """Add up what another one has counted for families that have a deprecated alias."""
        self.requests += other.requests
        self.errors += other.errors
        for name in ("ttft_streamed", "ttft_whole", *[name for _, name in _HISTOGRAMS]):
            setattr(self, name, getattr(self, name) + getattr(other, name))


_REUSED: Final = ("prompt", "available", "captured", "delivered")
_HISTOGRAMS: tuple[tuple[Family, str], ...] = (
    (families.DURATION, "duration"),
    (families.REQUEST_SIZE, "request_size"),
    (families.RESPONSE_SIZE, "response_size"),
    (families.INPUT_TOKENS, "input_tokens"),
    (families.OUTPUT_TOKENS, "output_tokens"),
    (families.CACHED_TOKENS, "cached_tokens"),
    (families.NTPOT, "ntpot"),
    (families.TPOT, "tpot"),
    (families.ITL, "itl"),
    (families.PREDICTED_CACHED, "predicted_cached"),
    (families.ACTUAL_CACHED, "actual_cached"),
    (families.CACHED_ERROR, "cached_error"),
)


class RequestMetrics:
    """The `RequestSeries` by labels, which take at most `FLOW_BYTES` of a page.

    A request is counted in the first of these series that exists for its flow:

        models    fairness id    priority    made by
        its own   its own        its own     a good answer, in half of the room
        its own   other          its own     a good answer, in 95 % of the room
        other     other          its own     any request, while there is room
        other     other          other       any request

    The default fairness id has 95 % of the room, too; at most `fairness_ids`, with that one, have
    series of their own. A good answer is 2xx; if the proxy shows none, it is enough to be routed.
    After 10 idle minutes a flow may be replaced, and its counts are forgotten. A deprecated family
    has one series for several flows, which is forgotten with the last of them.

    A request whose end is not observed counts as running as long as `under_way` includes it. The
    gauge of running requests names their models before any answer, as autoscalers read it by model.
    """

    def __init__(self, under_way: Callable[[RequestId], bool], fairness_ids: int) -> None:
        self._fairness_ids = fairness_ids
        self._fairness: set[str] = set()
        self._under_way = under_way
        self._bytes = FlowBytes()
        self._swept_at = self._full_until = -math.inf
        self._flows: dict[FlowKey, RequestSeries] = {}
        self._series: dict[Flow, RequestSeries] = {}
        self._forgotten: dict[Flow, RequestSeries] = {}
        self._running: dict[RequestId, RequestSeries] = {}
        self._unobserved: dict[RequestId, RequestSeries] = {}
        self._unnamed: dict[RequestId, FlowKey] = {}
        self._named: set[Flow] = set()
        self._expire_above = _MIN_EXPIRE_ABOVE
        self._unread = self._add_series(_flow_key(_UNKNOWN), _labels(_flow_key(_UNKNOWN)))

    def of(self, request: InferenceRequest | None) -> RequestSeries:
        """Return the series of a request; None is one that could not be parsed."""
        if request is None:
            return self._unread
        flow = _flow_key(request)
        return self._flows.get(flow) or self._shared(flow)

    def start(self, request: InferenceRequest) -> str | None:
        """Count a request, as running until `finish`; return the label of its target model.

        None for a flow without its own series: the end of the request decides where it is counted.
        """
        series = self._running[request.id] = self.of(request)
        series.running += 1
        if series.shared:
            if series.labels[0] == OTHER:
                self._unnamed[request.id] = _flow_key(request)
            return None
        series.requests += 1
        return series.labels[1]

    def finish(self, record: RequestRecord) -> str | None:
        """Observe the end of a request; return the target model's label if `start` had none."""
        series, late = self._running.pop(record.id, None), None
        if series is None:
            series = self.of(record.request)
        else:
            if series.shared:
                series.running -= 1
                self._unnamed.pop(record.id, None)
                series = self._settled(record)
                series.running += 1
                series.requests += 1
                late = series.labels[1]
            series.used_at = record.finished_at or record.received_at
            series.request_size.observe(record.request_bytes)
            if record.outcome is _UNOBSERVED:
                self._finish_unobserved(record, series)
                return late
            series.running -= 1
        if record.error is not None:
            series.errors[record.error.code] += 1
        elif record.outcome is _COMPLETED:
            series.observe_response(record)
            series.observe_prediction(record)
        return late

    # Places on the page.

    def _shared(self, flow: FlowKey) -> RequestSeries:
        """Return the series of a flow that has none of its own."""
        model, target, _, priority = flow
        if of_models := self._flows.get((model, target, OTHER, priority)):
            return of_models
        others = (OTHER, OTHER, OTHER, str(priority))
        if others not in self._series and not self._bytes.fits(others):
            others = (OTHER, OTHER, OTHER, OTHER)
        return self._series.get(others) or self._add_series(None, others)

    def _settled(self, record: RequestRecord) -> RequestSeries:
        """Return the series of a request that has ended; a flow that was answered gets its own."""
        flow = _flow_key(record.request or _UNKNOWN)
        series = self._flows.get(flow)
        if series is None and _was_answered(record):
            now = record.finished_at or record.received_at
            series = self._own(flow, now) if self._may_have_own(flow[2], now) else None
            if series is not None:
                self._fairness.add(flow[2])
            elif (others := (*flow[:2], OTHER, flow[3])) not in self._flows:
                series = self._series_if_room(others, _MODEL_SHARE, now)
        return series or self._shared(flow)

    def _own(self, flow: FlowKey, now: float) -> RequestSeries | None:
        if flow[2] == _UNKNOWN.fairness_id:
            return self._series_if_room(flow, _MODEL_SHARE, now)
        if now < self._full_until or not flow[2].isprintable():
            return None
        series = self._series_if_room(flow, _FAIRNESS_SHARE, now)
        if series is None:
            self._full_until = now + _SWEEP_SECONDS
        return series

    def _may_have_own(self, fairness: str, now: float) -> bool:
        """Whether a fairness id has series of its own, or may get them (llm-d-router)."""
        if fairness not in self._fairness and 0 < self._fairness_ids <= len(self._fairness):
            self._sweep(now)
        return fairness in self._fairness or len(self._fairness) < self._fairness_ids

    def _series_if_room(self, flow: FlowKey, share: float, now: float) -> RequestSeries | None:
        labels = _labels(flow)
        if series := self._series.get(labels):
            return series
        if not self._bytes.fits(labels, share):
            self._sweep(now)
        return self._add_series(flow, labels) if self._bytes.fits(labels, share) else None

    def _add_series(self, flow: FlowKey | None, labels: Flow) -> RequestSeries:
        self._bytes.take(labels)
        series = self._series[labels] = RequestSeries(labels, shared=labels[2] == OTHER)
        if flow is not None:
            self._flows[flow] = series
        return series

    def _sweep(self, now: float) -> None:
        """Forget the flows that are idle; at most once a second, as it looks at all."""
        if now - self._swept_at < _SWEEP_SECONDS:
            return
        self._swept_at = now
        for flow, series in list(self._flows.items()):
            idle = now - series.used_at >= IDLE_SECONDS and not series.running
            if idle and series is not self._unread:
                self._bytes.give_back(series.labels)
                del self._flows[flow], self._series[series.labels]
                self._forget(series)
        self._fairness &= {key[2] for key, of in self._flows.items() if of is not self._unread}

    def _forget(self, series: RequestSeries) -> None:
        """Keep a flow's counts only for deprecated families, and only if others share these."""
        model, target, _, priority = series.labels
        labels = (model, target, "", priority)
        if not any(each[0] == model and each[1] == target for each in self._series):
            for each in [each for each in self._forgotten if each[:2] == labels[:2]]:
                del self._forgotten[each]
        elif labels in self._forgotten or len(self._forgotten) < _MAX_FORGOTTEN:
            # Another one: a page that is being written has both.
            known, total = self._forgotten.get(labels), RequestSeries(labels, shared=True)
            total.add(series)
            if known is not None:
                total.add(known)
            self._forgotten[labels] = total

    def _finish_unobserved(self, record: RequestRecord, series: RequestSeries) -> None:
        if record.streaming and record.first_byte_at is not None:
            series.ttft_streamed.observe(record.first_byte_at - record.received_at)
        self._unobserved[record.id] = series
        if len(self._unobserved) > self._expire_above:
            self._expire_unobserved()
            self._expire_above = 2 * len(self._unobserved) + _MIN_EXPIRE_ABOVE

    def _expire_unobserved(self) -> None:
        """Stop counting requests as running that are no longer in flight."""
        for each in [each for each in self._unobserved if not self._under_way(each)]:
            self._unobserved.pop(each).running -= 1

    def flow_of(self, request: RequestId) -> Flow | None:
        """Return the labels of a running request; None for any other."""
        series = self._running.get(request) or self._unobserved.get(request)
        return None if series is None else series.labels

    def reuse(self) -> Reuse:
        """Return the reuse of all requests in the current series."""
        total = Reuse()
        for series in self._series.values():
            total.add(series.reuse)
        return total

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families that have samples."""
        self._expire_unobserved()
        forgotten = _samples(list(self._forgotten.items()))
        shown = _samples(list(self._series.items()))
        for (family, samples), (_, also) in zip(shown, forgotten, strict=True):
            yield from expose(family, samples, also)
        yield from expose(families.RUNNING, self._by_model().items())

    def _by_model(self) -> dict[Flow, int]:
        """Return the running requests, those of `other` models by their models, as far as named."""
        names = {key: _labels((*key[:2], OTHER, key[3])) for key in self._unnamed.values()}
        if len(self._named.union(names.values())) > _MAX_NAMED:
            self._named.intersection_update(names.values())
        counts = dict.fromkeys(self._named, 0)
        for labels, series in self._series.items():
            if labels[0] and (series.requests or series.running):
                counts[labels] = series.running
        unnamed = [(names[key], self._running[each].labels) for each, key in self._unnamed.items()]
        for (flow, shared), times in Counter(unnamed).most_common():
            if flow in self._named or len(self._named) < _MAX_NAMED:
                self._named.add(flow)
                counts[shared] -= times
                counts[flow] = counts.get(flow, 0) + times
        return counts


def _samples(all_series: list[tuple[Flow, RequestSeries]]) -> Iterator[tuple[Family, Samples]]:
    """Yield all families, with their samples from these series."""
    yield families.REQUESTS, [(key, each.requests) for key, each in all_series if each.requests]
    errors = [((*key, c), n) for key, series in all_series for c, n in series.errors.items()]
    yield families.ERRORS, errors
    reused = [
        ((*key, part), getattr(series.reuse, part))
        for key, series in all_series
        if series.reuse.prompt
        for part in _REUSED
    ]
    yield families.REUSE, reused
    streaming = (("true", "ttft_streamed"), ("false", "ttft_whole"))
    waits = [((*key, s), getattr(series, a)) for key, series in all_series for s, a in streaming]
    yield families.TTFT, [wait for wait in waits if any(wait[1].counts)]
    for family, attribute in _HISTOGRAMS:
        values = [(key, getattr(series, attribute)) for key, series in all_series]
        yield family, [value for value in values if any(value[1].counts)]


def _flow_key(request: InferenceRequest) -> FlowKey:
    model = request.model
    return (model, request.target_model or model, request.fairness_id, request.priority)


def _labels(flow: FlowKey) -> Flow:
    model, target, fairness, priority = flow
    return (label(model), label(target), label(fairness), str(priority))


def _was_answered(record: RequestRecord) -> bool:
    """Whether a model server accepted the request; assumed if the proxy shows no response."""
    status = record.status
    if status is None:
        return record.outcome is _UNOBSERVED
    return _FIRST_GOOD_STATUS <= status <= _LAST_GOOD_STATUS
