"""The line of requests that wait: by priority, then fair between flows, then the shortest first.

Each request waits at the endpoint that was the best for it when it was last looked at, so that
finding the next one for an endpoint that has room does not go through all that wait.

Flows share a band by start-time fair queueing (Goyal, Vin and Cheng 1996) in seconds of work: the
flow that has got the least goes next, and one that comes back has nothing saved up. Within a flow
the request with the lowest `rank` goes next: seconds of prefill, and the time of arrival times the
ageing, so that the order of two requests never changes.
"""

from collections.abc import Collection, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Final

from epp.model.endpoint import EndpointId
from epp.model.quote import Quote
from epp.model.request import InferenceRequest

_MOST_IDLE_FLOWS: Final = 1000
"""Flows without a waiting request that are remembered, for each priority."""


class Held:
    """One request that waits; `request` has neither prompts nor a body any more.

    It came at `since` and waits at `endpoint_id`, where its prefill would take `seconds` and the
    whole of it `work` seconds of the engine. At `until` it is sent whether there is room or not; at
    `deadline` it is refused. `ticket` says which of its entries in the line counts, 0 none.
    """

    __slots__ = (
        "deadline",
        "endpoint_id",
        "quote",
        "rank",
        "request",
        "seconds",
        "since",
        "ticket",
        "tried_at",
        "until",
        "work",
    )

    def __init__(
        self,
        request: InferenceRequest,
        quote: Quote,
        since: float,
        *,
        until: float,
        deadline: float,
    ) -> None:
        self.request: Final = request
        self.quote: Final = quote
        self.since: Final = since
        self.until: Final = until
        self.deadline = deadline
        self.endpoint_id = EndpointId("")
        self.seconds = self.work = self.rank = 0.0
        self.tried_at = since
        self.ticket = 0

    @property
    def waits(self) -> bool:
        """Whether it is in the line."""
        return self.ticket > 0


class _Flow:
    """One flow of a band: where it stands in virtual time, and how many of its requests wait."""

    __slots__ = ("start", "waiting")

    def __init__(self, start: float) -> None:
        self.start = start
        self.waiting = 0


_Entry = tuple[float, int, Held]
"""The rank, the ticket and the request."""


class _Queue:
    """The requests of one band that wait at one endpoint."""

    __slots__ = ("_entries", "_flows", "_order")

    def __init__(self, flows: dict[str, _Flow]) -> None:
        self._flows: Final = flows
        self._entries: dict[str, list[_Entry]] = {}
        self._order: list[tuple[float, str]] = []  # flows by a start that may have passed

    def __bool__(self) -> bool:
        return bool(self._order)

    def add(self, held: Held) -> None:
        name = held.request.fairness_id
        entries = self._entries.get(name)
        if entries is None:
            entries = self._entries[name] = []
            heappush(self._order, (self._flows[name].start, name))
        heappush(entries, (held.rank, held.ticket, held))

    def head(self) -> tuple[float, float, Held] | None:
        """Return the next request, with its flow's start and its rank."""
        order, flows = self._order, self._flows
        while order:
            start, name = order[0]
            entries = self._entries[name]
            while entries and entries[0][2].ticket != entries[0][1]:
                heappop(entries)
            if not entries:
                heappop(order)
                del self._entries[name]
            elif flows[name].start > start:
                heapreplace(order, (flows[name].start, name))
            else:
                return start, entries[0][0], entries[0][2]
        return None


