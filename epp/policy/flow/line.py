"""The line of requests that wait: by priority, then fair between flows, then in a flow's order.

Each request waits at the endpoint that was best at its last decision, so that the next one for an
endpoint with room is found without looking at all of them.

By default flows share a band by start-time fair queueing in seconds of work: the flow that got the
least goes next, and a flow that was idle has saved up nothing. Within a flow the request with
the lowest `rank` goes next. A band may name other policies for both (`epp.policy.flow.fairness`,
`.orders`).

Replicas report to each other which requests go next. A request yields to those of other replicas
that would go first in one common line, so that no replica takes the room that another one's request
waits for.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heapreplace, merge
from itertools import count
from math import inf
from operator import attrgetter
from typing import Final

from epp.model.endpoint import EndpointId
from epp.model.learning.bounded import make_room
from epp.policy.flow.fairness import FairnessPolicy, ScoringFairnessPolicy
from epp.policy.flow.held import (
    ANYWHERE,
    Flow,
    HeldRequest,
    OtherLines,
    PlaceQueue,
    Rank,
    WaitingElsewhere,
    is_slot,
)
from epp.policy.flow.orders import LeastPrefillOrder, OrderingPolicy
from epp.policy.flow.settings import BandLimits

MAX_FLOWS: Final = 1000
"""The most flows with a share of their own (llm-d-router's bound of labels)."""
OTHER_FLOWS: Final = "other"
"""The flow that all further ones share."""

MAX_SHARED: Final = 64
"""The most requests that are reported to other replicas."""
SHARE_SECONDS, REPEAT_SECONDS = 0.002, 0.02
"""Seconds until a change is reported, and between reports while anything waits."""

_Head = tuple[float, HeldRequest]
"""A flow's position and its next request; the lowest position goes next."""


class _Band:
    """The requests of one priority. `passed` is its virtual time: the start of the last sent."""

    def __init__(self, fairness: FairnessPolicy, order: OrderingPolicy) -> None:
        self.fairness: Final = fairness
        self.order: Final = order
        self._scores = fairness.scores if isinstance(fairness, ScoringFairnessPolicy) else None
        self.requests = 0
        self.bytes = 0
        self.passed = 0.0
        self.flows: dict[str, Flow] = {}
        self.queues: Final[dict[EndpointId, PlaceQueue]] = {}  # those with waiting requests
        self.slots: Final[set[EndpointId]] = set()  # those that are for slots of adapters

    def flow(self, held: HeldRequest) -> Flow:
        """Return the flow of a request, and record its name in the request."""
        name = held.flow or self.fairness.flow_of(held)
        flow = self.flows.get(name)
        if flow is None and len(self.flows) >= MAX_FLOWS:
            self._forget_idle()
            if len(self.flows) >= MAX_FLOWS:
                name = OTHER_FLOWS
                flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(self.passed)
        held.flow = name
        return flow

    def _forget_idle(self) -> None:
        for name in [
            name
            for name, each in self.flows.items()
            if not each.waiting and each.start <= self.passed
        ]:
            del self.flows[name]

    def put(self, held: HeldRequest) -> None:
        """Add a request to the queue of its place."""
        place = held.endpoint_id
        queue = self.queues.get(place)
        if queue is None:
            queue = self.queues[place] = PlaceQueue(self.flows, scored=self._scores is not None)
            if is_slot(place):
                self.slots.add(place)
        queue.add(held)

    def take(self, held: HeldRequest) -> None:
        """Remove a request from the queue of its place."""
        held.ticket = 0
        place = held.endpoint_id
        queue = self.queues[place]
        queue.remove(held)
        if not queue:
            del self.queues[place]
            self.slots.discard(place)

    def heads(self, queues: Iterable[PlaceQueue], now: float) -> list[_Head]:
        """Return the requests that go next in these queues: one per queue, or one per flow."""
        if self._scores is None:
            return [queue.head() for queue in queues]
        found = [held for queue in queues for held in queue.heads()]
        scores: Sequence[float] = self._scores(found, now) if found else ()
        return [(-score, held) for score, held in zip(scores, found, strict=True)]

    def is_next(self, held: HeldRequest, queue: PlaceQueue) -> bool:
        """Return whether a request would go before those that wait in a queue."""
        if self._scores is not None:
            return False
        start = max(self.flow(held).start, self.passed)
        return (start, self.order.rank(held)) <= _order(queue.head())

    def last_of_largest(self, than: Flow) -> Iterator[HeldRequest]:
        """Yield waiting requests, each the last of the flow that has most requests at that time.

        It ends once no flow has at least two requests more than `than`.
        """
        least = than.waiting + 1
        # Heaps, as a long request may take the places of thousands of short ones.
        most = [(-each.waiting, name) for name, each in self.flows.items() if each.waiting > least]
        heapify(most)
        last: dict[str, Iterator[HeldRequest]] = {}
        while most and -most[0][0] > least:
            left, name = most[0]
            if name not in last:
                queues = [queue.last_of(name) for queue in self.queues.values()]
                last[name] = merge(*queues, key=attrgetter("rank"), reverse=True)
            yield next(last[name])
            heapreplace(most, (left + 1, name))


class Line:
    """All requests that wait, and what each flow got while any did.

    `limits_of` returns the settings of a priority band.
    """

    def __init__(
        self, ageing: float, limits_of: Callable[[int], BandLimits] = lambda _: BandLimits()
    ) -> None:
        self._order: Final = LeastPrefillOrder(ageing)
        self._limits_of: Final = limits_of
        self._bands: dict[int, _Band] = {}
        self._tickets = count(1)
        self.requests = 0
        self.bytes = 0
        self.seconds = 0.0
        """Seconds of prefill that wait."""
        self.on_change: Callable[[], None] | None = None
        """Called when a request is added or taken out."""
        self._others: Final = OtherLines()
        self._fairness_ids: Final[dict[str, str]] = {}

    def __iter__(self) -> Iterator[HeldRequest]:
        for band in self._bands.values():
            for queue in band.queues.values():
                yield from queue

    def bands(self) -> Iterator[tuple[int, int, int]]:
        """Yield each priority that had requests, the highest first, with its requests and bytes."""
        for priority in sorted(self._bands, reverse=True):
            band = self._bands[priority]
            yield priority, band.requests, band.bytes

    def waiting(self, priority: int) -> tuple[int, int]:
        """Return how many requests of a priority wait, and the bytes of their bodies."""
        band = self._bands.get(priority)
        return (0, 0) if band is None else (band.requests, band.bytes)

    def _band(self, priority: int) -> _Band:
        band = self._bands.get(priority)
        if band is None:
            limits = self._limits_of(priority)
            band = self._bands[priority] = _Band(limits.fairness, limits.order or self._order)
        return band

    def shared_id(self, fairness_id: str) -> str:
        """Return a fairness id as the one string that all requests of a client share."""
        known = self._fairness_ids
        if fairness_id not in known:
            make_room(known, MAX_FLOWS)
        return known.setdefault(fairness_id, fairness_id)

    def assign_rank(self, held: HeldRequest) -> None:
        """Record a request's flow and rank in it, as if it waited."""
        band = self._band(held.request.priority)
        band.flow(held)
        held.rank = band.order.rank(held)

    def add(self, held: HeldRequest) -> None:
        """Add a request at its `endpoint_id`."""
        band = self._band(held.request.priority)
        flow = band.flow(held)
        if not flow.waiting:
            flow.start = max(flow.start, band.passed)
        flow.waiting += 1
        band.requests += 1
        band.bytes += held.request.size
        self.requests += 1
        self.bytes += held.request.size
        self.seconds += held.seconds
        self._put(band, held)
        if self.on_change is not None:
            self.on_change()

    def move(self, held: HeldRequest, endpoint_id: EndpointId, seconds: float) -> None:
        """Move a waiting request to another endpoint, or give it another cost."""
        band = self._bands[held.request.priority]
        band.take(held)
        self.seconds += seconds - held.seconds
        held.endpoint_id, held.seconds = endpoint_id, seconds
        self._put(band, held)

    def _put(self, band: _Band, held: HeldRequest) -> None:
        held.ticket = next(self._tickets)
        held.rank = band.order.rank(held)
        band.put(held)

    def remove(self, held: HeldRequest) -> bool:
        """Remove a request; return whether it waited."""
        if not held.ticket:
            return False
        band = self._bands[held.request.priority]
        band.take(held)
        band.flows[held.flow].waiting -= 1
        band.requests -= 1
        band.bytes -= held.request.size
        self.requests -= 1
        self.bytes -= held.request.size
        self.seconds -= held.seconds
        if self.on_change is not None:
            self.on_change()
        return True

    def displaceable_by(self, held: HeldRequest) -> Iterator[HeldRequest]:
        """Yield the waiting requests of its band that an arriving one may displace, in order."""
        band = self._band(held.request.priority)
        return band.last_of_largest(band.flow(held))

    def charge(self, held: HeldRequest) -> None:
        """Count a request that is sent, whether it waited or not, towards its flow's share."""
        band = self._bands.get(held.request.priority)
        if band is not None:
            flow = band.flow(held)
            band.passed = flow.start = max(flow.start, band.passed)
            flow.start += band.fairness.cost(held)

    def waits(self, least: float, below: float) -> bool:
        """Return whether any request of these priorities waits: `least` or more, below `below`."""
        return any(
            band.requests and least <= priority < below for priority, band in self._bands.items()
        )

    def next(
        self,
        endpoints: Collection[EndpointId],
        now: float,
        least: float = -inf,
        below: float = inf,
    ) -> HeldRequest | None:
        """Return the request that goes next of those at these endpoints.

        Only priorities of `least` or more, and less than `below`, count.
        """
        for priority in sorted(self._bands, reverse=True):
            band = self._bands[priority]
            if not band.requests or not least <= priority < below:
                continue
            queues = [queue for name in endpoints if (queue := band.queues.get(name))]
            heads = band.heads(queues, now)
            if heads:
                return heads[0][1] if len(heads) == 1 else min(heads, key=_order)[1]
        return None

    def heads(self, now: float, least: float = -inf, below: float = inf) -> list[HeldRequest]:
        """Return the next request of each of these priorities and each endpoint, in order."""
        found: list[HeldRequest] = []
        for priority in sorted(self._bands, reverse=True):
            if least <= priority < below:
                band = self._bands[priority]
                heads = band.heads(band.queues.values(), now)
                found += [head[1] for head in sorted(heads, key=_order)]
        return found

    def is_next(self, held: HeldRequest) -> bool:
        """Return whether a request would be its band's next at its endpoint if it waited there."""
        band = self._bands.get(held.request.priority)
        queue = None if band is None else band.queues.get(held.endpoint_id)
        return band is None or queue is None or band.is_next(held, queue)

    def outranked(self, held: HeldRequest, endpoint_id: EndpointId) -> bool:
        """Return whether a request of higher priority waits at an endpoint."""
        own = held.request.priority
        for priority, band in self._bands.items():
            if priority > own and endpoint_id in band.queues:
                return True
        return False

    def seconds_at(self, held: HeldRequest, endpoint_id: EndpointId) -> float:
        """Return the seconds of prefill of a waiting request's band that wait at an endpoint."""
        queue = self._bands[held.request.priority].queues.get(endpoint_id)
        return 0.0 if queue is None else queue.seconds

    def slots(self) -> set[EndpointId]:
        """Return the places at which requests wait for slots of adapters."""
        found: set[EndpointId] = set()
        for band in self._bands.values():
            found |= band.slots
        return found

    # Other replicas.

    def ahead(self, held: HeldRequest) -> float:
        """Return how far the flow of a request is ahead of its band's virtual time."""
        band = self._band(held.request.priority)
        return max(0.0, band.flow(held).start - band.passed)

    def update_replica(
        self, replica: int, waiting: Sequence[WaitingElsewhere], seconds: float, now: float
    ) -> None:
        """Record what goes next at another replica, in place of its last report.

        `seconds` of prefill wait there.
        """
        for each in waiting:
            each.rank = self._band(each.held.request.priority).order.rank(each.held)
        self._others.update(replica, waiting, seconds, now)

    def seconds_of_all(self, now: float) -> float:
        """Return the seconds of prefill that wait here and at other replicas."""
        return (self.seconds if self.requests else 0.0) + self._others.seconds(now)

    def yields(self, held: HeldRequest, endpoint_id: EndpointId, now: float) -> bool:
        """Return whether a request of another replica goes first at an endpoint."""
        others = self._others.waiting(now)
        if not others:
            return False
        priority, order = held.request.priority, self._band(held.request.priority).order
        place = -priority, self.ahead(held), order.rank(held)
        return any(
            other.held.endpoint_id == endpoint_id
            and (-other.held.request.priority, other.ahead, other.rank) < place
            for other in others
        )

    def forget(self, endpoint_id: EndpointId) -> None:
        """Move the requests that wait at an endpoint that is gone to no endpoint in particular."""
        for band in self._bands.values():
            queue = band.queues.pop(endpoint_id, None)
            for held in () if queue is None else queue:
                held.endpoint_id = ANYWHERE
                self._put(band, held)


def _order(head: _Head) -> tuple[float, Rank, int]:
    return head[0], head[1].rank, head[1].ticket
