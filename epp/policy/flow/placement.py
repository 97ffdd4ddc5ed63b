"""Where a request is placed: at its best endpoint, or another one with room, and at what cost.

The first row that applies decides (`Placement.place`):

    the best endpoint              the request goes to
    has room                       the best endpoint
    refuses requests, or is late   any other endpoint that has room and is not late
    only lacks room for prefill    the best endpoint: it has room soon, and elsewhere the request
                                   would hold up decodes of others
    lacks anything else            another endpoint that has room and is as good for the request

If there is no such endpoint, the request has no room. Another endpoint is as good if

- it owes little prefill, even if its room is not known,
- it has as much of the prompt cached,
- the request takes a slot of an adapter there for no longer,
- its steps are not long, and
- the prefill there is short, or holds up few decodes (`_FEW_DECODES`) and costs them and the
  request at most `worth` seconds more.

Requests of negative priority, such as batches, have less room, so that they hardly affect others:
an endpoint has room for them if it owes almost no prefill, its memory is less than a fifth full,
and a slot is free.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final

from epp.errors import NoEndpoints
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.fleet import Fleet
from epp.model.pods.pod import Pod
from epp.model.pods.sequence import SequenceState
from epp.model.quote import Quote
from epp.model.request import InferenceRequest
from epp.policy.flow.held import ANYWHERE, slot_of
from epp.policy.flow.memory_share import SHORT_STEPS, MemoryShare
from epp.policy.flow.rooms import Axis, Rooms
from epp.policy.flow.settings import FlowSettings
from epp.policy.scheduler import Scheduler

_ADAPTERS: Final = Axis.ADAPTERS
_MEMORY: Final = Axis.MEMORY
_PREFILL: Final = Axis.PREFILL
_REFUSALS: Final = Axis.REFUSALS
_FEW_DECODES: Final = 1.75
"""The greatest `Pod.step_ratio` at which a long prefill holds up few decodes."""
_LATE_SECONDS: Final = 5.0
_LATE_FACTOR: Final = 3.0
"""An endpoint is late if a prefill is overdue for longer than this many seconds, and longer than
this multiple of its predicted seconds."""


def _seconds(candidate: Candidate) -> float:
    """Return a request's seconds at an endpoint: its own, and those that other requests lose."""
    own = candidate.predicted_ttft + candidate.generation_seconds
    return own + candidate.crowding_seconds


