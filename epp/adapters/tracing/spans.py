"""The spans of one request, made from its record at its end.

Names of spans and attributes are llm-d-router's, which guarantees them (its docs/telemetry.md);
`warmpick.*` are our own. The parts of a decision are not timed: their spans have the times of the
whole decision. No attribute has text of prompts or responses.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from epp.model.candidate import COST_TERMS
from epp.model.decision import Decision, Score
from epp.model.endpoint import Target
from epp.model.request import DEFAULT_FAIRNESS_ID, InferenceRequest
from epp.policy.choice import ttft_costs
from epp.policy.explanations.ranking import Measure, ranked
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.trace_context import BegunSpan

Attributes = dict[str, AttributeValue]

_REQUEST_ID: Final = "x-request-id"
_MAX_CHARACTERS: Final = 256
"""The longest name or id that a client chose."""
_TOP: Final = 5
"""How many candidates are in a span (llm-d-router)."""
_NANO: Final = 1e9
_MILLI: Final = 1e3
_UNSET: Final = Status(StatusCode.UNSET)


@dataclass(frozen=True, slots=True)
class SpanWriter:
    """Makes the spans of requests.

    `measures` has what each profile compares, `types` the type of each plug-in.
    """

    resource: Resource
    scope: InstrumentationScope
    measures: Mapping[str, Measure]
    types: Mapping[str, str]

    def spans(self, record: RequestRecord, since: float) -> list[ReadableSpan]:
        """Return the spans of a request whose trace is sampled, its first one first.

        `since` is the time of day, in seconds, at which the picker's clock was 0.
        """
        request, span = record.request, record.span
        if request is None or span is None:
            return []
        tree = _Tree(self, record, request, span, since)
        return [tree.root(), *tree.decision()]


class _Tree:
    """The spans of one request."""

    def __init__(
        self,
        writer: SpanWriter,
        record: RequestRecord,
        request: InferenceRequest,
        span: BegunSpan,
        since: float,
    ) -> None:
        self._writer = writer
        self._record = record
        self._request = request
        self._since = since
        self._flags = TraceFlags(span.flags)
        self._trace_id = span.trace_id
        self._next_id = span.span_id
        self._root = self._context(span.span_id)
        self._parent = None
        if span.parent_id:
            self._parent = SpanContext(span.trace_id, span.parent_id, True, self._flags)  # noqa: FBT003 (is_remote)
        self._fairness = _fairness(request)
        self._shared = self._fairness | _shared_attributes(request)
        self._of_target = self._shared | _model(request.target_model)
        read = record.read_at if record.read_at is not None else record.received_at
        decided = record.decided_at if record.decided_at is not None else span.at
        self._orchestration_times = self._nano(read), self._nano(max(read, span.at))
        self._profile_times = self._nano(decided), self._nano(max(decided, span.at))

    def _span(  # noqa: PLR0913 (what a span has)
        self,
        name: str,
        parent: SpanContext | None,
        attributes: Attributes,
        times: tuple[int, int],
        *,
        context: SpanContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = _UNSET,
        events: Sequence[Event] = (),
    ) -> ReadableSpan:
        """Return a span, whose id is a new one unless its context is given."""
        return ReadableSpan(
            name,
            context=context or self._child(),
            parent=parent,
            resource=self._writer.resource,
            attributes=attributes,
            events=events,
            kind=kind,
            status=status,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._writer.scope,
        )

    def _context(self, span_id: int) -> SpanContext:
        return SpanContext(self._trace_id, span_id, False, self._flags)  # noqa: FBT003 (is_remote)

    def _child(self) -> SpanContext:
        """Return the context of one more span; ids of one trace differ, which is all they need."""
        self._next_id = (self._next_id + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF or 1
        return self._context(self._next_id)

    def _nano(self, moment: float) -> int:
        return int((self._since + moment) * _NANO)

    def root(self) -> ReadableSpan:
        record = self._record
        end = record.finished_at if record.finished_at is not None else record.received_at
        events: list[Event] = []
        if record.first_byte_at is not None:
            events.append(Event("first_byte", {}, self._nano(record.first_byte_at)))
        return self._span(
            "gateway.request",
            self._parent,
            self._shared | _outcome_attributes(record),
            (self._nano(record.received_at), self._nano(end)),
            context=self._root,
            kind=SpanKind.SERVER,
            status=_status(record),
            events=events,
        )

    def decision(self) -> Iterator[ReadableSpan]:
        record, request, decision = self._record, self._request, self._record.decision
        routed: Attributes = {
            "target_model": request.target_model[:_MAX_CHARACTERS],
            "request_prio": request.priority,
        }
        orchestration = self._span(
            "gateway.request_orchestration",
            self._root,
            self._shared | routed,
            self._orchestration_times,
            kind=SpanKind.SERVER,
            status=_status(record) if record.error is not None else _UNSET,
        )
        yield orchestration
        if decision is None:
            return
        if decision.disaggregation:
            yield self._stages(orchestration.context, decision)
        for each in (*decision.stages, decision):
            yield from self._profile(orchestration.context, each)

    def _stages(self, parent: SpanContext, decision: Decision) -> ReadableSpan:
        """Return the span of the handler that ran profiles for stages."""
        prefill = decision.prefill
        attributes: Attributes = {
            "llm_d.epp.profile_handler.decision": f"complete_{decision.disaggregation}",
            "llm_d.epp.profile_handler.selected_profile": decision.profile,
            "llm_d.epp.profile_handler.executed_profiles": 1 + len(decision.stages),
            "llm_d.epp.pd.disaggregation_used": prefill is not None,
            "llm_d.epp.encode.disaggregation_used": decision.disaggregation.startswith("encode"),
        }
        if prefill is not None:
            attributes["llm_d.epp.pd.prefill_pod_address"] = prefill.address
            attributes["llm_d.epp.pd.prefill_pod_port"] = str(prefill.port)
        return self._internal("pick_disagg_profile", parent, attributes)

    def _profile(self, parent: SpanContext, decision: Decision) -> Iterator[ReadableSpan]:
        attributes: Attributes = {"llm_d.epp.scheduling.profile.name": decision.profile}
        attributes |= self._fairness
        run = self._span("run_scheduler_profile", parent, attributes, self._profile_times)
        yield run
        passed = len(decision.candidates)
        filtered: Attributes = {
            "llm_d.epp.filter.candidate_endpoints": len(decision.considered),
            "llm_d.epp.filter.filtered_endpoints": passed,
        }
        yield self._internal("filter_endpoints", run.context, filtered)
        if decision.scores:
            yield from self._scoring(run.context, decision, passed)
        if passed:
            top = _top(decision, self._writer.measures.get(decision.profile, "other"))
            yield self._internal("pick_endpoints", run.context, top)

    def _scoring(
        self, parent: SpanContext, decision: Decision, passed: int
    ) -> Iterator[ReadableSpan]:
        counts: Attributes = {
            "llm_d.epp.scorer.count": len(decision.scores),
            "llm_d.epp.scoring.candidate_endpoints": passed,
        }
        scoring = self._internal("scoring", parent, counts)
        yield scoring
        for score in decision.scores:
            kind = self._writer.types.get(score.plugin, score.plugin)
            attributes = _score_attributes(score, kind)
            yield self._internal(f"llm_d.epp.scorer.{kind}", scoring.context, attributes)

    def _internal(self, name: str, parent: SpanContext, attributes: Attributes) -> ReadableSpan:
        return self._span(name, parent, attributes | self._of_target, self._profile_times)


def _fairness(request: InferenceRequest) -> Attributes:
    fairness = request.fairness_id
    return {
        "llm_d.epp.fairness.id": fairness[:_MAX_CHARACTERS],
        "llm_d.epp.fairness.source": "default" if fairness == DEFAULT_FAIRNESS_ID else "header",
    }


def _shared_attributes(request: InferenceRequest) -> Attributes:
    """Return the attributes that, with the fairness id, nearly every span of a request has."""
    name = request.headers.get(_REQUEST_ID, request.id)
    return {"gen_ai.request.id": name[:_MAX_CHARACTERS], **_model(request.model)}


def _model(name: str) -> Attributes:
    """Return the attribute of a model: in spans about a decision the target, as in llm-d-router."""
    return {"gen_ai.request.model": name[:_MAX_CHARACTERS]} if name else {}


def _outcome_attributes(record: RequestRecord) -> Attributes:
    """Return the attributes that are known at the end of a request."""
    decision, usage, first = record.decision, record.usage, record.first_byte_at
    attributes: Attributes = {"warmpick.request.id": record.id}
    if record.outcome is not None:
        attributes["warmpick.outcome"] = record.outcome.value
    if record.status:
        attributes["http.response.status_code"] = record.status
    if record.error is not None:
        attributes["error.type"] = record.error.reason
    if decision is not None:
        attributes |= _predicted_attributes(decision, record.served)
    if first is not None and record.streaming:
        attributes["warmpick.ttft_ms"] = _MILLI * (first - record.received_at)
    if usage is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens is not None:
            attributes["warmpick.cached_tokens"] = usage.cached_tokens
    return attributes


def _predicted_attributes(decision: Decision, served: Target | None) -> Attributes:
    attributes: Attributes = {
        "warmpick.endpoint": decision.endpoint.id,
        "server.address": decision.endpoint.target
        if served is None
        else decision.served_at(served),
        "warmpick.prompt_tokens.estimated": decision.prompt_tokens,
        "warmpick.cached_tokens.predicted": decision.predicted_cached_tokens,
    }
    if decision.predicted_ttft is not None:
        attributes["warmpick.ttft.predicted_ms"] = _MILLI * decision.predicted_ttft
    return attributes


def _status(record: RequestRecord) -> Status:
    if record.error is not None:
        return Status(StatusCode.ERROR, record.error.reason)
    if record.failure is not None:
        return Status(StatusCode.ERROR, record.failure.name.lower())
    return _UNSET


def _score_attributes(score: Score, kind: str) -> Attributes:
    values = [float(value) for value in score.values]
    return {
        "llm_d.epp.scorer.type": kind,
        "llm_d.epp.scorer.name": score.plugin,
        "llm_d.epp.scorer.weight": float(score.weight),
        "llm_d.epp.scorer.candidate_endpoints": len(values),
        "llm_d.epp.scorer.endpoints_scored": len(values),
        "llm_d.epp.scorer.score.max": max(values),
        "llm_d.epp.scorer.score.avg": sum(values) / len(values),
    }


def _top(decision: Decision, measure: Measure) -> Attributes:
    """Return the best candidates, the picked one first, and their costs.

    Only the first two have the terms of their costs, which show why the first one won.
    """
    costs = ttft_costs(decision.candidates)
    positions = ranked(decision, measure, _TOP, costs)
    top = [decision.candidates[at] for at in positions]
    attributes: Attributes = {
        "llm_d.epp.picker.candidate_endpoints": len(decision.candidates),
        "llm_d.epp.picker.top_endpoints": [each.endpoint.id for each in top],
        "warmpick.picker.top_cached_tokens": [each.cached_tokens for each in top],
        "warmpick.picker.top_cost_ms": [_MILLI * costs[at] for at in positions],
    }
    if decision.scores:
        attributes["llm_d.epp.picker.top_scores"] = [float(decision.totals[at]) for at in positions]
    terms = [each.cost_seconds() for each in top[:2]]
    for name in COST_TERMS:
        attributes[f"warmpick.picker.{name}_ms"] = [_MILLI * each[name] for each in terms]
    return attributes
