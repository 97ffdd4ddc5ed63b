"""Flow control: a request goes to its best endpoint when that has room, and waits until then.

Past a fleet's capacity, requests that are sent at once pile up in the engines: decodes slow each
other down, caches thrash, and the order is fixed for good. Requests that wait here are sent in the
right order instead, each to the endpoint that is best by then. No request waits while there is room
or if another endpoint serves it as well (`Placement.place`). With llm-d-router's gate
(`epp.policy.flow.gate`) a request waits for the pool, too.

It is synchronous and reads no clock. Call `release` after events that may make room, and at `due`.
"""

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

from epp.errors import FAULTS, EndpointsFull, NoEndpoints, RequestError
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import (
    Ejected,
    EndpointRemoved,
    EndpointUpserted,
    Event,
    LoadReported,
    Returned,
)
from epp.model.fleet import Fleet
from epp.model.listeners import Listener
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import Aborted, Finished, FirstToken, Served
from epp.policy.flow.gate import SaturationGate
from epp.policy.flow.held import ANYWHERE, Agenda, HeldRequest, is_slot
from epp.policy.flow.line import Line
from epp.policy.flow.placement import Placement
from epp.policy.flow.refusals import QueueOutcome, Refusals, failed_outcome, outcome_of, ttft_due
from epp.policy.flow.rooms import Axis
from epp.policy.flow.settings import FlowSettings
from epp.policy.plugins import PluginTimer
from epp.policy.scheduler import Scheduler, check_cached

_TICK_SECONDS: Final = 0.01
"""Seconds between checks while requests wait, at least: prefill may end by the clock alone."""
_TICK_PER_ENDPOINT: Final = 20e-6
_MAX_TRIES: Final = 32
"""The most decisions of one release that leave their request waiting."""
_MAX_TRIES_FOR_SLOTS: Final = 16
"""How many of these decisions may be on requests that wait for slots of adapters."""
_SCARCE_SECONDS: Final = 10.0
"""For how long room counts as scarce after a request found none."""
_RETRY_SECONDS: Final = 0.05
"""Seconds after which a request that waits for a full endpoint is decided on again."""
_WATCH: Final = "flow-control/watch"
_BANDS: Final = {False: (0.0, inf), True: (-inf, 0.0)}
"""The lowest priority, and one above the highest, of batches (true) and of all others."""
_LEARNED: Final = (LoadReported, EndpointUpserted, EndpointRemoved)
_MAKING_ROOM: Final = (*_LEARNED, FirstToken, Finished, Aborted, Served, Ejected, Returned)

Outcome = Decision | BaseException
"""The decision on a request that waited, or the refusal or plug-in error in its place."""
OnOutcome = Callable[[InferenceRequest, QueueOutcome, float], None]
"""Called with a request, what became of it, and for how many seconds it waited."""


