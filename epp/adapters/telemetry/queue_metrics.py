"""llm-d-router's metrics of flow control, under its names: outcomes, waits, queues and saturation.

Clients choose models and fairness ids, so a limited number of combinations have series of their
own; all others are counted as `other`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Final

from msgspec.structs import replace

from epp.adapters.telemetry.cardinality import OTHER, Flow, label
from epp.adapters.telemetry.families import SCHEDULER_BOUNDS
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import (
    Family,
    FamilyText,
    Samples,
    alias_of,
    counter,
    expose,
    gauge,
    histogram,
)
from epp.model.request import DEFAULT_FAIRNESS_ID, InferenceRequest
from epp.policy.flow.line import Line
from epp.policy.flow.refusals import QueueOutcome
from epp.policy.flow.settings import FlowSettings

_BOUNDS: Final = (
    *(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_NOT_YET: Final = "NotYetFinalized"
_MAX_FLOWS: Final = 100
"""Models, targets, fairness ids and priorities with series of their own: about 1 MB of a page."""
_NO_FLOW: Final = ("", "", DEFAULT_FAIRNESS_ID, "0")
"""Stands for all flows before the first one."""
_REQUEST: Final = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_BAND: Final = ("priority", "inference_pool")
_NAME: Final = "llm_d_epp_flow_control_"


def _former(family: Family) -> Family:
    """Return a family with the name that it had until October 2026 as its alias."""
    name = family.name.replace("llm_d_epp_", "inference_extension_")
    return replace(family, alias=alias_of(name, *family.labels))


SECONDS: Final = _former(
    histogram(
        f"{_NAME}request_queue_duration_seconds",
        "How long requests waited in flow control, by what became of them.",
        *_REQUEST,
        "outcome",
    )
)
ENQUEUED: Final = _former(
    histogram(
        f"{_NAME}request_enqueue_duration_seconds",
        "Seconds that requests took to enter flow control's queue: always 0, so this counts them.",
        "fairness_id",
        "priority",
        "outcome",
    )
)
CYCLES: Final = _former(
    histogram(
        f"{_NAME}dispatch_cycle_duration_seconds",
        "Seconds that it took to look which of the requests that wait can go.",
    )
)
OUTCOMES: Final = counter(
    f"{_NAME}requests_total", "Requests in flow control, by what became of them.", "outcome", *_BAND
)
SIZE: Final = _former(gauge(f"{_NAME}queue_size", "Requests that wait in flow control.", *_REQUEST))
BYTES: Final = _former(
    gauge(
        f"{_NAME}queue_bytes",
        "Bytes of the bodies of requests that wait in flow control.",
        *_REQUEST,
    )
)
SATURATION: Final = _former(
    gauge(
        f"{_NAME}pool_saturation",
        "How busy the pool is, by stage; at its ceiling, a band sends nothing.",
        "inference_pool",
        "stage",
    )
)
DETECTED: Final = gauge(
    f"{_NAME}detector_saturation",
    "How busy the pool is by each detector and stage.",
    "detector",
    "stage",
)
STALE: Final = gauge(
    f"{_NAME}stale_endpoints",
    "Endpoints that do not show their metrics; the load that the detector sees of these is"
    " estimated.",
    "detector",
)
USED: Final = {
    kind: gauge(
        f"{_NAME}capacity_utilization_{kind}",
        f"Share of the {kind} that may wait in a priority band.",
        *_BAND,
    )
    for kind in ("requests", "bytes")
}
USED_IN_ALL: Final = {
    kind: gauge(
        f"{_NAME}global_capacity_utilization_{kind}",
        f"Share of the {kind} that may wait in all bands, if that is limited.",
        "inference_pool",
    )
    for kind in ("requests", "bytes")
}


class QueueMetrics:
    """Counts what becomes of requests in the flow control of one pool."""

    def __init__(self, pool: str) -> None:
        self._pool: Final = pool
        self._flows: set[Flow] = set()
        self._seconds: dict[tuple[Flow, str], Histogram] = {}
        self._outcomes: Counter[tuple[str, str]] = Counter()

    def count(self, request: InferenceRequest, outcome: QueueOutcome, waited: float) -> None:
        """Count what became of a request, and for how many seconds it waited."""
        flow = self._flow(request)
        seconds = self._seconds.get((flow, outcome.value))
        if seconds is None:
            seconds = self._seconds[flow, outcome.value] = Histogram(_BOUNDS)
        seconds.observe(waited)
        self._outcomes[outcome.value, flow[3]] += 1

    def _flow(self, request: InferenceRequest) -> Flow:
        model, priority = request.model, str(request.priority)
        names = label(model), label(request.target_model or model), label(request.fairness_id)
        flow = (*names, priority)
        if flow not in self._flows:
            if len(self._flows) >= _MAX_FLOWS:
                return (OTHER, OTHER, OTHER, priority)
            self._flows.add(flow)
        return flow

    def _labels(self, flow: Flow) -> tuple[str, ...]:
        return (flow[2], flow[3], self._pool, flow[0], flow[1])

    def collect(self, line: Line, settings: FlowSettings) -> Iterator[FamilyText]:
        """Yield the families of requests that wait or waited.

        Before the first request there is the empty queue alone, and only with a gate: if there is
        no queue, autoscalers (WVA) take it that a pool of no endpoints never gets any.
        """
        seconds = [
            ((*self._labels(flow), outcome), value)
            for (flow, outcome), value in self._seconds.items()
        ]
        yield from expose(SECONDS, seconds)
        counted = [
            ((outcome, priority, self._pool), times)
            for (outcome, priority), times in self._outcomes.items()
        ]
        yield from expose(OUTCOMES, counted)
        gated = settings.gate is not None
        yield from self._queues(line, gated=gated)
        if gated:  # else only requests that wait enter: not a rate of arrivals
            yield from self._enqueued(line)
        yield from self._capacity(line, settings)

    def _queues(self, line: Line, *, gated: bool) -> Iterator[FamilyText]:
        requests: Counter[Flow] = Counter(dict.fromkeys(self._flows, 0))
        size: Counter[Flow] = Counter(dict.fromkeys(self._flows, 0))
        for held in line:
            flow = self._flow(held.request)
            requests[flow] += 1
            size[flow] += held.request.size
        if gated and not requests:
            requests[_NO_FLOW] = size[_NO_FLOW] = 0
        yield from expose(SIZE, [(self._labels(flow), each) for flow, each in requests.items()])
        yield from expose(BYTES, [(self._labels(flow), each) for flow, each in size.items()])

    def _enqueued(self, line: Line) -> Iterator[FamilyText]:
        """Yield the requests that entered: those that wait, and those with an outcome."""
        came: Counter[tuple[str, str, str]] = Counter()
        for (flow, outcome), seconds in self._seconds.items():
            refused = outcome if outcome.startswith("Rejected") else _NOT_YET
            came[flow[2], flow[3], refused] += sum(seconds.counts)
        for held in line:
            flow = self._flow(held.request)
            came[flow[2], flow[3], _NOT_YET] += 1
        yield from expose(ENQUEUED, [(labels, _at_once(times)) for labels, times in came.items()])

    def _capacity(self, line: Line, settings: FlowSettings) -> Iterator[FamilyText]:
        used: dict[str, list[tuple[tuple[str, ...], float]]] = {"requests": [], "bytes": []}
        for priority, requests, size in line.bands():
            limits, labels = settings.limits_of(priority), (str(priority), self._pool)
            used["requests"].append((labels, _share(requests, limits.max_requests)))
            used["bytes"].append((labels, _share(size, limits.max_bytes)))
        for kind, samples in used.items():
            yield from expose(USED[kind], samples)
        for kind, waiting, limit in (
            ("requests", line.requests, settings.max_requests),
            ("bytes", line.bytes, settings.max_bytes),
        ):
            share: Samples = [((self._pool,), _share(waiting, limit))] if limit < inf else []
            yield from expose(USED_IN_ALL[kind], share)

    def saturation(
        self, stages: Mapping[str, float], detected: Iterable[tuple[str, str, float]]
    ) -> Iterator[FamilyText]:
        """Yield how busy the pool is, by stage, and by detector and stage."""
        yield from expose(
            SATURATION, [((self._pool, stage), value) for stage, value in stages.items()]
        )
        yield from expose(DETECTED, [((name, stage), value) for name, stage, value in detected])

    def stale(self, detector: str, endpoints: int) -> Iterator[FamilyText]:
        """Yield how many endpoints do not show what a detector reads."""
        yield from expose(STALE, [((detector,), endpoints)])


def _at_once(times: int) -> Histogram:
    made = Histogram(SCHEDULER_BOUNDS)
    made.observe_many(0.0, times)
    return made


def _share(waiting: float, limit: float) -> float:
    return waiting / limit if limit else 1.0
