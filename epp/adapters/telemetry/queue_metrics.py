"""llm-d-router's metrics of flow control, under its names: outcomes, waits, queues and saturation.

Clients choose models and fairness ids, so a limited number of combinations have series of their
own; all others are counted as `other`, until some of these are idle.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Final

from msgspec.structs import replace

from epp.adapters.telemetry.cardinality import OTHER, Flow, Idle, label
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
        self._idle: Final = Idle[Flow]()
        self._forgotten: Counter[tuple[str, str, str]] = Counter()
        self._entered: Counter[tuple[str, str, str]] = Counter()

    def count(self, request: InferenceRequest, outcome: QueueOutcome, waited: float) -> None:
        """Count what became of a request, and for how many seconds it waited."""
        flow = self._flow(request)
        seconds = self._seconds.get((flow, outcome.value))
        if seconds is None:
            seconds = self._seconds[flow, outcome.value] = Histogram(_BOUNDS)
        seconds.observe(waited)
        self._outcomes[outcome.value, flow[3]] += 1

    def _flow(self, request: InferenceRequest) -> Flow:
        flow = _flow_of(request)
        if flow not in self._flows:
            if len(self._flows) >= _MAX_FLOWS:
                return (OTHER, OTHER, OTHER, flow[3])
            self._flows.add(flow)
        return flow

    def _labels(self, flow: Flow) -> tuple[str, ...]:
        return (flow[2], flow[3], self._pool, flow[0], flow[1])

    def _forget_idle(self, now: float) -> None:
        """Forget the flows that are idle once all places are taken."""
        times: Counter[Flow] = Counter()
        for (flow, _), seconds in self._seconds.items():
            times[flow] += sum(seconds.counts)
        full = len(self._flows) >= _MAX_FLOWS
        idle = self._flows & self._idle.among(times.items(), now, full=full)
        self._flows -= idle
        for flow, outcome in [each for each in self._seconds if each[0] in idle]:
            entered = _entered(flow, outcome)
            self._forgotten[entered] += sum(self._seconds.pop((flow, outcome)).counts)
        left = {flow[2:] for flow, _ in self._seconds}
        for entered in [each for each in self._forgotten if each[:2] not in left]:
            del self._forgotten[entered]

    def collect(self, line: Line, settings: FlowSettings, now: float) -> Iterator[FamilyText]:
        """Yield the families of requests that wait or waited.

        Queues are named for the flows with most waiting requests, and then for those that have
        other series. Before the first request there is only an empty queue, and only with a gate:
        without any queue, autoscalers (WVA) would assume that an empty pool never gets requests.
        """
        self._forget_idle(now)
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
        waiting = [(_flow_of(held.request), held.request.size) for held in line]
        most = Counter(flow for flow, _ in waiting).most_common(_MAX_FLOWS)
        shown = list(dict.fromkeys([*dict(most), *self._flows]))[:_MAX_FLOWS]
        requests, size = Counter(dict.fromkeys(shown, 0)), Counter(dict.fromkeys(shown, 0))
        for flow, taken in waiting:
            own = flow if flow in requests else (OTHER, OTHER, OTHER, flow[3])
            requests[own] += 1
            size[own] += taken
        if gated and not requests:
            requests[_NO_FLOW] = size[_NO_FLOW] = 0
        yield from expose(SIZE, [(self._labels(flow), each) for flow, each in requests.items()])
        yield from expose(BYTES, [(self._labels(flow), each) for flow, each in size.items()])

    def _enqueued(self, line: Line) -> Iterator[FamilyText]:
        """Yield the requests that entered: those that wait, and those with an outcome."""
        came = Counter(self._forgotten)
        for (flow, outcome), seconds in self._seconds.items():
            came[_entered(flow, outcome)] += sum(seconds.counts)
        for held in line:
            came[_entered(self._flow(held.request), _NOT_YET)] += 1
        # One of `other` may get a place while it waits: no count goes back.
        self._entered = came | Counter({each: self._entered[each] for each in came})
        entered = [(labels, _at_once(times)) for labels, times in self._entered.items()]
        yield from expose(ENQUEUED, entered)

    def _capacity(self, line: Line, settings: FlowSettings) -> Iterator[FamilyText]:
        used: dict[str, list[tuple[tuple[str, ...], float]]] = {"requests": [], "bytes": []}
        for priority, requests, size in line.bands():
            limits, labels = settings.limits_of(priority), (str(priority), self._pool)
            used["requests"].append((labels, requests / limits.max_requests))
            used["bytes"].append((labels, size / limits.max_bytes))
        for kind, samples in used.items():
            yield from expose(USED[kind], samples)
        for kind, waiting, limit in (
            ("requests", line.requests, settings.max_requests),
            ("bytes", line.bytes, settings.max_bytes),
        ):
            share: Samples = [((self._pool,), waiting / limit)] if limit < inf else []
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
        """Yield the number of endpoints that do not report what a detector reads."""
        yield from expose(STALE, [((detector,), endpoints)])


def _flow_of(request: InferenceRequest) -> Flow:
    target, fairness = request.target_model or request.model, request.fairness_id
    return (label(request.model), label(target), label(fairness), str(request.priority))


def _entered(flow: Flow, outcome: str) -> tuple[str, str, str]:
    """Return the fairness id, the priority, and whether a request with that outcome entered."""
    return flow[2], flow[3], outcome if outcome.startswith("Rejected") else _NOT_YET


def _at_once(times: int) -> Histogram:
    made = Histogram(SCHEDULER_BOUNDS)
    made.observe_many(0.0, times)
    return made