class FlowControl:
    """Decides on requests over one fleet, at once or when there is room.

    `would_wait` counts, by axis, the requests that found no room, whether they then waited or not.
    `on_outcome` is called for each request that waited or was refused; with a gate, for every one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        fleet: Fleet,
        settings: FlowSettings,
        on_outcome: OnOutcome = lambda _request, _outcome, _waited: None,
    ) -> None:
        self.due = inf
        self.settings: Final = settings
        self.on_outcome: Final = on_outcome
        self.line: Final = Line(settings.ageing, settings.limits_of)
        self.would_wait: Final[Counter[Axis]] = Counter()
        gate = settings.gate
        self.gate: Final = None if gate is None else SaturationGate(fleet, gate)
        self.placement: Final = Placement(fleet, scheduler, settings)
        self.rooms: Final = self.placement.rooms
        self.refusals: Final = Refusals(settings, self.line, fleet)
        self._scheduler: Final = scheduler
        self._fleet: Final = fleet
        self._waits: Final = settings.holds or gate is not None
        # What a request that did not wait reports; None without a gate: nothing.
        self._no_wait: Final = None if gate is None else 0.0
        self._agenda: Final = Agenda()
        self._scarce_at = -inf  # when a request last found no room
        fleet.subscribe(_LEARNED, self._learn, "flow-control")

    # Arrivals.

    def route(
        self, request: InferenceRequest, now: float, timer: PluginTimer | None = None
    ) -> Decision | HeldRequest:
        """Decide on a request that arrives, or let it wait; one without a prompt does not wait.

        Raises what `Scheduler.quote` and `Scheduler.propose` raise and, if the request may not
        wait, what `Refusals.check` raises.
        """
        quote = self._scheduler.quote(request, now)
        try:
            decision = self._propose(request, quote, now, timer)
        except NoEndpoints as error:
            if not self._may_wait(request, error, now):
                raise
            empty = not isinstance(error, EndpointsFull)
            return self._wait(self._held(request, quote, now, empty=empty), now)
        if quote.chains:
            decision, axis = self.placement.place(request, quote, decision, now)
            if axis is not None:
                self.would_wait[axis] += 1
                self._scarce_at = now
            if self._waits and request.most_wait > 0:
                room = (axis is None or not self.settings.holds) and (
                    self.gate is None or self.gate.admits(request.priority, now)
                )
                if not room or self.line.requests or self.line.seconds_of_all(now) > 0:
                    return self._send_or_wait(request, quote, decision, now, axis, room=room)
        if self._no_wait is not None:
            return self._send(request, quote, decision, now, self._no_wait)
        self._scheduler.commit(request, quote, decision, now)
        return decision

    def _may_wait(self, request: InferenceRequest, error: NoEndpoints, now: float) -> bool:
        if isinstance(error, EndpointsFull):  # detectors filter, in llm-d-router behind its gate
            return self.gate is not None and not self.gate.admits(request.priority, now)
        return self.settings.empty_seconds > 0 and self.refusals.may_come(error)

    def _propose(
        self, request: InferenceRequest, quote: Quote, now: float, timer: PluginTimer | None
    ) -> Decision:
        """Decide on a request; one of negative priority is shed unless it may wait for room."""
        waits = self.settings.holds and request.most_wait > 0
        decision = self._scheduler.propose(request, quote, now, timer, sheds=not waits)
        if waits and request.priority < 0 and not self.placement.knows(quote, decision, now):
            self._scheduler.check_saturation(request, decision.candidates)
        return decision

    def _send_or_wait(  # noqa: PLR0913 (what was found)
        self,
        request: InferenceRequest,
        quote: Quote,
        decision: Decision,
        now: float,
        axis: Axis | None,
        *,
        room: bool,
    ) -> Decision | HeldRequest:
        """Send a request if there is `room` and no other goes first; else let it wait."""
        held = self._held(request, quote, now)
        held.endpoint_id, held.seconds, held.work = self.placement.price(quote, decision, axis)
        if room and self.line.is_next(held) and not self._yields(held, held.endpoint_id, now):
            sent = self._send(request, quote, decision, now, self._no_wait)
            self._charge(held, now)
            return sent
        return self._wait(held, now)

    def _held(
        self, request: InferenceRequest, quote: Quote, now: float, *, empty: bool = False
    ) -> HeldRequest:
        due = ttft_due(request)
        held = HeldRequest(
            request.without_text(self.line.shared_id(request.fairness_id)),
            quote,
            now,
            until=now + min(request.most_wait, self.settings.longest(empty=empty)),
            deadline=now + self.settings.limits_of(request.priority).ttl,
            ttft_by=now + due if due else inf,
        )
        held.admitted = not empty
        return held

    def _wait(self, held: HeldRequest, now: float) -> HeldRequest:
        try:
            self.refusals.check(held, now)
        except RequestError as error:
            error.waited = 0.0
            self.on_outcome(held.request, outcome_of(error, waited=False), 0.0)
            raise
        held.quote.drop_lookup()  # caches will have changed when it is sent
        self.line.add(held)
        self.refusals.wait.rate.begin(now)
        self._agenda.add(held, self.refusals.bound(held))
        self._plan(now)
        return held

    def needs_end(self, request: RequestId, now: float) -> bool:
        """Return whether a response that has begun must be observed to its end.

        While room is scarce all are observed: only ends that are seen show that there is room.
        """
        scarce = now - self._scarce_at < _SCARCE_SECONDS or self.line.requests > 0
        return scarce or self._fleet.needs_end(request, now)

    def withdraw(self, held: HeldRequest) -> None:
        """Remove a waiting request whose client is gone."""
        if not self.line.remove(held):
            self.refusals.withdraw(held)
        self._agenda.tidy(self.line.requests)
        if not self.line.requests:
            self._pause()

    def _learn(self, event: Event, now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, LoadReported):
            self.placement.reported(event.endpoint_id)
            self.placement.adapt(self.line.seconds_of_all(now), now)
            return
        if isinstance(event, EndpointUpserted):
            self.placement.joined(event.endpoint.id)
            if self.line.requests and self.refusals.fills(now):
                self.placement.doubt(event.endpoint.id)
        elif isinstance(event, EndpointRemoved):
            self.placement.forget(event.endpoint_id)
            self.line.forget(event.endpoint_id)
        if self.refusals.pool_changed(now):
            self._agenda.plan_anew(self.refusals.bound)

    def watch(self, listener: Listener) -> None:
        """Call `listener` with the events of the fleet that may make room."""
        self._fleet.subscribe(_MAKING_ROOM, listener, _WATCH)

    def unwatch(self) -> None:
        """Stop calling the listener."""
        self._fleet.unsubscribe(_WATCH)

    # Releases.

    def release(self, now: float, released: list[tuple[HeldRequest, Outcome]]) -> None:
        """Send requests that have room; add these, and those whose time is up, to `released`."""
        released += self.refusals.displaced
        self.refusals.displaced.clear()
        try:
            self._release_due(released, now)
            for batch in (False, True):
                if self.line.waits(*_BANDS[batch]):
                    self._release_next(released, now, batch=batch)
        finally:
            for held, outcome in released:
                if not isinstance(outcome, Decision):
                    self.on_outcome(held.request, *failed_outcome(held, outcome, now))
        self._plan(now)

    def _plan(self, now: float) -> None:
        self._agenda.tidy(self.line.requests)
        if not self.line.requests:
            self._pause()
            return
        tick = max(_TICK_SECONDS, _TICK_PER_ENDPOINT * len(self._fleet.pods.values()))
        self.due = min(now + tick, self._agenda.next_at())

    def _pause(self) -> None:
        self.refusals.wait.rate.pause()
        self.due = inf

    def _release_due(self, released: list[tuple[HeldRequest, Outcome]], now: float) -> None:
        """Refuse requests whose deadline has come, and send those that may wait no longer.

        Those of negative priority that may wait no longer are refused too.
        """
        agenda = self._agenda
        while agenda.next_at() <= now:
            held = agenda.pop()
            if not held.waits:
                continue
            if (bound := self.refusals.bound(held)) > now:  # it takes less time where it now waits
                self._agenda.add(held, bound)
            elif self._fleet.pods.values() and held.request.priority >= 0 and bound == held.until:
                if (outcome := self._decide(held, now, force=True)) is not None:
                    released.append((held, outcome))
            else:
                self.line.remove(held)
                released.append((held, self.refusals.too_late(held, now)))

    def _release_next(
        self, released: list[tuple[HeldRequest, Outcome]], now: float, *, batch: bool
    ) -> None:
        """Send requests of the bands of negative priority (`batch`), or of all others, in turn.

        Requests that wait where there is room are first. Then comes the next request of each place,
        since another endpoint may serve it by now. `fresh`: an endpoint has room that had none last
        time.
        """
        line, tries = self.line, 0
        roomy, fresh = self.placement.with_room(now, batch=batch)
        roomy |= line.slots() if roomy else set()
        while roomy and tries < _MAX_TRIES:
            held = line.next(roomy, now, *self._open_bands(now, batch=batch))
            if held is None:
                break
            if self._is_skipped(held, tries, now, fresh=fresh):
                roomy.discard(held.endpoint_id)
                continue
            tries += self._try(held, released, roomy, now, batch=batch)
            if held.waits:  # at another place now, or needing more room
                roomy.discard(held.endpoint_id)
        for held in line.heads(now, *self._open_bands(now, batch=batch)) if roomy else ():
            if tries >= _MAX_TRIES or not roomy:
                break
            if fresh or now - held.tried_at >= _RETRY_SECONDS:
                tries += self._try(held, released, roomy, now, batch=batch)

    def _is_skipped(self, held: HeldRequest, tries: int, now: float, *, fresh: bool) -> bool:
        """Return whether a request is skipped although it is next where it waits."""
        again = fresh or now - held.tried_at >= _RETRY_SECONDS
        if is_slot(held.endpoint_id) and not (again and tries < _MAX_TRIES_FOR_SLOTS):
            return True
        return self._yields(held, held.endpoint_id, now)

    def _open_bands(self, now: float, *, batch: bool) -> tuple[float, float]:
        """Return the lowest priority that may send now, and the bound above the bands."""
        least, below = _BANDS[batch]
        return (least if self.gate is None else max(least, self.gate.least_open(now))), below

    def _try(
        self,
        held: HeldRequest,
        released: list[tuple[HeldRequest, Outcome]],
        roomy: set[EndpointId],
        now: float,
        *,
        batch: bool,
    ) -> bool:
        """Decide on a request that waits; return whether it must go on waiting."""
        outcome = self._decide(held, now)
        if outcome is None:
            held.tried_at = now
            held.quote.drop_lookup()
            return True
        released.append((held, outcome))
        if isinstance(outcome, Decision):
            self.placement.discard_full(roomy, outcome, now, batch=batch)
        return False

    def _decide(self, held: HeldRequest, now: float, *, force: bool = False) -> Outcome | None:
        """Decide on a request that waits; None if it must go on waiting, at the best endpoint.

        With `force` it is sent there, because it may wait no longer.
        """
        request, quote, line = held.request, held.quote, self.line
        axis = None
        try:
            admits = not held.admitted
            decision = self._scheduler.decide(request, quote, now, sheds=False, admits=admits)
            held.admitted = True
            if self.settings.holds and not force:
                worth = now - held.since + line.seconds_at(held, decision.endpoint.id)
                decision, axis = self.placement.place(request, quote, decision, now, worth)
            check_cached(request, decision)  # it may have been evicted meanwhile
        except FAULTS as error:  # also a plug-in's: the client is answered, and others proceed
            if not force and self.refusals.may_come(error):
                line.move(held, ANYWHERE, held.seconds)
                return None
            line.remove(held)
            return error
        place, seconds, held.work = self.placement.price(quote, decision, axis)
        if not force and held.ttft_by < now + seconds:  # by what is cached now
            line.move(held, place, seconds)
            line.remove(held)
            return self.refusals.unmet(held, now)
        if axis is not None or (not force and self._yields(held, place, now)):
            line.move(held, place, seconds)
            return None
        line.remove(held)
        self._charge(held, now)
        return self._send(request, quote, decision, now, now - held.since)

    def _yields(self, held: HeldRequest, endpoint_id: EndpointId, now: float) -> bool:
        """Return whether a request of higher priority, or of another replica, goes first."""
        return self.line.outranked(held, endpoint_id) or (
            self.settings.holds and self.line.yields(held, endpoint_id, now)
        )

    def _charge(self, held: HeldRequest, now: float) -> None:
        self.line.charge(held)
        self.refusals.wait.released(held, now)

    def _send(
        self,
        request: InferenceRequest,
        quote: Quote,
        decision: Decision,
        now: float,
        waited: float | None,
    ) -> Decision:
        """Commit to a decision on a request that `waited` seconds; None: do not report that."""
        if waited is not None:
            decision.waited = waited
        self._scheduler.commit(request, quote, decision, now)
        if waited is not None:
            self.on_outcome(request, QueueOutcome.DISPATCHED, waited)
        return decision
