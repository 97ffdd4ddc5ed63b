"""One picker of a run: the product's fleet and scheduler, and the events that reach it."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import msgspec
from msgspec.structs import replace

from epp.config.file import Settings, load
from epp.errors import FAULTS, PickerFault, RequestError
from epp.model.decision import Decision
from epp.model.events import Event
from epp.model.fleet import Fleet
from epp.model.pods.outlier_settings import OutlierSettings
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import Admitted, Generated
from epp.policy.flow.flow_control import FlowControl, Outcome
from epp.policy.flow.held import HeldRequest, WaitingElsewhere
from epp.policy.flow.line import MAX_SHARED, REPEAT_SECONDS, SHARE_SECONDS
from epp.policy.flow.settings import FlowSettings, stale_after
from epp.policy.plugins import Candidates, Filter, Scorer, Unseen
from epp.policy.profile import Profile, Scheduling, WeightedScorer
from epp.policy.scheduler import Scheduler
from epp.replay.plan import Policy
from epp.replay.plugin_faults import describe, has_user_plugins
from epp.replay.simulation.clock import Clock
from epp.values import replaced

_SECRET = b"replay"


class SimulatedPicker:
    """A policy over a fleet of its own. `draw(n)` returns a random number in 0..n-1.

    `outliers` says when endpoints are left out. The filters in `before` run before those of each
    profile. `fault` is the first error of a plug-in; empty: there was none.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int,
        clock: Clock,
        outliers: OutlierSettings,
        before: tuple[Filter, ...] = (),
    ) -> None:
        self.draw = random.Random(seed).randrange
        self.number = seed
        self.fleet = Fleet(BlockHasher(_SECRET), outliers=outliers)
        self._clock = clock
        self._others: Sequence[SimulatedPicker] = ()
        self._lag = 0.0
        settings = load(policy.text, below=self.draw)
        scheduling = settings.scheduling
        if policy.as_reported:
            scheduling = _changed(scheduling, _as_reported)
        if before:
            scheduling = _changed(
                scheduling, lambda each: replace(each, filters=(*before, *each.filters))
            )
        self._processors = scheduling.request_processors
        self.fault = ""
        self._has_users = has_user_plugins(scheduling)
        self._scheduler = Scheduler(self.fleet, scheduling, self.draw, on_fault=self._failed)
        self._flow = FlowControl(self._scheduler, self.fleet, _flow(policy, settings))
        self.needs_end = self._flow.needs_end
        self._waiting: dict[HeldRequest, Callable[[Outcome], None]] = {}
        self._woken = inf
        self._told_at = -inf
        self._flow.line.on_change = self._tell_soon

    def tell(self, others: "Sequence[SimulatedPicker]", seconds: float) -> None:
        """Pass the events of its requests to other pickers, after this many seconds."""
        self._others, self._lag = others, seconds

    def decide_apart(self, unseen: Callable[[float], Unseen]) -> None:
        """Make it allow for decisions of others that it does not know yet."""
        self._scheduler.unseen = unseen

    def route(self, request: InferenceRequest, then: Callable[[Outcome], None]) -> None:
        """Decide on a request and admit it, at once or later; call `then` with the outcome."""
        try:
            for processor in self._processors:
                request = processor.process_request(request)
            outcome = self._flow.route(request, self._clock.now)
        except FAULTS as error:  # `_failed` raises it again if it is not a plug-in's
            then(self._refused(error))
            return
        if isinstance(outcome, HeldRequest):
            self._waiting[outcome] = then
            self._wake()
        else:
            self._go(outcome, request.id, then)

    def _go(self, outcome: Outcome, request_id: RequestId, then: Callable[[Outcome], None]) -> None:
        if self._others and isinstance(outcome, Decision):
            in_flight = self.fleet.in_flight[request_id]
            prefill = outcome.prefill
            prefill_id = None if prefill is None else prefill.id
            self._share(Admitted(in_flight.quote, outcome.endpoint.id, prefill_id))
        then(outcome)

    def _refused(self, error: BaseException) -> RequestError:
        """Return the error with which a request is refused."""
        refusal = error if isinstance(error, RequestError) else PickerFault("a plug-in failed")
        if isinstance(refusal, PickerFault):
            self._failed("", error)
        return refusal

    def _failed(self, _name: str, error: BaseException) -> None:
        """Record the first error of a plug-in. Raises it if it cannot be a user's."""
        if not self._has_users or isinstance(error, KeyboardInterrupt):
            raise error
        if not self.fault:
            self.fault = describe(error)

    def _wake(self, at: float | None = None) -> None:
        """Check the waiting requests now, or at a time earlier than planned."""
        if self._waiting:
            when = max(self._clock.now, self._flow.due if at is None else at)
            if when < self._woken:
                self._woken = when
                self._clock.at(when, self._release)

    def _release(self) -> None:
        if self._clock.now < self._woken:
            return
        self._woken = inf
        released: list[tuple[HeldRequest, Outcome]] = []
        self._flow.release(self._clock.now, released)
        for held, found in released:
            outcome = self._refused(found) if isinstance(found, BaseException) else found
            self._go(outcome, held.request.id, self._waiting.pop(held))
        self._wake()

    def _tell_soon(self) -> None:
        """Tell others what goes next here, and repeat that while any request waits."""
        at = self._clock.now + SHARE_SECONDS
        if self._others and self._told_at < self._clock.now:
            self._told_at = at
            self._clock.at(at, self._tell_waiting)

    def _tell_waiting(self) -> None:
        now, line = self._clock.now, self._flow.line
        for other in self._others:
            heads = [(held, line.ahead(held)) for held in line.heads(now)[:MAX_SHARED]]
            self._clock.at(
                now + self._lag, partial(other.receive_waiting, self.number, heads, line.seconds)
            )
        if line.requests:
            self._clock.at(now + REPEAT_SECONDS, self._tell_soon)

    def receive_waiting(
        self, number: int, heads: Sequence[tuple[HeldRequest, float]], seconds: float
    ) -> None:
        """Record what goes next at another picker."""
        waiting = [WaitingElsewhere(held, ahead) for held, ahead in heads]
        self._flow.line.update_replica(number, waiting, seconds, self._clock.now)
        self._wake(self._clock.now)

    def report(self, event: Event) -> None:
        """Apply what every picker finds out for itself: endpoints and their load."""
        self.fleet.apply(event, self._clock.now)
        self._wake(self._clock.now)

    def observe(self, event: Event) -> None:
        """Apply an event of a request that it routed."""
        self.fleet.apply(event, self._clock.now)
        if type(event) is not Generated:
            self._wake(self._clock.now)
        if self._others:
            self._share(event)

    def _share(self, event: Event) -> None:
        for other in self._others:
            self._clock.at(self._clock.now + self._lag, partial(other.report, event))