class _Band:
    """The requests of one priority. `passed` is the virtual time: the start of the last one."""

    __slots__ = ("bytes", "flows", "passed", "queues", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.passed = 0.0
        self.flows: dict[str, _Flow] = {}
        self.queues: dict[EndpointId, _Queue] = {}

    def flow(self, name: str) -> _Flow:
        flow = self.flows.get(name)
        if flow is None:
            if len(self.flows) > 2 * _MOST_IDLE_FLOWS + self.requests:
                self._forget_idle()
            flow = self.flows[name] = _Flow(self.passed)
        return flow

    def _forget_idle(self) -> None:
        for name in [
            name
            for name, each in self.flows.items()
            if not each.waiting and each.start <= self.passed
        ]:
            del self.flows[name]


class Line:
    """All requests that wait, and what each flow got while any did."""

    def __init__(self, ageing: float) -> None:
        self._ageing: Final = ageing
        self._bands: dict[int, _Band] = {}
        self._tickets = count(1)
        self.requests = 0
        self.bytes = 0
        self.seconds = 0.0
        """Seconds of prefill that wait."""

    def __len__(self) -> int:
        return self.requests

    def bands(self) -> Iterator[tuple[int, int, int]]:
        """Yield each priority that had requests, the highest first, with requests and bytes."""
        for priority in sorted(self._bands, reverse=True):
            band = self._bands[priority]
            yield priority, band.requests, band.bytes

    def waiting(self, priority: int) -> tuple[int, int]:
        """Return how many requests of a priority wait, and the bytes of their bodies."""
        band = self._bands.get(priority)
        return (0, 0) if band is None else (band.requests, band.bytes)

    def rank(self, held: Held) -> float:
        """Return where a request stands in its flow; less is sooner."""
        return held.seconds + self._ageing * held.since

    def add(self, held: Held) -> None:
        """Have a request wait at its `endpoint_id`."""
        band = self._bands.setdefault(held.request.priority, _Band())
        flow = band.flow(held.request.fairness_id)
        if not flow.waiting:
            flow.start = max(flow.start, band.passed)
        flow.waiting += 1
        band.requests += 1
        band.bytes += held.request.size
        self.requests += 1
        self.bytes += held.request.size
        self.seconds += held.seconds
        self._put(band, held)

    def move(self, held: Held, endpoint_id: EndpointId, seconds: float) -> None:
        """Have a request that waits do so at another endpoint, or with another cost."""
        self.seconds += seconds - held.seconds
        held.endpoint_id, held.seconds = endpoint_id, seconds
        self._put(self._bands[held.request.priority], held)

    def _put(self, band: _Band, held: Held) -> None:
        held.ticket = next(self._tickets)
        held.rank = self.rank(held)
        queue = band.queues.get(held.endpoint_id)
        if queue is None:
            queue = band.queues[held.endpoint_id] = _Queue(band.flows)
        queue.add(held)

    def remove(self, held: Held) -> bool:
        """Take a request out; return whether it waited."""
        if not held.ticket:
            return False
        held.ticket = 0
        band = self._bands[held.request.priority]
        band.flows[held.request.fairness_id].waiting -= 1
        band.requests -= 1
        band.bytes -= held.request.size
        self.requests -= 1
        self.bytes -= held.request.size
        self.seconds -= held.seconds
        return True

    def charge(self, held: Held) -> None:
        """Count the work of a request that goes, waited or not, towards its flow's share."""
        band = self._bands.get(held.request.priority)
        if band is not None:
            flow = band.flow(held.request.fairness_id)
            band.passed = flow.start = max(flow.start, band.passed)
            flow.start += held.work

    def next(self, endpoints: Collection[EndpointId]) -> Held | None:
        """Return the request that goes next of those that wait at some endpoints."""
        for priority in sorted(self._bands, reverse=True):
            band = self._bands[priority]
            if not band.requests:
                continue
            heads = [
                head
                for name in endpoints
                if (queue := band.queues.get(name)) and (head := queue.head()) is not None
            ]
            if heads:
                return min(heads, key=_order)[2]
        return None

    def heads(self) -> list[Held]:
        """Return the request that goes next of each priority and endpoint, in order."""
        found: list[Held] = []
        for priority in sorted(self._bands, reverse=True):
            queues = self._bands[priority].queues
            heads = [head for each in queues.values() if (head := each.head()) is not None]
            found += [head[2] for head in sorted(heads, key=_order)]
        return found

    def is_next(self, held: Held) -> bool:
        """Return whether a request would be next at its endpoint if it waited there."""
        for priority in self._bands:
            band = self._bands[priority]
            if priority < held.request.priority or not band.requests:
                continue
            queue = band.queues.get(held.endpoint_id)
            head = None if queue is None else queue.head()
            if head is None:
                continue
            if priority > held.request.priority:
                return False
            flow = band.flow(held.request.fairness_id)
            if (max(flow.start, band.passed), self.rank(held)) > head[:2]:
                return False
        return True

    def forget(self, endpoint_id: EndpointId) -> None:
        """Have those that wait at an endpoint that is gone wait for any."""
        for band in self._bands.values():
            queue = band.queues.pop(endpoint_id, None)
            while queue is not None and (head := queue.head()) is not None:
                head[2].endpoint_id = EndpointId("")
                self._put(band, head[2])


def _order(head: tuple[float, float, Held]) -> tuple[float, float]:
    return head[0], head[1]
