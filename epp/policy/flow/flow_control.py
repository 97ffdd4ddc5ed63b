"""Flow control: a request goes to its best endpoint when that has room, and waits until then.

Past a fleet's capacity, what is sent at once piles up in the engines: decodes slow each other down,
caches thrash, and the order is fixed for good. What waits here is sent in the right order instead,
to the endpoint that is the best one by then. While there is room nothing waits.

It is synchronous and reads no clock. `release` is to be called after events that may make room,
and at `due`.
"""

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

from msgspec.structs import replace

from epp.errors import NoEndpoints, Overloaded, RequestError
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import (
    Aborted,
    Ejected,
    EndpointRemoved,
    EndpointUpserted,
    Event,
    Finished,
    FirstToken,
    LoadReported,
    Returned,
    Served,
)
from epp.model.fleet import Fleet
from epp.model.listeners import Listener
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId
from epp.policy.flow.line import Held, Line
from epp.policy.flow.memory_share import MemoryShare
from epp.policy.flow.rooms import Axis, Rooms
from epp.policy.flow.settings import FlowSettings
from epp.policy.plugins import PluginTimer
from epp.policy.scheduler import Scheduler

_TICK_SECONDS: Final = 0.01
"""How often prefill that is done by the clock is looked for while requests wait, at most."""
_TICK_PER_ENDPOINT: Final = 20e-6
_MOST_TRIES: Final = 32
"""Decisions that one release makes in vain, at most."""
_SCARCE_SECONDS: Final = 10.0
"""For how long room is scarce after a request found none."""
_RETRY_SECONDS: Final = 0.05
"""After how long a request that wants a full endpoint is decided on anew for one with room."""
_ANYWHERE: Final = EndpointId("")
"""Where a request waits that no endpoint was found for."""

_WATCH: Final = "flow-control/watch"
_MAKING_ROOM: Final = (
    FirstToken,
    Finished,
    Aborted,
    Served,
    LoadReported,
    EndpointUpserted,
    EndpointRemoved,
    Ejected,
    Returned,
)

Outcome = Decision | RequestError
"""What became of a request that waited: where it goes, or why it is refused."""


