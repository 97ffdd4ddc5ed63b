"""The picker's metrics: counts requests and exchanges, and writes the metrics page."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from epp import __version__
from epp.adapters.telemetry import families
from epp.adapters.telemetry.cardinality import OTHER, Idle
from epp.adapters.telemetry.decisions import DecisionMetrics, InFlight, Reuse
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.pool_gauges import pool_gauges
from epp.adapters.telemetry.requests import RequestMetrics
from epp.adapters.telemetry.series import FamilyText, expose, process_text
from epp.errors import NoEndpoints
from epp.model.decision import Decision
from epp.model.endpoint import CacheStats, Endpoint, EndpointId, Load
from epp.model.request import InferenceRequest, RequestId
from epp.policy.producers.predicted_latency import PredictedLatency
from epp.protocol.extproc.record import Outcome, RequestRecord

Attempt = tuple[str, str, str, str, str]
"""Label values: status, target model name, pod's name, namespace and port."""
_ABORTED: Final = Outcome.ABORTED
_ATTEMPT_BYTES: Final = 600_000
"""Bytes of a page for picks by target model and endpoint: a pool of 1,000 endpoints has room."""
_ATTEMPT_LINES_BYTES: Final = 270
"""Bytes of one such series and its deprecated alias, without the label values."""
_FORMER: Final = ("inference_extension_", "llm_d_inference_scheduler_")
"""The prefix of family names that llm-d-router had until October 2026."""
_MODEL_SHARE: Final = 0.5
"""The share of that room for the names of models; above it these are `other`."""


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Values that are read when a page is written, and constants."""

    pool_name: str
    """The pool's name."""
    pool: Callable[[], Sequence[tuple[Endpoint, Load, bool]]]
    """Every endpoint with its load and whether it can be picked."""
    caches: Callable[[], Sequence[CacheStats]]
    """The modelled state of the endpoints' caches."""
    index_size: Callable[[], int]
    """The blocks in the prefix index."""
    others: Sequence[Callable[[], Iterator[FamilyText]]] = ()
    """What yields the families of other parts: observers, plug-ins, the event loop."""
    under_way: Callable[[RequestId], bool] = lambda _: False
    """Whether an unobserved request is modelled as still running."""
    in_flight: InFlight = lambda: ()
    """The requests under way."""
    fresh: Callable[[Load], bool] = lambda load: isfinite(load.at)
    """Whether a load is recent enough to count in the means of the pool."""
    streams: Callable[[], int] | None = None
    """The open ext_proc streams; None: streams are not measured."""
    predicted_latency: tuple[str, PredictedLatency] | None = None
    """The plug-in that predicts latencies, with its name; None without one."""
    profile_handler: tuple[str, str] = ("", "")
    """The name and the type of the profile handler; empty without one."""
    precise_producer: str = ""
    """The name of the `precise-prefix-cache-producer` that is configured; empty without one."""
    is_adapter: Callable[[str], bool] = lambda _: False
    """Whether a model is an adapter, as far as endpoints have reported."""
    former_names: bool = False
    """Whether families also have the names that llm-d-router no longer writes."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""
    fairness_ids: int = 1000
    """How many fairness ids have series of their own, at most."""


class _Times:
    """How often something happened."""

    def __init__(self) -> None:
        self.times = 0


class Telemetry:
    """Counts requests and exchanges, and writes the metrics page, with `process_*`.

    The series whose labels clients choose take at most `FLOW_BYTES` of the page. Every method but
    `page` takes a few microseconds. For one thread only.
    """

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._requests = RequestMetrics(sources.under_way, sources.fairness_ids)
        self._decisions = DecisionMetrics(
            sources.in_flight,
            latency=sources.predicted_latency,
            handler=sources.profile_handler,
            precise=sources.precise_producer,
            is_adapter=sources.is_adapter,
        )
        self._stream_seconds = Histogram(families.STREAM_BOUNDS)
        self._streams_ended: dict[tuple[str], int] = {}
        self._attempts: dict[Attempt, _Times] = {}
        self._picks: dict[str, dict[EndpointId, tuple[Endpoint, _Times]]] = {}
        self._attempt_bytes = 0
        self._idle: Final = Idle[str]()
        self._outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self._scheduling = Histogram(families.SCHEDULER_BOUNDS)
        self._processing = Histogram(families.PROCESSING_BOUNDS)
        self._scrape_failures = 0

    def scheduled(self, request: InferenceRequest, decision: Decision, seconds: float) -> None:
        """Count a pick that took `seconds`; it counts as running until `finished`."""
        self._scheduling.observe(seconds)
        self._decisions.decided(request, decision)
        model = self._requests.start(request)
        if model is not None:
            self._picked(model, decision.endpoint)

    def finished(self, record: RequestRecord) -> None:
        """Count the end of an exchange; call it once for each."""
        if record.outcome is not None:
            self._outcomes[record.outcome] += 1
        if record.decided_at is not None:
            self._processing.observe(record.decided_at - record.received_at)
        elif record.error is not None:
            ended_at = record.finished_at or record.received_at
            self._processing.observe(ended_at - record.received_at)
            if isinstance(record.error, NoEndpoints):
                target = self._requests.of(record.request).labels[1]
                self._attempts_of(("failure", target, "", "", "")).times += 1
        self._decisions.finished(record)
        if self._sources.streams is not None:
            self._stream_ended(record)
        model = self._requests.finish(record)
        if model is not None and record.decision is not None:
            self._picked(model, record.decision.endpoint)

    def _stream_ended(self, record: RequestRecord) -> None:
        ended_at = record.finished_at or record.received_at
        self._stream_seconds.observe(ended_at - record.received_at)
        # llm-d-router ends a stream with OK, or CANCELED if the proxy resets it.
        code = "Canceled" if record.outcome is _ABORTED else "OK"
        self._streams_ended[code,] = self._streams_ended.get((code,), 0) + 1

    def reuse(self) -> Reuse:
        """Return how many tokens of prompts were reused, over all series that there are."""
        return self._requests.reuse()

    def scrape_failed(self) -> None:
        """Count a poll of an endpoint's load that failed."""
        self._scrape_failures += 1

    def _picked(self, model: str, endpoint: Endpoint) -> None:
        picks = self._picks.get(model)
        known = None if picks is None else picks.get(endpoint.id)
        if known is not None and known[0] is endpoint:
            known[1].times += 1
            return
        labels = ("success", model, _pod_of(endpoint), endpoint.namespace, str(endpoint.port))
        found = self._attempts_of(labels)
        found.times += 1
        if labels in self._attempts:  # it has a place of its own: the next one is found quickly
            self._picks.setdefault(model, {})[endpoint.id] = (endpoint, found)

    def _attempts_of(self, labels: Attempt) -> _Times:
        found = self._attempts.get(labels)
        if found is None:
            found = self._attempts.setdefault(self._placed(labels), _Times())
        return found

    def _placed(self, labels: Attempt) -> Attempt:
        """Return the labels under which there is room on the page."""
        status, _, name, namespace, port = labels
        for each, share in ((labels, _MODEL_SHARE), ((status, OTHER, name, namespace, port), 1.0)):
            if each in self._attempts:
                return each
            taken = self._attempt_bytes + _attempt_bytes(each)
            if taken <= _ATTEMPT_BYTES * share:
                self._attempt_bytes = taken
                return each
        return (status, OTHER, OTHER, OTHER, OTHER)

    def _forget(self) -> None:
        """Forget idle series of families without room.

        If half of the room for picks is taken, picks of endpoints that left the pool are forgotten
        too.
        """
        now, times = self._sources.clock(), Counter[str]()
        self._decisions.forget_idle(now)
        for labels, each in self._attempts.items():
            times[labels[1]] += each.times
        full = self._attempt_bytes > _ATTEMPT_BYTES * _MODEL_SHARE
        idle = self._idle.among(times.items(), now, full=full) - {OTHER}
        if not full:
            return
        self._picks.clear()
        there = {(each.namespace, _pod_of(each)) for each, _, _ in self._sources.pool()}
        there |= {("", ""), (OTHER, OTHER)}
        for labels in list(self._attempts):
            if labels[1] in idle or (labels[3], labels[2]) not in there:
                del self._attempts[labels]
                self._attempt_bytes -= _attempt_bytes(labels)

    def page(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Yield the metrics page in Prometheus text format, or in OpenMetrics'.

        Each piece is a family or a part of one, so that the event loop may run other tasks between.
        """
        former = self._sources.former_names
        for block in self._blocks():
            if former or not block.family.name.startswith(_FORMER):
                yield block.text(openmetrics=openmetrics)
        yield process_text(openmetrics=openmetrics)

    def _blocks(self) -> Iterator[FamilyText]:
        self._forget()
        sources = self._sources
        yield from self._requests.collect()
        yield from self._decisions.collect(self._requests.flow_of)
        yield from pool_gauges(sources.pool_name, sources.pool(), sources.caches(), sources.fresh)
        attempts = [(labels, each.times) for labels, each in self._attempts.items()]
        yield from expose(families.SCHEDULER_ATTEMPTS, attempts)
        yield from expose(families.SCHEDULER_SECONDS, [((), self._scheduling)])
        yield from expose(families.PROCESSING_SECONDS, [((), self._processing)])
        outcomes = [((outcome.value,), times) for outcome, times in self._outcomes.items()]
        yield from expose(families.OUTCOMES, outcomes)
        yield from expose(families.SCRAPE_FAILURES, [((), self._scrape_failures)])
        yield from self._streams()
        yield from expose(families.INDEX_SIZE, [(families.INDEX, sources.index_size())])
        for collect in sources.others:
            yield from collect()
        yield from expose(families.INFO, [(("unknown", __version__), 1)])

    def _streams(self) -> Iterator[FamilyText]:
        if self._sources.streams is None:
            return
        yield from expose(families.STREAMS, [((), self._sources.streams())])
        if self._streams_ended:
            yield from expose(families.STREAM_SECONDS, [((), self._stream_seconds)])
        yield from expose(families.STREAMS_ENDED, list(self._streams_ended.items()))


def _pod_of(endpoint: Endpoint) -> str:
    # llm-d-router's `endpoint_name` here is the pod's, without `-rank-N`: WVA joins it with vLLM's.
    return endpoint.pod or endpoint.name


def _attempt_bytes(labels: Attempt) -> int:
    return _ATTEMPT_LINES_BYTES + 2 * sum([len(each.encode()) for each in labels])
