"""Metrics of decisions: predicted hits, stages, rewrites, objectives, and requests in flight.

Compiled by mypyc: every request passes here.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import OTHER, Flow, Idle, label
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText, alias_of, counter, expose, histogram
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint
from epp.model.request import InferenceRequest, RequestId
from epp.policy.producers.predicted_latency import (
    TPOT_HEADERS,
    TTFT_HEADERS,
    PredictedLatency,
    slo,
)
from epp.protocol.extproc.record import RequestRecord

InFlight = Callable[[], Iterable[tuple[RequestId, Endpoint, int]]]
"""Returns each request under way, its endpoint, and its uncached tokens while it prefills."""

_PRECISE_TYPE: Final = "precise-prefix-cache-producer"
_LATENCY_TYPE: Final = "predicted-latency-producer"
_LOAD: Final = "inflight-load-producer"
_PD_HANDLER: Final = "pd-profile-handler"
_UNKNOWN: Final = "unknown"
"""The model of a decision on a request that names none (llm-d-router)."""
_TOKEN_BYTES: Final = 4
"""Bytes of a token in llm-d-router's `hit_bytes`."""
_MAX: Final = 1000
"""Label sets of one family, at most; the clients' words beyond are `other` until some are idle."""
_OBJECTIVES: Final = (("ttft", TTFT_HEADERS), ("tpot", TPOT_HEADERS))

_LARGE_TOKENS: Final = 64
_MIN_BLOCKS: Final = 2
"""Fewer predicted blocks may come from a chat template that all prompts share."""
_SALTED: Final = 2
_MEDIA: Final = 4
_FOUND: Final = 8
_KINDS: Final = 16
"""Kinds of predicted hits: an adapter's or not (1), and each of these or not."""

PREDICTED_HITS: Final = counter(
    "warmpick_predicted_hits_total",
    "Responses with a predicted hit of 64 tokens or more, by class of request, and by whether"
    " the model server reported any cached tokens: found or missed.",
    *("adapter", "salted", "media", "result"),
)

PRECISE: Final = tuple(
    histogram(f"llm_d_epp_prefix_{name}", text, "plugin_name", "plugin_type")
    for name, text in (
        ("prompt_tokens", "Tokens of prompts that were decided on."),
        (
            "predicted_cached_tokens",
            "Tokens of prompts that were predicted to be cached at the pick.",
        ),
    )
)
_MOST: Final = "Blocks of prompts that the prefix index had at the endpoint with most of them."
LOOKUPS: Final = tuple(
    counter(f"llm_d_epp_{name}", text, alias=alias_of(name.replace("kv_cache", "kvcache")))
    for name, text in (
        ("kv_cache_index_lookup_requests_total", "Decisions on requests with a prompt."),
        ("kv_cache_index_lookup_hits_total", _MOST),
        ("kv_cache_index_max_pod_hit_count_total", _MOST),  # the same, in llm-d-router, too
    )
)
"""Both are counted if a `precise-prefix-cache-producer` is configured, as llm-d-router does."""

Counts = dict[tuple[str, ...], int]


class Reuse:
    """Tokens of prompts, and how many of them were cached: three counts with one denominator.

    `available` is predicted for the endpoint with most of a prompt, `captured` for the one that was
    picked; `delivered` is what the engine reported.
    """

    def __init__(self) -> None:
        self.prompt = 0
        self.available = 0
        self.captured = 0
        self.delivered = 0

    def observe(self, decision: Decision, prompt: int, delivered: int) -> None:
        """Count a response; no prediction counts for more than the whole prompt."""
        available = captured = decision.predicted_cached_tokens
        for each in (decision, *decision.stages):
            for candidate in each.considered:
                available = max(available, candidate.cached_tokens)
        self.prompt += prompt
        self.available += min(prompt, available)
        self.captured += min(prompt, captured)
        self.delivered += delivered

    def add(self, other: "Reuse") -> None:
        """Add the counts of another one."""
        self.prompt += other.prompt
        self.available += other.available
        self.captured += other.captured
        self.delivered += other.delivered