class FlowControl:
    """Decides on requests over one fleet, at once or when there is room.

    `would_wait` counts requests that found no room, by the axis, whether they then waited or not.
    """

    def __init__(self, scheduler: Scheduler, fleet: Fleet, settings: FlowSettings) -> None:
        self.due = inf
        self.settings: Final = settings
        self.share: Final = MemoryShare(settings.least_memory, settings.most_memory)
        self.rooms: Final = Rooms(settings.prefill_seconds, self.share)
        self.line: Final = Line(settings.ageing)
        self.would_wait: Final[Counter[Axis]] = Counter()
        self._scheduler: Final = scheduler
        self._fleet: Final = fleet
        self._agenda: list[tuple[float, int, Held]] = []  # when a request waits no longer
        self._numbers: Final = count()
        self._scarce_at = -inf  # when a request last found no room
        self._roomy: set[EndpointId] = set()  # endpoints that had room when last looked at
        fleet.subscribe((LoadReported, EndpointRemoved), self._learn, "flow-control")

    # What comes.

    def route(
        self, request: InferenceRequest, now: float, timer: PluginTimer | None = None
    ) -> Decision | Held:
        """Decide on a request that came now, or have it wait, where the engine has work of it.

        Raises what `Scheduler.route` does, and `Overloaded` if too many wait.
        """
        scheduler = self._scheduler
        try:
            quote, decision = scheduler.propose(request, now, timer)
        except NoEndpoints:
            if self._fleet.endpoints or not self.settings.empty_seconds:
                raise
            return self._await_endpoints(request, now)
        axis = self._lacks(quote, decision, now) if quote.chains else None
        if axis is not None:
            self.would_wait[axis] += 1
            self._scarce_at = now
        waits = self.settings.holds and bool(quote.chains) and request.most_wait > 0
        if waits and (axis is not None or self.line.requests):
            return self._compete(request, quote, decision, now, room=axis is None)
        scheduler.commit(request, quote, decision, now)
        return decision

    def _compete(
        self,
        request: InferenceRequest,
        quote: Quote,
        decision: Decision,
        now: float,
        *,
        room: bool,
    ) -> Decision | Held:
        """Commit to a decision if there is room and no one goes before; else have it wait."""
        held = self._held(request, quote, now)
        held.endpoint_id, held.seconds, held.work = self._price(quote, decision)
        if room and self.line.is_next(held):
            self._scheduler.commit(request, quote, decision, now)
            self.line.charge(held)
            return decision
        return self._wait(held, now)

    def _await_endpoints(self, request: InferenceRequest, now: float) -> Held:
        return self._wait(self._held(request, self._scheduler.quote(request, now), now), now)

    def _held(self, request: InferenceRequest, quote: Quote, now: float) -> Held:
        stripped = replace(request, prompts=(), body=b"")
        until = now + min(request.most_wait, self.settings.most_seconds)
        deadline = now + self.settings.limits_of(request.priority).ttl
        return Held(stripped, quote, now, until=until, deadline=deadline)

    def _wait(self, held: Held, now: float) -> Held:
        self._check_limits(held.request)
        self.line.add(held)
        heappush(self._agenda, (self._bound(held), next(self._numbers), held))
        self._plan(now)
        return held

    def _bound(self, held: Held) -> float:
        """Return when a request waits no longer, as things are now."""
        if not self._fleet.endpoints:
            return min(held.deadline, held.since + self.settings.empty_seconds)
        return min(held.deadline, held.until)

    def _check_limits(self, request: InferenceRequest) -> None:
        """Raise `Overloaded` if a request is one too many to wait."""
        settings, line = self.settings, self.line
        limits = settings.limits_of(request.priority)
        requests, size = line.waiting(request.priority)
        if (
            requests + 1 > limits.max_requests
            or size + request.size > limits.max_bytes
            or line.requests + 1 > settings.max_requests
            or line.bytes + request.size > settings.max_bytes
        ):
            raise Overloaded(
                f"{requests} requests of priority {request.priority} wait for an endpoint, and no"
                " more may",
                reason="line-full",
                retry_after=1,
            )

    def needs_end(self, request: RequestId, now: float) -> bool:
        """Return whether a response that has begun is to be observed to its end.

        All are while room is scarce, for room is only as true as the ends that are seen.
        """
        scarce = now - self._scarce_at < _SCARCE_SECONDS or self.line.requests > 0
        return scarce or self._fleet.needs_end(request, now)

    def withdraw(self, held: Held) -> None:
        """Take a request out that waits: its client is gone."""
        self.line.remove(held)
        if not self.line.requests:
            self._rest()

    def _learn(self, event: Event, now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, LoadReported):
            pod = self._fleet.pods.get(event.endpoint_id)
            if pod is not None:
                self.rooms.reported(pod)
                self._adapt(now)
        elif isinstance(event, EndpointRemoved):
            self.rooms.forget(event.endpoint_id)
            self.line.forget(event.endpoint_id)

    def watch(self, listener: Listener) -> None:
        """Call `listener` with the events of the fleet that may make room."""
        self._fleet.subscribe(_MAKING_ROOM, listener, _WATCH)

    def unwatch(self) -> None:
        """Call it no more."""
        self._fleet.unsubscribe(_WATCH)

    # Room.

    def _adapt(self, now: float) -> None:
        """Adapt the share of memory to what waits and how long steps take."""
        pods = self._fleet.pods.values()
        steps = 0.0
        if self.line.requests:
            steps = sum([pod.steps_of_one for pod in pods]) / len(pods)
        self.share.update(self.line.seconds / max(1, len(pods)), steps, now)

    def _lacks(self, quote: Quote, decision: Decision, now: float) -> Axis | None:
        """Return what the endpoints of a decision lack; None if they have room."""
        candidate, pods, rooms = decision.predicted_for, self._fleet.pods, self.rooms
        pod = pods.get(decision.endpoint.id)
        if pod is None or candidate is None:
            return None
        tokens = quote.tokens + self._response_tokens(quote)
        seconds = candidate.prefill_seconds
        if decision.prefill is not None:
            first = pods.get(decision.prefill.id)
            if first is not None:
                axis = rooms.full(first, seconds, quote.tokens, now)
                if axis is not None:
                    return axis
        return rooms.full(pod, seconds, tokens, now)

    def _response_tokens(self, quote: Quote) -> float:
        """Return how many tokens the responses to a request are expected to have."""
        length = self._fleet.output_lengths.length(quote.response_kind, quote.output_limit)
        return length * len(quote.chains)

    def _price(self, quote: Quote, decision: Decision) -> tuple[EndpointId, float, float]:
        """Return where a request would go, and the seconds of its prefill and of all its work."""
        pod, candidate = self._fleet.pods.get(decision.endpoint.id), decision.predicted_for
        name = (decision.prefill or decision.endpoint).id
        if pod is None or candidate is None:
            return name, 0.0, 0.0
        length = self._response_tokens(quote)
        decode = length * pod.pace.decode_seconds(1.0, quote.tokens + length / 2)
        return name, candidate.prefill_seconds, candidate.prefill_seconds + decode

    # What goes.

    def release(self, now: float) -> list[tuple[Held, Outcome]]:
        """Send what waits and has room; return it, and what may wait no longer."""
        released: list[tuple[Held, Outcome]] = []
        self._release_due(released, now)
        if self.line.requests:
            self._release_next(released, now)
        self._plan(now)
        return released

    def _plan(self, now: float) -> None:
        if not self.line.requests:
            self._rest()
            return
        tick = max(_TICK_SECONDS, _TICK_PER_ENDPOINT * len(self._fleet.pods.values()))
        self.due = min(now + tick, self._agenda[0][0])

    def _rest(self) -> None:
        self._agenda.clear()
        self.due = inf

    def _release_due(self, released: list[tuple[Held, Outcome]], now: float) -> None:
        """Refuse requests whose deadline has come, and send those that may wait no longer.

        Those of negative priority may be dropped.
        """
        agenda = self._agenda
        while agenda and agenda[0][0] <= now:
            _, _, held = heappop(agenda)
            if not held.waits:
                continue
            if (
                bound := self._bound(held)
            ) > now:  # meanwhile the pool got an endpoint, or lost all
                heappush(agenda, (bound, next(self._numbers), held))
            elif held.deadline <= now or held.request.priority < 0 or not self._fleet.endpoints:
                self.line.remove(held)
                released.append((held, self._too_late(held, now)))
            elif (outcome := self._decide(held, now, anyway=True)) is not None:
                released.append((held, outcome))

    def _too_late(self, held: Held, now: float) -> RequestError:
        waited = f"{now - held.since:.0f} s"
        if not self._fleet.endpoints:
            return NoEndpoints(f"no endpoint came up within {waited}", retry_after=1)
        return Overloaded(
            f"no endpoint had room within {waited}", reason="ttl-expired", retry_after=1
        )

    def _release_next(self, released: list[tuple[Held, Outcome]], now: float) -> None:
        roomy = self._with_room(now)
        fresh, self._roomy = not roomy <= self._roomy, roomy.copy()
        tries = 0
        while roomy and tries < _MOST_TRIES:
            held = self.line.next(roomy)
            if held is None:
                break
            outcome = self._decide(held, now)
            if outcome is None:  # for another endpoint, or it needs more than there is
                tries += 1
                held.tried_at = now
                roomy.discard(held.endpoint_id)
                continue
            released.append((held, outcome))
            self._recheck(roomy, outcome, now)
        for held in self.line.heads() if roomy else ():
            if tries >= _MOST_TRIES or not roomy:
                break
            if not fresh and now - held.tried_at < _RETRY_SECONDS:
                continue
            outcome = self._decide(held, now)
            if outcome is None:
                tries += 1
                held.tried_at = now
            else:
                released.append((held, outcome))
                self._recheck(roomy, outcome, now)

    def _with_room(self, now: float) -> set[EndpointId]:
        """Return the endpoints that have any room."""
        full = self.rooms.full
        found = {
            pod.endpoint.id for pod in self._fleet.pods.values() if full(pod, 0.0, 0.0, now) is None
        }
        if found:
            found.add(_ANYWHERE)
        return found

    def _recheck(self, roomy: set[EndpointId], outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Decision):
            for endpoint in (outcome.endpoint, outcome.prefill):
                pod = None if endpoint is None else self._fleet.pods.get(endpoint.id)
                if pod is not None and self.rooms.full(pod, 0.0, 0.0, now) is not None:
                    roomy.discard(pod.endpoint.id)
            if len(roomy) == 1:  # none is left but that nowhere
                roomy.discard(_ANYWHERE)

    def _decide(self, held: Held, now: float, *, anyway: bool = False) -> Outcome | None:
        """Decide on a request that waits; None if it still has to, at the endpoint that is best.

        It goes there `anyway` if it may wait no longer.
        """
        scheduler, line = self._scheduler, self.line
        try:
            decision = scheduler.decide(held.request, held.quote, now)
        except RequestError as error:
            if isinstance(error, NoEndpoints) and not self._fleet.endpoints and not anyway:
                line.move(held, _ANYWHERE, held.seconds)
                return None
            line.remove(held)
            return error
        name, seconds, held.work = self._price(held.quote, decision)
        if not anyway and self._lacks(held.quote, decision, now) is not None:
            line.move(held, name, seconds)
            return None
        line.remove(held)
        line.charge(held)
        scheduler.commit(held.request, held.quote, decision, now)
        return decision
