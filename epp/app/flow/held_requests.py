"""Requests that wait in the picker, on the event loop: their decisions are made when there is room.

While no request waits nothing here runs, and no event of the fleet is followed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from epp.adapters.telemetry.families import SCHEDULER_BOUNDS
from epp.adapters.telemetry.histogram import Histogram
from epp.errors import FAULTS, RequestError, ShuttingDown
from epp.model.decision import Decision
from epp.model.events import Event
from epp.model.listeners import OnFault
from epp.model.request import InferenceRequest
from epp.policy.flow.flow_control import FlowControl, Outcome
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.refusals import QueueOutcome
from epp.policy.producers.identity import fairness_source
from epp.protocol.extproc.director import PendingDecision

_WAIT_BOUNDS: Final = (
    *(0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
_AFTER_FAULT_SECONDS: Final = 0.1
"""Seconds until the next look for room after one that failed."""

OnRelease = Callable[[InferenceRequest, Decision, float], None]
"""Called with a request that waited, its decision, and the seconds that deciding took."""


class HeldRequests:
    """The pending decisions of requests that wait in `flow`. `clock` returns monotonic seconds."""

    def __init__(
        self,
        flow: FlowControl,
        clock: Callable[[], float],
        on_release: OnRelease,
        on_fault: OnFault,
    ) -> None:
        self._flow: Final = flow
        self._clock: Final = clock
        self._on_release: Final = on_release
        self._on_fault: Final = on_fault
        self.waits: Final = Histogram(_WAIT_BOUNDS)
        """How long requests waited before they were sent, in seconds."""
        self.cycles: Final = Histogram(SCHEDULER_BOUNDS)
        """How long it took to look for room, in seconds."""
        self.refused: Final[Counter[str]] = Counter()
        """Requests that waited and were refused, by the reason."""
        self.sources: Final[Counter[str]] = Counter()
        """Requests that waited, by the header that their flow came from."""
        self._pending: dict[HeldRequest, PendingDecision] = {}
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, held: HeldRequest) -> PendingDecision:
        """Return the pending decision on a request that waits, which is made when it is sent."""
        pending = PendingDecision()
        if not self._pending:
            self._flow.watch(self._wake)
        self._pending[held] = pending
        self.sources[fairness_source(held.request)] += 1
        pending.when_cancelled(_Withdrawal(self, held))
        self._set_timer()
        return pending

    def withdraw(self, held: HeldRequest) -> None:
        """Remove a request whose client is gone."""
        if self._pending.pop(held, None) is not None:
            self._flow.withdraw(held)
            self._count_gone(held, QueueOutcome.EVICTED_CANCELLED)
            self._unwatch_if_empty()

    def _count_gone(self, held: HeldRequest, outcome: QueueOutcome) -> float:
        """Count a request that is removed; return for how many seconds it waited."""
        waited = max(0.0, self._clock() - held.since)
        self._flow.on_outcome(held.request, outcome, waited)
        return waited

    def _unwatch_if_empty(self) -> None:
        """Stop following the fleet if no request waits."""
        if not self._pending:
            self._flow.unwatch()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wake(self, _event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Look for room once the events of this turn of the loop have taken effect."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._release)

    def _set_timer(self) -> None:
        if self._timer is None and self._pending:
            seconds = max(0.0, self._flow.due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._soon is None:  # else an event of this turn has room looked for
            self._release()

    def _release(self) -> None:
        self._soon = None
        began = self._clock()
        released: list[tuple[HeldRequest, Outcome]] = []
        try:
            self._flow.release(began, released)
        except FAULTS as error:  # whatever it is, waiting requests are tried again
            self._on_fault("flow-control", error)
            found = {held for held, _ in released}
            for held in self._pending:
                if not (held.waits or held in found):
                    self._count_gone(held, QueueOutcome.EVICTED_OTHER)
                    released.append((held, error))
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_AFTER_FAULT_SECONDS, self._tick)
        taken = self._clock() - began
        self.cycles.observe(taken)
        seconds = taken / max(1, len(released))
        for held, outcome in released:
            try:
                self._answer(held, outcome, began, seconds)
            except FAULTS as error:  # whatever it is, the other requests proceed
                self._on_fault("flow-control", error)
        self._unwatch_if_empty()
        self._set_timer()

    def _answer(self, held: HeldRequest, outcome: Outcome, now: float, seconds: float) -> None:
        """Answer a request that was decided, in `seconds`, or refused; even if observing raises."""
        pending = self._pending.pop(held, None)
        try:
            if isinstance(outcome, Decision):
                self.waits.observe(now - held.since)
                self._on_release(held.request, outcome, seconds)
            elif isinstance(outcome, RequestError):
                self.refused[outcome.reason] += 1
        finally:
            if pending is not None:
                pending.decided(outcome)

    def stop(self) -> None:
        """Refuse all waiting requests, as the picker stops."""
        for held, pending in list(self._pending.items()):
            self._flow.withdraw(held)
            error = ShuttingDown("the picker is shutting down", retry_after=1)
            error.waited = self._count_gone(held, QueueOutcome.EVICTED_OTHER)
            self.refused[error.reason] += 1
            pending.decided(error)
        self._pending.clear()
        self._unwatch_if_empty()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None


class _Withdrawal:
    """Removes a request whose client is gone; takes 200 bytes less than a `partial`."""

    __slots__ = ("_held", "_requests")

    def __init__(self, requests: HeldRequests, held: HeldRequest) -> None:
        self._requests: Final = requests
        self._held: Final = held

    def __call__(self) -> None:
        self._requests.withdraw(self._held)