class Placement:
    """Places requests at endpoints of one fleet that have room (`Rooms`)."""

    def __init__(self, fleet: Fleet, scheduler: Scheduler, settings: FlowSettings) -> None:
        self.share: Final = MemoryShare(
            settings.least_memory, settings.most_memory, settings.short_steps_memory
        )
        self.rooms: Final = Rooms(settings.prefill_seconds, self.share, settings.stale_seconds)
        self._batch: Final = Rooms(
            settings.prefill_seconds * settings.batch_prefill_share,
            MemoryShare(0.0, settings.most_memory * settings.batch_memory_share),
            settings.stale_seconds,
            waiting=0,  # a batch would take the next slot
        )
        self._batch_memory_share: Final = settings.batch_memory_share
        self._short_prefill: Final = settings.prefill_seconds
        self._fleet: Final = fleet
        self._scheduler: Final = scheduler
        self._holds: Final = settings.holds
        # The endpoints that had room when `with_room` was last called, by `batch`.
        self._roomy: Final[dict[bool, set[EndpointId]]] = {}

    def rooms_for(self, *, batch: bool) -> Rooms:
        """Return the room for requests of negative priority (`batch`), or for all others."""
        return self._batch if batch else self.rooms

    def reported(self, endpoint_id: EndpointId) -> None:
        """Learn from a report of an endpoint."""
        pod = self._fleet.pods.get(endpoint_id)
        if pod is not None:
            self.rooms.reported(pod)
            self._batch.reported(pod)

    def joined(self, endpoint_id: EndpointId) -> None:
        """Forget an endpoint that has not reported yet, since it may be another engine."""
        pod = self._fleet.pods.get(endpoint_id)
        if pod is not None and not pod.reported_block:
            self.forget(endpoint_id)

    def doubt(self, endpoint_id: EndpointId) -> None:
        """Let an endpoint without any request so far get only a few at first."""
        pod = self._fleet.pods.get(endpoint_id)
        if pod is not None and not pod.ledger.sent:
            pod.ledger.doubt()

    def adapt(self, waiting_seconds: float, now: float) -> None:
        """Adapt the share of memory to the seconds of prefill that wait, and to step ratios."""
        pods = self._fleet.pods.values()
        steps = 0.0
        if waiting_seconds > 0 and pods:
            steps = sum([pod.step_ratio for pod in pods]) / len(pods)
        self.share.update(waiting_seconds / max(1, len(pods)), steps, now)
        self._batch.share.value = self.share.value * self._batch_memory_share

    def forget(self, endpoint_id: EndpointId) -> None:
        """Forget an endpoint that is gone."""
        self.rooms.forget(endpoint_id)
        self._batch.forget(endpoint_id)

    def knows(self, quote: Quote, decision: Decision, now: float) -> bool:
        """Return whether a request may wait for the endpoint of a decision: its room is known."""
        pod = self._fleet.pods.get(decision.endpoint.id)
        return bool(quote.chains) and pod is not None and not self.rooms.unaccounted(pod, now)

    def place(
        self,
        request: InferenceRequest,
        quote: Quote,
        decision: Decision,
        now: float,
        worth: float = 0.0,
    ) -> tuple[Decision, Axis | None]:
        """Return a decision, and what its endpoints lack; None if they have room.

        The module's docstring has the rules.
        """
        axis = self._lacks(quote, decision, request.priority, now)
        if axis is None:
            return decision, None
        pod = self._fleet.pods.get((decision.prefill or decision.endpoint).id)
        if axis is _REFUSALS or (pod is not None and _is_late(pod, now)):
            worth = inf
        elif axis is _PREFILL:
            return decision, axis
        if decision.prefill is not None or decision.encode is not None:
            return self._place_stages(request, quote, decision, now, axis, worth)
        others = self._others(quote, decision, request.priority, now, worth)
        if not self._holds:
            return decision, None if others else axis
        again = self._again(request, decision, others, now)
        return (decision, axis) if again is None else (again, None)

    def _again(
        self,
        request: InferenceRequest,
        decision: Decision,
        candidates: Sequence[Candidate],
        now: float,
        without: AbstractSet[EndpointId] = frozenset(),
    ) -> Decision | None:
        """Decide among some candidates; None if there are none, or the filters want others.

        Filters may let others pass if they do not see the one that they want.
        """
        if not candidates:
            return None
        try:
            return self._scheduler.decide_among(request, decision, candidates, now, without)
        except NoEndpoints:
            return None

    def _place_stages(  # noqa: PLR0913, PLR0917 (what was found)
        self,
        request: InferenceRequest,
        quote: Quote,
        decision: Decision,
        now: float,
        axis: Axis,
        worth: float,
    ) -> tuple[Decision, Axis | None]:
        """Do what `place` does for a request that several endpoints serve in stages.

        The new endpoints have the same stages; one endpoint may have both. If any refuses requests,
        at most one of them is tested by this request, so that its own answer is seen. Both are
        tested if there are no other endpoints.
        """
        if not self._holds:
            return decision, axis
        pods = self._pods_of(decision)
        left_out = [self._unfit(quote, request.priority, now)]
        if axis is _REFUSALS:
            left_out += [{each.endpoint.id} for each in pods]
        stages = [each.profile for each in decision.stages]
        for names in left_out:
            again = self._again(request, decision, decision.considered, now, names)
            if (
                again is not None
                and [each.profile for each in again.stages] == stages
                and self._lacks(quote, again, request.priority, now) is None
                and self._is_worth(again, decision, worth, now)
            ):
                return again, None
        tried = axis is _REFUSALS and max([each.ledger.refuses_until for each in pods]) <= now
        return decision, None if tried else axis

    def _pods_of(self, decision: Decision) -> list[Pod]:
        """Return the pods that a decision chose for decoding and prefill."""
        chosen = (decision.endpoint, decision.prefill)
        found = [None if each is None else self._fleet.pods.get(each.id) for each in chosen]
        return [each for each in found if each is not None]

    def _unfit(self, quote: Quote, priority: int, now: float) -> set[EndpointId]:
        """Return the endpoints that refuse, are late, or lack more than room for prefill."""
        rooms, model = self.rooms_for(batch=priority < 0), quote.target_model
        response, found = self._response_tokens(quote), set()
        for pod in self._fleet.pods.values():
            length = 0.0 if pod.partial else response
            lacks = rooms.lacks(pod, 0.0, quote.tokens, now, model, length, quote.answers)
            if lacks not in {None, _PREFILL} or pod.ledger.refuses or _is_late(pod, now):
                found.add(pod.endpoint.id)
        return found

    def _is_worth(self, again: Decision, decision: Decision, worth: float, now: float) -> bool:
        """Return whether another first endpoint serves a request as well as the best one."""
        best, candidate = decision.predicted_for, again.predicted_for
        pod = self._fleet.pods.get((again.prefill or again.endpoint).id)
        if pod is None or best is None or candidate is None:
            return False
        return self._may_take(pod, candidate, best, _seconds(best) + worth, now)

    def _others(
        self, quote: Quote, decision: Decision, priority: int, now: float, worth: float
    ) -> list[Candidate]:
        """Return the candidates that have room and cost other requests no more than the best one.

        If `worth` is infinite, all that have room and are not late are returned, whatever they
        cost.
        """
        best = decision.predicted_for
        if best is None:
            return []
        rooms, pods = self.rooms_for(batch=priority < 0), self._fleet.pods
        most = _seconds(best) + worth
        found: list[Candidate] = []
        for each in decision.candidates:
            pod = pods.get(each.endpoint.id)
            if (
                pod is not None
                and self._may_take(pod, each, best, most, now)
                and self._lacks_for(quote, pod, each, rooms, now) is None
            ):
                found.append(each)
        return found

    def _may_take(
        self, pod: Pod, candidate: Candidate, best: Candidate, most: float, now: float
    ) -> bool:
        if pod.ledger.queued_seconds(now) >= self._short_prefill:  # also if its room is not known
            return False
        if most == inf:
            return not _is_late(pod, now)
        return (
            candidate.cached_tokens >= best.cached_tokens
            and candidate.slot_seconds <= best.slot_seconds
            and pod.step_ratio <= SHORT_STEPS
            and (
                candidate.prefill_seconds < self._short_prefill
                or (pod.step_ratio <= _FEW_DECODES and _seconds(candidate) <= most)
            )
        )

    def _lacks(self, quote: Quote, decision: Decision, priority: int, now: float) -> Axis | None:
        """Return what the endpoints of a decision lack; None if they have room."""
        candidate, pods = decision.predicted_for, self._fleet.pods
        rooms = self._batch if priority < 0 else self.rooms
        pod = pods.get(decision.endpoint.id)
        if pod is None or candidate is None:
            return None
        seconds = candidate.prefill_seconds
        if decision.prefill is not None:
            first = pods.get(decision.prefill.id)
            if first is not None:
                if first.ledger.refuses and pod.ledger.refuses:
                    return _REFUSALS
                axis = rooms.lacks(first, seconds, quote.tokens, now, quote.target_model)
                if axis is not None:
                    return axis
        return self._lacks_for(quote, pod, candidate, rooms, now)

    def _lacks_for(
        self, quote: Quote, pod: Pod, candidate: Candidate, rooms: Rooms, now: float
    ) -> Axis | None:
        """Return what an endpoint lacks; what running requests hold of the prompt counts once.

        That is looked for if the request would fit without all that is cached of it.
        """
        seconds, tokens, model = candidate.prefill_seconds, quote.tokens, quote.target_model
        response, answers = self._response_tokens(quote), quote.answers
        axis = rooms.lacks(pod, seconds, tokens, now, model, response, answers)
        if axis is not _MEMORY or not candidate.cached_tokens or len(quote.chains) != 1:
            return axis
        fewest = tokens - candidate.cached_tokens
        if rooms.lacks(pod, seconds, fewest, now, model, response, answers) is not None:
            return axis
        chain, offsets, scheduler = quote.chains[0], quote.token_offsets[0], pod.scheduler
        prompt = SequenceState(quote.request_id, chain, offsets, scheduler.cache)
        shared = float(scheduler.shared_tokens(prompt, ()))
        return rooms.lacks(pod, seconds, tokens, now, model, response, answers, shared)

    def _response_tokens(self, quote: Quote) -> float:
        """Return the expected length of each answer to a request, in tokens."""
        return self._fleet.output_lengths.length(quote.response_kind, quote.output_limit)

    def price(
        self, quote: Quote, decision: Decision, axis: Axis | None
    ) -> tuple[EndpointId, float, float]:
        """Return where a request waits, the seconds of its prefill, and those of all its work.

        If requests wait for room, and `axis` says that its adapter lacks a slot, it waits for a
        slot. Otherwise it waits at the endpoint of the decision.
        """
        pod, candidate = self._fleet.pods.get(decision.endpoint.id), decision.predicted_for
        name = (decision.prefill or decision.endpoint).id
        if axis is _ADAPTERS and self._holds:
            name = slot_of(quote.target_model)
        if pod is None or candidate is None:
            return name, 0.0, 0.0
        length = self._response_tokens(quote) * quote.answers
        decode = length * pod.pace.decode_seconds(1.0, quote.tokens + length / 2)
        return name, candidate.prefill_seconds, candidate.prefill_seconds + decode

    def with_room(self, now: float, *, batch: bool) -> tuple[set[EndpointId], bool]:
        """Return the endpoints that have any room, and whether any had none at the last call.

        If requests do not wait for room, all endpoints are returned.
        """
        rooms, pods = self.rooms_for(batch=batch), self._fleet.pods.values()
        found = {
            pod.endpoint.id
            for pod in pods
            if not self._holds or rooms.lacks(pod, 0.0, 0.0, now) is None
        }
        if found:
            found.add(ANYWHERE)
        new = not found <= self._roomy.get(batch, set())
        self._roomy[batch] = found.copy()
        return found, new

    def discard_full(
        self, roomy: set[EndpointId], decision: Decision, now: float, *, batch: bool
    ) -> None:
        """Drop the endpoints that a decision has left without room from `roomy`.

        If no endpoint is left in `roomy`, other places are dropped too.
        """
        for pod in self._pods_of(decision) if self._holds else ():
            if self.rooms_for(batch=batch).lacks(pod, 0.0, 0.0, now) is not None:
                roomy.discard(pod.endpoint.id)
        for place in roomy:
            if self._fleet.pods.get(place) is not None:
                return
        roomy.clear()


def _is_late(pod: Pod, now: float) -> bool:
    """Return whether an endpoint may be stuck: a first token is late, and it shows no life."""
    overdue = pod.ledger.overdue(now)
    if overdue is None:
        return False
    due, seconds = overdue
    return now - max(due, pod.outlier.alive_at) > max(_LATE_SECONDS, _LATE_FACTOR * seconds)
