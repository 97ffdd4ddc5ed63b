"""Which requests are refused instead of kept waiting, and when their clients may retry.

A request is refused if the line has no place for it, if its time to live is over, or if it names an
objective for its TTFT and will not meet it: at once if that is expected, otherwise when it becomes
certain. While the rate of release is not known, no wait is expected.
"""

from enum import Enum
from math import ceil, inf
from typing import Final

from epp.errors import NoEndpoints, Overloaded, RequestError, WaitedTooLong
from epp.model.fleet import Fleet
from epp.model.request import InferenceRequest
from epp.policy.flow.expected_wait import ExpectedWait
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.line import Line
from epp.policy.flow.settings import FlowSettings
from epp.policy.producers.predicted_latency import TTFT_HEADERS, slo

_SURE: Final = 1.5
"""A request is refused at once if its expected wait is more than this many times what is left."""
_LONGEST_RETRY: Final = 300
"""The greatest `retry-after`, in seconds."""
_UNKNOWN_RETRY: Final = 1
_FILLS_SECONDS: Final = 30.0
"""For how long after its first endpoint a pool gets more that nobody has tried."""


class QueueOutcome(Enum):
    """What became of a request in flow control; the values are a label of llm-d-router's."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    EVICTED_CANCELLED = "EvictedContextCancelled"
    EVICTED_OTHER = "EvictedOther"


def ttft_due(request: InferenceRequest) -> float:
    """Return the seconds within which a client wants the first token; 0 if it does not say."""
    return slo(request, TTFT_HEADERS) / 1000


class Refusals:
    """Refuses requests of one line."""

    def __init__(self, settings: FlowSettings, line: Line, fleet: Fleet) -> None:
        self.wait: Final = ExpectedWait(line)
        self.displaced: Final[list[tuple[HeldRequest, RequestError]]] = []
        """Requests that waited and were refused in favour of others; `release` reports them."""
        self._settings: Final = settings
        self._line: Final = line
        self._fleet: Final = fleet
        self._was_empty = self._is_empty
        self._changed_at = -inf  # when the pool got its first endpoint, or lost its last one

    @property
    def _is_empty(self) -> bool:
        """Whether no endpoint serves whole requests: all are for one stage, or there are none."""
        return all(each.partial for each in self._fleet.pods.values())

    def _has_none(self, held: HeldRequest) -> bool:
        """Return whether there is no endpoint that could serve a request.

        If a request was decided on it waits at an endpoint; one for a single stage is enough then.
        """
        return not self._fleet.pods.values() or (not held.endpoint_id and self._is_empty)

    def may_come(self, error: BaseException) -> bool:
        """Return whether the missing endpoint may still come: the first one, or another stage's."""
        lacks = isinstance(error, NoEndpoints) and not isinstance(error, Overloaded)
        return lacks and self._is_empty

    def fills(self, now: float) -> bool:
        """Return whether an endpoint that joins now is one of the first of an empty pool."""
        return self._was_empty or now - self._changed_at < _FILLS_SECONDS

    def pool_changed(self, now: float) -> bool:
        """Return whether the pool has got its first endpoint, or lost its last one."""
        empty = self._is_empty
        if empty is self._was_empty:
            return False
        self._was_empty, self._changed_at = empty, now
        return True

    def bound(self, held: HeldRequest) -> float:
        """Return the time until which a request may wait, as things are now.

        Its time begins anew when the pool gets its first endpoint, or loses its last one. Without a
        gate, a request that waited before that loss continues to wait.
        """
        settings, bound = self._settings, min(held.until, held.latest)
        began = max(held.since, self._changed_at)
        if not self._has_none(held):
            return min(bound, held.deadline + began - held.since)
        if settings.gate is None and held.since < self._changed_at:
            return bound
        return min(bound, began + settings.empty_seconds)

    def check(self, held: HeldRequest, now: float) -> None:
        """Raise `RequestError` if a request may not begin to wait.

        If no more may wait, requests of the flow with the most waiting ones are refused in its
        place (`displaced`), so that a client that floods takes no places from others. A request
        that is refused itself displaces no other.
        """
        self._line.assign_rank(held)
        if held.latest < now or self._cannot_meet(held, now):
            raise self.unmet(held, now)
        others = self._displaced_by(held)
        if others is None:
            raise self._full(held, now)
        for other in others:
            self.displaced.append((other, self._full(other, now)))
            self._line.remove(other)

    def withdraw(self, held: HeldRequest) -> None:
        """Forget a displaced request whose client is gone."""
        self.displaced[:] = [each for each in self.displaced if each[0] is not held]

    def _displaced_by(self, held: HeldRequest) -> list[HeldRequest] | None:
        """Return the requests that one displaces; None if there is no room for it anyway."""
        request, size = held.request, 0
        others: list[HeldRequest] = []
        if self._fits(request, 0, 0):
            return others
        # If the places of all requests of its priority were not enough, none is displaced.
        if not self._fits(request, *self._line.waiting(request.priority)):
            return None
        for other in self._line.displaceable_by(held):
            others.append(other)
            size += other.request.size
            if self._fits(request, len(others), size):
                return others
        return None

    def _full(self, held: HeldRequest, now: float) -> RequestError:
        """Return the refusal of a request for which the line has no place."""
        priority = held.request.priority
        requests, _ = self._line.waiting(priority)
        said = f"{requests} requests of priority {priority} wait, and no more may"
        if self._has_none(held):
            return NoEndpoints(f"no endpoint is ready; {said}", retry_after=1)
        return Overloaded(said, reason="line-full", retry_after=self._retry_after(held, now))

    def _fits(self, request: InferenceRequest, less: int, less_size: int) -> bool:
        """Return whether there is room for a request once `less` others have gone.

        They are of its priority, and have `less_size` bytes in all.
        """
        settings, line = self._settings, self._line
        limits = settings.limits_of(request.priority)
        requests, size = line.waiting(request.priority)
        return (
            requests - less + 1 <= limits.max_requests
            and size - less_size + request.size <= limits.max_bytes
            and line.requests - less + 1 <= settings.max_requests
            and line.bytes - less_size + request.size <= settings.max_bytes
        )

    def _cannot_meet(self, held: HeldRequest, now: float) -> bool:
        left = held.latest - now
        return left < inf and self.wait.seconds(held, now) > _SURE * left

    def unmet(self, held: HeldRequest, now: float) -> RequestError:
        """Return the refusal of a request whose first token will not be in time."""
        wait, wanted = self.wait.seconds(held, now), held.ttft_by - held.since
        return Overloaded(
            f"its first token would come later than the {wanted * 1000:.0f} ms that the"
            " request wants",
            reason="ttft-unmet",
            retry_after=_whole(wait - (held.latest - now)),
        )

    def too_late(self, held: HeldRequest, now: float) -> RequestError:
        """Return the refusal of a request that may wait no longer."""
        said = f"within {now - held.since:.0f} s"
        if self._has_none(held):
            return NoEndpoints(f"no endpoint came up {said}", retry_after=_UNKNOWN_RETRY)
        if held.latest <= now < held.deadline:
            return self.unmet(held, now)
        retry_after = self._retry_after(held, now)
        return WaitedTooLong(f"there was no room {said}", retry_after=retry_after)

    def _retry_after(self, held: HeldRequest, now: float) -> int:
        return _whole(self.wait.seconds(held, now))