def _flow(policy: Policy, settings: Settings) -> FlowSettings:
    """Return the settings of flow control: the file's if its gate is on or the policy has none.

    Otherwise they are the policy's. Requests wait for room only if the policy says so.
    """
    holds = policy.flow is not None and policy.flow.holds
    gated = settings.flow.gate is not None
    flow = settings.flow if policy.flow is None or gated else policy.flow
    return replace(flow, holds=holds, stale_seconds=stale_after(policy.scrape_seconds or 0.0))


class _Reports:
    """Candidates as they were reported, made once for all scorers of a decision."""

    def __init__(self) -> None:
        self._of: Candidates = ()
        self._reported: Candidates = ()

    def __call__(self, candidates: Candidates) -> Candidates:
        """Return the same candidates without the load of the moment."""
        if candidates is not self._of:
            self._of = candidates
            self._reported = [replaced(each, current=None) for each in candidates]
        return self._reported


class _AsReported(msgspec.Struct, frozen=True):
    """A scorer that sees the last report in place of the load of the moment."""

    scorer: Scorer
    reports: _Reports

    def score(self, request: InferenceRequest, candidates: Candidates) -> Sequence[float]:
        """Return the scores of the same candidates as they were reported."""
        return self.scorer.score(request, self.reports(candidates))


def _as_reported(profile: Profile) -> Profile:
    reports = _Reports()
    scorers = [
        WeightedScorer(each.name, each.weight, _AsReported(each.scorer, reports))
        for each in profile.scorers
    ]
    return replace(profile, scorers=tuple(scorers))


def _changed(scheduling: Scheduling, change: Callable[[Profile], Profile]) -> Scheduling:
    profiles = {name: change(profile) for name, profile in scheduling.profiles.items()}
    return replace(scheduling, profiles=profiles)