class DecisionMetrics:
    """Counts decisions. `in_flight` is asked when a page is written.

    `latency`: predicted latencies and missed objectives are counted, as llm-d-router does if a
    `predicted-latency-producer` is configured, with its name. `handler` is the name and the type of
    the profile handler. `precise` is the name of a `precise-prefix-cache-producer`, or empty.
    `is_adapter` says whether a model is an adapter.
    """

    def __init__(
        self,
        in_flight: InFlight,
        *,
        latency: tuple[str, PredictedLatency] | None,
        handler: tuple[str, str],
        is_adapter: Callable[[str], bool],
        precise: str = "",
    ) -> None:
        self._list_in_flight = in_flight
        self._is_adapter = is_adapter
        self._precise = precise
        self._prompt_tokens = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self._cached_tokens = Histogram(families.PROMPT_TOKEN_BOUNDS)
        self._matched_blocks = 0
        self._hits = [0] * _KINDS
        self._handler: Final = handler
        self._latency = latency
        self._producer: Final = (latency[0] if latency else "", _LATENCY_TYPE)
        self._hit_ratio = Histogram(families.HIT_RATIO_BOUNDS)
        self._hit_bytes = Histogram(families.HIT_BYTES_BOUNDS)
        self._predicted: dict[tuple[str, ...], Histogram] = {}
        self._predicted_tpot: dict[tuple[str, ...], Histogram] = {}
        self._rewrites: Counts = {}
        self._stages: Counts = {}
        self._violations: Counts = {}
        self._families: Final[tuple[Counts | dict[tuple[str, ...], Histogram], ...]] = (
            *(self._rewrites, self._stages, self._violations),
            *(self._predicted, self._predicted_tpot),
        )
        self._idle: Final = [Idle[tuple[str, ...]]() for _ in self._families]

    def decided(self, request: InferenceRequest, decision: Decision) -> None:
        """Count a decision."""
        cached, tokens = decision.predicted_cached_tokens, decision.prompt_tokens
        if tokens:
            self._hit_ratio.observe(cached / tokens)
            self._hit_bytes.observe(cached * _TOKEN_BYTES)
            if self._precise:
                self._prompt_tokens.observe(tokens)
                self._cached_tokens.observe(cached)
                self._matched_blocks += _most_matched(decision)
        if request.rewrite:
            name = label(request.rewrite)
            models = label(request.model), label(request.target_model)
            _count(self._rewrites, (name, *models), (name, OTHER, OTHER))
        kind = decision.disaggregation
        if kind:
            model = label(request.target_model or request.model) or _UNKNOWN
            _count(self._stages, (*self._handler, model, kind), (*self._handler, OTHER, kind))
        if self._latency is not None:
            self._observe_predicted(request, decision, self._latency[1])

    def _observe_predicted(
        self, request: InferenceRequest, decision: Decision, latency: PredictedLatency
    ) -> None:
        if decision.predicted_ttft is not None:
            ttft = self._of(self._predicted, request, families.LATENCY_BOUNDS)
            ttft.observe(decision.predicted_ttft)
        if not request.stream:
            return
        chosen = decision.endpoint.id
        for each in decision.candidates:
            if each.endpoint.id == chosen:
                tpot = self._of(self._predicted_tpot, request, families.PREDICTED_TPOT_BOUNDS)
                tpot.observe(latency.seconds_per_token(each))
                return

    def _of(
        self,
        histograms: dict[tuple[str, ...], Histogram],
        request: InferenceRequest,
        bounds: tuple[float, ...],
    ) -> Histogram:
        """Return the histogram of a request's models."""
        labels = self._models(request)
        if labels not in histograms and len(histograms) >= _MAX:
            labels = (*self._producer, OTHER, OTHER)
        if labels not in histograms:
            histograms[labels] = Histogram(bounds)
        return histograms[labels]

    def _models(self, request: InferenceRequest) -> tuple[str, ...]:
        return (*self._producer, label(request.model), label(request.target_model))

    def finished(self, record: RequestRecord) -> None:
        """Count what became of a predicted hit, and the objectives that a response has missed."""
        self._count_hit(record)
        if self._latency is None or record.request is None or record.first_byte_at is None:
            return
        seen = {"ttft": 1e3 * (record.first_byte_at - record.received_at), "tpot": _tpot(record)}
        for kind, names in _OBJECTIVES:
            objective = slo(record.request, names)
            if objective and seen[kind] > objective:
                labels = (*self._models(record.request), kind)
                _count(self._violations, labels, (*self._producer, OTHER, OTHER, kind))

    def _count_hit(self, record: RequestRecord) -> None:
        """Count whether anything was cached of a prompt with a large predicted hit.

        The prediction is the index's own, without trust, which would hide a class of requests whose
        predictions never come true.
        """
        decision, request, usage = record.decision, record.request, record.usage
        if decision is None or request is None or usage is None or usage.cached_tokens is None:
            return
        picked = decision.predicted_for
        if picked is None or picked.matched_blocks < _MIN_BLOCKS:
            return
        if decision.prompt_tokens * picked.matched_blocks < _LARGE_TOKENS * picked.total_blocks:
            return
        if record.elsewhere or record.follows_up:
            return  # the prediction was for another endpoint's cache, or without the stored turns
        kind = int(self._is_adapter(request.target_model or request.model))
        if request.cache_salt:
            kind += _SALTED
        if request.multimodal:
            kind += _MEDIA
        if usage.cached_tokens:
            kind += _FOUND
        self._hits[kind] += 1

    def forget_idle(self, now: float) -> None:
        """Forget the label sets that are idle, of families that have no room for others."""
        for idle, family in zip(self._idle, self._families, strict=True):
            counts = ((each, _times(of)) for each, of in family.items())
            for each in idle.among(counts, now, full=len(family) >= _MAX):
                del family[each]

    def collect(self, flow_of: Callable[[RequestId], Flow | None]) -> Iterator[FamilyText]:
        """Yield the families that have samples; `flow_of` returns a running request's labels."""
        for family, hits in (
            (families.HIT_RATIO, self._hit_ratio),
            (families.HIT_BYTES, self._hit_bytes),
        ):
            if any(hits.counts):
                yield from expose(family, [(families.INDEX, hits)])
        if self._precise:
            producer = (self._precise, _PRECISE_TYPE)
            pairs = zip(PRECISE, (self._prompt_tokens, self._cached_tokens), strict=True)
            for family, tokens in pairs:
                yield from expose(family, [(producer, tokens)])
            lookups, most = sum(self._prompt_tokens.counts), self._matched_blocks
            for family, times in zip(LOOKUPS, (lookups, most, most), strict=True):
                yield from expose(family, [((), times)])
        yield from expose(PREDICTED_HITS, self._classes())
        yield from expose(families.REWRITES, list(self._rewrites.items()))
        yield from expose(families.STAGES, list(self._stages.items()))
        if self._handler[1] == _PD_HANDLER:
            yield from expose(families.PD_STAGES, list(self._stages.items()))
        yield from expose(families.PREDICTED_TTFT, list(self._predicted.items()))
        yield from expose(families.PREDICTED_TPOT, list(self._predicted_tpot.items()))
        yield from expose(families.SLO_VIOLATIONS, list(self._violations.items()))
        yield from self._in_flight(flow_of)

    def _classes(self) -> Iterator[tuple[tuple[str, ...], int]]:
        for kind, times in enumerate(self._hits):
            if times:
                classes = (str(bool(kind & bit)).lower() for bit in (1, _SALTED, _MEDIA))
                yield (*classes, "found" if kind & _FOUND else "missed"), times

    def _in_flight(self, flow_of: Callable[[RequestId], Flow | None]) -> Iterator[FamilyText]:
        requests: Counts = {}
        tokens: Counts = {}
        for request, endpoint, uncached in self._list_in_flight():
            flow = flow_of(request)
            if flow is None:
                continue  # another replica's, which counts it
            labels = (endpoint.name, endpoint.namespace, _LOAD, flow[2], flow[3])
            if labels not in requests and len(requests) >= _MAX:
                labels = (endpoint.name, endpoint.namespace, _LOAD, OTHER, OTHER)
            requests[labels] = requests.get(labels, 0) + 1
            tokens[labels] = tokens.get(labels, 0) + uncached
        yield from expose(families.IN_FLIGHT_REQUESTS, list(requests.items()))
        yield from expose(families.IN_FLIGHT_TOKENS, list(tokens.items()))


def _most_matched(decision: Decision) -> int:
    """Return the most blocks that the index has at an endpoint; trust is not taken into account."""
    most = 0
    for each in decision.considered:
        most = max(most, each.matched_blocks)
    return most


def _count(counts: Counts, labels: tuple[str, ...], beyond: tuple[str, ...]) -> None:
    """Count labels, or `beyond` if there are too many."""
    if labels not in counts and len(counts) >= _MAX:
        labels = beyond
    counts[labels] = counts.get(labels, 0) + 1


def _times(counted: int | Histogram) -> int:
    return sum(counted.counts) if isinstance(counted, Histogram) else counted


def _tpot(record: RequestRecord) -> float:
    """Return milliseconds per token of a streamed response; 0 if they are not known."""
    usage, end, first = record.usage, record.finished_at, record.first_byte_at
    if usage is None or end is None or first is None or usage.completion_tokens < 2:  # noqa: PLR2004 (no gap)
        return 0.0
    return 1e3 * (end - first) / (usage.completion_tokens - 1) if record.streaming else 0.0