def _whole(seconds: float) -> int:
    """Return seconds for `retry-after`: whole ones (RFC 9110 §10.2.3), within bounds."""
    return ceil(min(max(seconds, _UNKNOWN_RETRY), _LONGEST_RETRY))


def failed_outcome(
    held: HeldRequest, error: BaseException, now: float
) -> tuple[QueueOutcome, float]:
    """Return the outcome of a request that waited and was not sent, and how long it waited."""
    waited = now - held.since
    if isinstance(error, RequestError):
        error.waited = waited
    return outcome_of(error, waited=True), waited


def outcome_of(error: BaseException, *, waited: bool) -> QueueOutcome:
    """Return the outcome of a refusal, of a request that waited or was not admitted to the line.

    The fault of a plug-in is a refusal too.
    """
    if isinstance(error, NoEndpoints) and not isinstance(error, Overloaded):
        return QueueOutcome.EVICTED_NO_ENDPOINTS if waited else QueueOutcome.REJECTED_NO_ENDPOINTS
    if not waited:
        return QueueOutcome.REJECTED_CAPACITY
    late = isinstance(error, WaitedTooLong) or getattr(error, "reason", "") == "ttft-unmet"
    return QueueOutcome.EVICTED_TTL if late else QueueOutcome.EVICTED_OTHER
