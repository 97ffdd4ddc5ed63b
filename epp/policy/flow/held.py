"""Requests that wait: those of this picker, and those that other replicas report."""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

from epp.model.endpoint import EndpointId
from epp.model.quote import Quote
from epp.model.request import InferenceRequest

_VALID_SECONDS: Final = 0.05
"""Seconds for which a report of another replica counts."""

ANYWHERE: Final = EndpointId("")
"""Where a request waits if no endpoint was found for it."""
_SLOT: Final = "adapter "
"""The prefix of places at which requests wait for a slot; no endpoint's name has a space."""

Rank = tuple[float, float]
"""The position of a request in its flow; the least goes next."""


def slot_of(adapter: str) -> EndpointId:
    """Return the place where a request waits if its best endpoint has no slot for its adapter.

    It is not an endpoint, so requests behind it may pass, as in the engine.
    """
    return EndpointId(_SLOT + adapter)


def is_slot(place: EndpointId) -> bool:
    """Return whether requests at a place wait for a slot of an adapter."""
    return place.startswith(_SLOT)


class HeldRequest:
    """One request that waits. Times are in seconds; requests compare by `due_at`."""

    def __init__(  # noqa: PLR0913 (its times)
        self,
        request: InferenceRequest,
        quote: Quote,
        since: float,
        *,
        until: float,
        deadline: float,
        ttft_by: float = inf,
    ) -> None:
        self.request: Final = request
        """The request, without prompts and body."""
        self.quote: Final = quote
        """Its prompts as hashes and lengths."""
        self.since: Final = since
        """When it arrived."""
        self.until: Final = until
        """When it is sent even if there is no room."""
        self.deadline: Final = deadline
        """When it is refused."""
        self.ttft_by: Final = ttft_by
        """When its first token is due."""
        self.endpoint_id = ANYWHERE
        """Where it waits: at an endpoint, for a slot (`slot_of`), or `ANYWHERE`."""
        self.flow = ""
        """The flow of its band that it counts towards."""
        self.seconds = 0.0
        """The seconds that its prefill would take there."""
        self.work = 0.0
        """The engine's seconds that prefill and decoding would take there."""
        self.rank: Rank = (0.0, 0.0)
        """Its position in its flow."""
        self.admitted = False
        """Whether admitters have let it pass."""
        self.tried_at = since
        """When a decision last left it waiting."""
        self.ticket = 0
        """The ticket of its current entry in the line; 0: it does not wait."""
        self.due_at = inf
        """When its time is checked next (`Agenda`)."""

    def __lt__(self, other: "HeldRequest") -> bool:
        return self.due_at < other.due_at

    def __hash__(self) -> int:  # a compiled class with an order has no default hash
        return id(self)

    @property
    def waits(self) -> bool:
        """Whether it is in the line."""
        return self.ticket > 0

    @property
    def latest(self) -> float:
        """When it must be sent for its first token to be in time."""
        return self.ttft_by - self.seconds


class LineEntry:
    """An entry of a request in the line: by its rank when it was added, then by its ticket."""

    def __init__(self, held: HeldRequest) -> None:
        self.first, self.second = held.rank
        self.ticket: Final = held.ticket
        self.held: Final = held

    def __lt__(self, other: "LineEntry") -> bool:
        if self.first != other.first:
            return self.first < other.first
        if self.second != other.second:
            return self.second < other.second
        return self.ticket < other.ticket

    @property
    def waits(self) -> bool:
        """Whether it is the current entry of its request."""
        return self.held.ticket == self.ticket


class FlowQueue:
    """The requests of one flow that wait at one endpoint; queues compare by `start`.

    `start` is the flow's, now or at an earlier time. `waiting` is the number of requests.
    """

    def __init__(self, flow: str, start: float) -> None:
        self.flow: Final = flow
        self.start = start
        self.waiting = 0
        self.entries: Final[list[LineEntry]] = []  # a heap

    def __lt__(self, other: "FlowQueue") -> bool:
        if self.start != other.start:
            return self.start < other.start
        return self.flow < other.flow

    def first(self) -> HeldRequest:
        """Return the request that goes next."""
        entries = self.entries
        while not entries[0].waits:
            heappop(entries)
        return entries[0].held

    def add(self, held: HeldRequest) -> None:
        """Add a request."""
        self.waiting += 1
        heappush(self.entries, LineEntry(held))

    def drop_one(self) -> None:
        """Count one request less; its entry is stale by now."""
        self.waiting -= 1
        entries = self.entries
        # Entries keep whole requests alive: stale ones never outnumber the others.
        if len(entries) > 2 * self.waiting:
            entries[:] = [entry for entry in entries if entry.waits]
            heapify(entries)


