"""The director that decides for exchanges, as a protocol, and decisions that are made later.

Nothing here knows an event loop or the time: the maker of a later decision has the clock, the
deadline and the reason. Everything happens on the thread of the exchange.
"""

from collections.abc import Callable
from typing import Protocol

from epp.model.decision import Decision
from epp.model.events import Event
from epp.model.request import InferenceRequest
from epp.protocol.extproc.record import RequestRecord


class PendingDecision:
    """A decision that is made later: in milliseconds, in minutes or never, and in any order.

    Its maker calls `decided` once, and learns through `when_cancelled` that the request is gone.
    The driver of the exchange calls `when_decided`, and `cancel` when the client is gone. Callbacks
    run at most once, within the call that causes them; by then the exchange may have ended, and its
    end may have been reported to the director.
    """

    def __init__(self) -> None:
        self.cancelled = False
        """Whether the client is gone: a decision that is still made is undone."""
        self._outcome: Decision | BaseException | None = None
        self._on_decision: Callable[[Decision | BaseException], None] | None = None
        self._on_cancel: Callable[[], object] | None = None

    def decided(self, outcome: Decision | BaseException) -> None:
        """Make the decision, before or after anyone waits for it; called by its maker.

        A `RequestError` answers the client; any other exception is the maker's fault, which is
        logged and answered with status 500. After `cancel` a `Decision` still reaches the
        exchange, which undoes its admission (`Aborted` with `refused`). Raises `RuntimeError`
        if the decision was made before: the fleet would count the request twice.
        """
        if self._outcome is not None:
            raise RuntimeError("a pending decision is made once")
        self._outcome = outcome
        self._on_cancel = None
        callback, self._on_decision = self._on_decision, None
        if callback is not None:
            callback(outcome)

    def when_decided(self, callback: Callable[[Decision | BaseException], None]) -> None:
        """Call back with the outcome; at once if there is one."""
        if self._outcome is None:
            self._on_decision = callback
        else:
            callback(self._outcome)

    def cancel(self) -> None:
        """Notify the maker that nobody waits any more; at most once, and only while undecided."""
        if self.cancelled or self._outcome is not None:
            return
        self.cancelled = True
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            callback()

    def when_cancelled(self, callback: Callable[[], object]) -> None:
        """Call back when nobody waits any more; at once if that is the case already."""
        if self.cancelled:
            callback()
        else:
            self._on_cancel = callback


class Director(Protocol):
    """Decides where requests go, and is notified of what happens to them.

    Times are in seconds of the monotonic clock.
    """

    def route(self, request: InferenceRequest, now: float) -> Decision | PendingDecision:
        """Choose endpoints for a request, and count it as admitted, now or later.

        May raise `RequestError`; the request is then not admitted.
        """

    def observe(self, event: Event, now: float) -> None:
        """Handle an event of an admitted request; raises nothing."""

    def needs_end(self, record: RequestRecord, now: float) -> bool:
        """Return whether a response must be observed to its end although it need not be by default.

        Called once, with the first piece of a response's body.
        """

    def exchange_ended(self, record: RequestRecord) -> None:
        """Handle the record of an exchange that is over; called once for each. Raises nothing."""
