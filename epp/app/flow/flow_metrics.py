"""The metrics of flow control: waiting requests, their waits, and how full endpoints are."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from epp.adapters.telemetry.queue_metrics import CYCLES, QueueMetrics
from epp.adapters.telemetry.series import FamilyText, counter, expose, gauge, histogram
from epp.app.flow.held_requests import HeldRequests
from epp.model.fleet import Fleet
from epp.policy.filters.detectors import UtilizationDetector
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.headroom import headroom
from epp.policy.flow.rooms import Axis

WAITING: Final = gauge(
    "warmpick_flow_waiting_requests",
    "Requests that wait in the picker for an endpoint with room, by priority.",
    "priority",
)
WAITING_BYTES: Final = gauge(
    "warmpick_flow_waiting_bytes",
    "Bytes of the bodies of requests that wait in the picker, by priority.",
    "priority",
)
WAIT: Final = histogram(
    "warmpick_flow_wait_seconds", "How long requests waited before they were sent."
)
REFUSED: Final = counter(
    "warmpick_flow_refused_total", "Requests that waited and were refused, by reason.", "reason"
)
WOULD_WAIT: Final = counter(
    "warmpick_flow_no_room_total",
    "Requests whose best endpoint had no room when they came, by what it lacked; with --hold"
    " off they were sent there anyway.",
    "axis",
)
USED: Final = gauge(
    "warmpick_flow_endpoint_used_ratio",
    "What is used of an endpoint's room, by axis; from 1 on requests wait.",
    "endpoint",
    "axis",
)
UNACCOUNTED: Final = gauge(
    "warmpick_flow_unaccounted_endpoints",
    "Endpoints that requests are sent to at once because their room is not known, by reason.",
    "reason",
)
SHARE: Final = gauge(
    "warmpick_flow_memory_share_ratio",
    "The share of an endpoint's cache that requests and what they will generate may take.",
)


SOURCES: Final = counter(
    "warmpick_flow_waited_total",
    "Requests that waited, by the header that their fairness id came from.",
    "fairness_source",
)
HEADROOM: Final = gauge(
    "warmpick_headroom_requests",
    "Requests that could start now over all endpoints, of negative priority (batch) or of any"
    " other (interactive).",
    "class",
)
HEADROOM_TOKENS: Final = gauge(
    "warmpick_headroom_tokens",
    "Tokens that are free at endpoints where a request of this class could start now.",
    "class",
)
_CLASSES: Final = {"interactive": False, "batch": True}


def collect(
    flow: FlowControl, held: HeldRequests, queues: QueueMetrics, fleet: Fleet, now: float
) -> Iterator[FamilyText]:
    """Yield the families."""
    line, rooms = flow.line, flow.rooms
    # Autoscalers that read a page themselves find the default priority there before any request.
    bands = {0: (0, 0)} | {name: (requests, size) for name, requests, size in line.bands()}
    yield from expose(WAITING, [((str(name),), each[0]) for name, each in bands.items()])
    yield from expose(WAITING_BYTES, [((str(name),), each[1]) for name, each in bands.items()])
    yield from expose(WAIT, [((), held.waits)])
    if any(held.cycles.counts):
        yield from expose(CYCLES, [((), held.cycles)])
    yield from expose(REFUSED, [((reason,), times) for reason, times in held.refused.items()])
    yield from expose(WOULD_WAIT, [((each.value,), flow.would_wait[each]) for each in Axis])
    pods = list(fleet.pods.values())
    known = [pod for pod in pods if not rooms.unaccounted(pod, now)]
    used = [
        ((pod.endpoint.name, axis.value), ratio)
        for pod in known
        for axis, ratio in rooms.ratios(pod, now).items()
    ]
    yield from expose(USED, used)
    reasons = Counter(filter(None, (rooms.unaccounted(pod, now) for pod in pods)))
    yield from expose(UNACCOUNTED, [((reason,), times) for reason, times in reasons.items()])
    yield from expose(SHARE, [((), rooms.share.value)])
    yield from expose(SOURCES, [((source,), times) for source, times in held.sources.items()])
    left = {name: headroom(flow, fleet, now, batch=batch) for name, batch in _CLASSES.items()}
    yield from expose(HEADROOM, [((name,), each.requests) for name, each in left.items()])
    yield from expose(HEADROOM_TOKENS, [((name,), each.tokens) for name, each in left.items()])
    yield from queues.collect(line, flow.settings, now)
    if flow.gate is not None:
        yield from queues.saturation(flow.gate.measure(now), flow.gate.detected(now))
        if isinstance(flow.gate.settings.detector, UtilizationDetector):
            stale = sum(rooms.is_stale(pod, now) for pod in pods)
            yield from queues.stale(flow.gate.settings.name, stale)