class Flow:
    """One flow of a band: its position in virtual time, and how many of its requests wait."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.waiting = 0


class PlaceQueue:
    """The requests of one band that wait at one place, by flow; false if none waits.

    Flows are compared by their starts, unless a policy scores them (`scored`). `seconds` is the sum
    over the prefills that wait.
    """

    def __init__(self, flows: dict[str, Flow], *, scored: bool) -> None:
        self._flows: Final = flows
        self._scored: Final = scored
        self.seconds = 0.0
        self._queues: Final[dict[str, FlowQueue]] = {}  # of flows with waiting requests
        self._by_start: Final[list[FlowQueue]] = []  # a heap

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[HeldRequest]:
        for queue in self._queues.values():
            for entry in queue.entries:
                if entry.waits:
                    yield entry.held

    def add(self, held: HeldRequest) -> None:
        """Add a request."""
        self.seconds += held.seconds
        flow = held.flow
        queue = self._queues.get(flow)
        if queue is None:
            queue = self._queues[flow] = FlowQueue(flow, self._flows[flow].start)
            if not self._scored:
                heappush(self._by_start, queue)
        queue.add(held)

    def remove(self, held: HeldRequest) -> None:
        """Remove a request, whose ticket is no longer valid."""
        self.seconds -= held.seconds
        queue = self._queues[held.flow]
        queue.drop_one()
        if queue.waiting:
            return
        del self._queues[held.flow]
        by_start = self._by_start
        if len(by_start) > 2 * len(self._queues):
            by_start[:] = self._queues.values()
            heapify(by_start)

    def head(self) -> tuple[float, HeldRequest]:
        """Return the next request, with its flow's start; some request must wait."""
        by_start, flows = self._by_start, self._flows
        while True:
            queue = by_start[0]
            if not queue.waiting:
                heappop(by_start)
            elif flows[queue.flow].start > queue.start:
                queue.start = flows[queue.flow].start
                heapreplace(by_start, queue)
            else:
                return queue.start, queue.first()

    def heads(self) -> list[HeldRequest]:
        """Return the next request of each flow."""
        return [queue.first() for queue in self._queues.values()]

    def last_of(self, flow: str) -> Iterator[HeldRequest]:
        """Yield the requests of a flow, roughly from the last to the first."""
        queue = self._queues.get(flow)
        # heapq: parents, which go first, come before their children in the list.
        for entry in reversed([] if queue is None else queue.entries):
            if entry.waits:
                yield entry.held


class Agenda:
    """Requests, by the next check of whether their time is up."""

    def __init__(self) -> None:
        self._heap: Final[list[HeldRequest]] = []

    def add(self, held: HeldRequest, at: float) -> None:
        """Plan to check a request at a time; it must not be planned yet."""
        held.due_at = at
        heappush(self._heap, held)

    def next_at(self) -> float:
        """Return the time of the next check; infinite if there is none."""
        return self._heap[0].due_at if self._heap else inf

    def pop(self) -> HeldRequest:
        """Remove and return the request that is checked next."""
        return heappop(self._heap)

    def plan_anew(self, bound: Callable[[HeldRequest], float]) -> None:
        """Plan the checks of all waiting requests anew, at the times that `bound` returns."""
        heap = self._heap
        heap[:] = [held for held in heap if held.waits]
        for held in heap:
            held.due_at = bound(held)
        heapify(heap)

    def tidy(self, waiting: int) -> None:
        """Drop the requests that no longer wait, if they outnumber the `waiting` ones."""
        heap = self._heap
        if len(heap) > 2 * waiting:
            heap[:] = [held for held in heap if held.waits]
            heapify(heap)


class WaitingElsewhere:
    """A request that waits at another replica, and goes next at its endpoint there.

    `held` stands for it, by the clock of this replica. Its flow is `ahead` of the virtual time of
    its band there. `rank` is its position in its flow.
    """

    def __init__(self, held: HeldRequest, ahead: float) -> None:
        self.held: Final = held
        self.ahead: Final = ahead
        self.rank: Rank = (0.0, 0.0)


class OtherLines:
    """The requests that go next at the other replicas, by their last reports."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[float, float, Sequence[WaitingElsewhere]]] = {}

    def update(
        self, replica: int, waiting: Sequence[WaitingElsewhere], seconds: float, now: float
    ) -> None:
        """Record what goes next at a replica, and the seconds of all prefill that waits there."""
        if waiting:
            self._reports[replica] = now, seconds, waiting
        else:
            self._reports.pop(replica, None)

    def _forget(self, now: float) -> None:
        for replica in [
            name for name, (at, _, _) in self._reports.items() if now - at > _VALID_SECONDS
        ]:
            del self._reports[replica]

    def waiting(self, now: float) -> list[WaitingElsewhere]:
        """Return the requests that go next."""
        if not self._reports:
            return []
        self._forget(now)
        return [each for _, _, waiting in self._reports.values() for each in waiting]

    def seconds(self, now: float) -> float:
        """Return the seconds of prefill that wait."""
        if not self._reports:
            return 0.0
        self._forget(now)
        return sum([seconds for _, seconds, _ in self._reports.values()])
