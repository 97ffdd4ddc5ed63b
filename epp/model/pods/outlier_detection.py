"""Outlier detection: endpoints that fail or stall are left out for a while, as Envoy does it.

An endpoint is ejected after some failures in a row: for `base_ejection_time` times the number of
ejections in a row. One that accepts requests and does nothing is ejected too, until it shows life.
Never are all of a role left out: an endpoint that fails as all others do is no outlier.

What a response shows counts by when its request was sent: one that was sent before the last
failure says nothing of the time after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final

import msgspec

from epp.model.endpoint import ROLE_LABEL, Load
from epp.model.events import (
    Aborted,
    Ejected,
    EjectionReason,
    Event,
    Failure,
    Finished,
    FirstToken,
    Generated,
    Returned,
    Unobserved,
)
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.outlier_state import PromptKey
from epp.model.pods.pod import Pod
from epp.model.pods.pods import Pods
from epp.model.quote import Quote
from epp.model.request import RequestId

_STALL_SECONDS: Final = 15.0
"""Seconds without a sign of life, while a prefill is overdue, after which an endpoint stalls."""
_STALL_FACTOR: Final = 3.0
"""The same, in multiples of what that prefill was predicted to take."""


class OutlierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The names and defaults are Envoy's, but for the share that may be ejected at once: half.

    `consecutive_failures` (Envoy: `consecutive_5xx`) in a row eject an endpoint; 0: nothing does,
    stalls neither. Times are in seconds.
    """

    consecutive_failures: int = 5
    base_ejection_time: float = 30.0
    max_ejection_time: float = 300.0


OUTLIERS: Final = OutlierSettings()
"""The defaults."""
OUTCOMES: Final = (FirstToken, Generated, Finished, Aborted, Unobserved)
"""Events that show what an endpoint makes of a request."""


def most_ejected(endpoints: int) -> int:
    """Return how many of so many endpoints of one role may be left out: half, but never all."""
    return max(0, min((endpoints + 1) // 2, endpoints - 1))


class OutlierDetection:
    """Finds out which of `pods` are to be left out, and when they return.

    What it finds it returns as events: they take effect by `apply`. `due` is the
    time of the next return, infinite while nobody is left out.
    """

    def __init__(self, pods: Pods, settings: OutlierSettings) -> None:
        self.due = inf
        self._pods: Final = pods
        self._settings: Final = settings
        self._changes = -1  # of `pods`, when they were last looked at

    # Events that were found.

    def observe(
        self, event: Event, in_flight: Mapping[RequestId, InFlightRequest], now: float
    ) -> Sequence[Ejected | Returned]:
        """Learn from an event, not a guess, that has not taken effect yet.

        A failure is that of the endpoint that served. Where another computes the prompt it is that
        of the decode endpoint, which answers for both. A first token is life in both.
        """
        if not isinstance(event, OUTCOMES) or not self._settings.consecutive_failures:
            return ()
        request = in_flight.get(event.request_id)
        if request is None:
            return ()
        match event:
            case FirstToken() | Finished() | Unobserved(begun=True):
                for part in request.parts:
                    part.pod.outlier.record_success(request.sent_at, now)
            case Generated():
                request.pod.outlier.alive_at = now
            case Aborted(failure=Failure() as failure):
                state, prompt = request.pod.outlier, prompt_key(request.quote)
                if state.record_failure(failure, prompt, request.sent_at, now):
                    return list(self._failed(request.pod))
            case _:
                pass
        return _revived([part.pod for part in request.parts])

    def reported(self, pod: Pod, before: Load, now: float) -> Sequence[Ejected | Returned]:
        """Compare a report of an endpoint with the one before; find out whether it stalls."""
        if not self._settings.consecutive_failures:
            return ()
        if shows_life(before, pod.load):
            pod.outlier.alive_at = now
            return _revived([pod])
        if not self._stalls(pod, now) or not self._room(pod):
            return ()
        seconds = self._settings.max_ejection_time
        return [Ejected(pod.endpoint.id, EjectionReason.STALL, seconds)]

    def returns(self, now: float) -> Sequence[Returned]:
        """Return the endpoints whose time is over, and those that are more than may be left out."""
        if now < self.due and self._changes == self._pods.changes:
            return ()
        self._changes = self._pods.changes
        ejected = [pod for pod in self._pods.values() if _out(pod)]
        self.due = min((pod.outlier.until for pod in ejected), default=inf)
        back = {pod.endpoint.id for pod in ejected if pod.outlier.until <= now}
        for role in {_role(pod) for pod in ejected}:
            peers = self._peers(role)
            out = sorted(filter(_out, peers), key=_until)
            surplus = max(0, len(out) - most_ejected(len(peers)))
            back.update(pod.endpoint.id for pod in out[:surplus])
        return [Returned(pod.endpoint.id) for pod in ejected if pod.endpoint.id in back]

    def _failed(self, pod: Pod) -> Iterator[Ejected | Returned]:
        """Eject an endpoint that failed once more, as long as there is one that does not."""
        needed = self._settings.consecutive_failures
        if pod.outlier.ejected is not None or pod.outlier.failures < needed:
            return
        peers = self._peers(_role(pod))
        if not any(not _out(each) and each.outlier.failures < needed for each in peers):
            # All fail: who was left out is as good as the others.
            for each in peers:
                if each.outlier.ejected is EjectionReason.FAILURES:
                    yield Returned(each.endpoint.id)
        elif self._room(pod):
            seconds = pod.outlier.ejection_seconds(
                self._settings.base_ejection_time, self._settings.max_ejection_time
            )
            yield Ejected(pod.endpoint.id, EjectionReason.FAILURES, seconds)

    def _stalls(self, pod: Pod, now: float) -> bool:
        """Whether an endpoint shows no life with a prefill long overdue, and another one does."""
        # An endpoint that only computes prompts for others is not seen to have done so.
        overdue = None if pod.partial else pod.ledger.overdue(now)
        if overdue is None or _out(pod):
            return False
        due, seconds = overdue
        since = max(due, pod.outlier.alive_at, pod.outlier.returned_at)
        if now - since <= max(_STALL_SECONDS, _STALL_FACTOR * seconds):
            return False
        peers = self._peers(_role(pod))
        lately = (since + now) / 2
        return any(each.outlier.alive_at > lately for each in peers if not _out(each))

    def _room(self, pod: Pod) -> bool:
        """Whether one more endpoint of its role may be left out."""
        peers = self._peers(_role(pod))
        return sum(map(_out, peers)) < most_ejected(len(peers))

    def _peers(self, role: str) -> list[Pod]:
        """Return the endpoints of a role that answer: of others it is known that they do not."""
        return [pod for pod in self._pods.values() if pod.reachable and _role(pod) == role]

    def apply(self, event: Ejected | Returned, now: float) -> None:
        """Leave an endpoint out, or have it be picked again. What is so already stays as it is."""
        pod = self._pods.get(event.endpoint_id)
        if pod is None or _out(pod) is isinstance(event, Ejected):
            return
        if isinstance(event, Ejected):
            pod.outlier.eject(event.reason, event.seconds, now)
            self.due = min(self.due, pod.outlier.until)
        else:
            pod.outlier.give_back(now)
        self._pods.refresh()


def _revived(pods: Sequence[Pod]) -> list[Ejected | Returned]:
    """Return those of some endpoints that stalled and have shown a sign of life since."""
    return [
        Returned(pod.endpoint.id)
        for pod in pods
        if pod.outlier.ejected is EjectionReason.STALL
        and pod.outlier.alive_at >= pod.outlier.ejected_at
    ]


def shows_life(before: Load, after: Load) -> bool:
    """Whether an engine did something between two reports. That more wait is others' doing."""
    return (
        after.waiting < before.waiting
        or after.running != before.running
        or after.kv_usage != before.kv_usage
        or after.cache_queries != before.cache_queries
        or after.cache_hits != before.cache_hits
    )


def prompt_key(quote: Quote) -> PromptKey | None:
    """Return what tells a request's prompts from others; None where they were not read."""
    if not quote.chains:
        return None
    chain = quote.chains[0]
    last = chain.hashes[-1] if len(chain.hashes) else 0
    return last, chain.rest_digest, chain.size


def _role(pod: Pod) -> str:
    return pod.endpoint.labels.get(ROLE_LABEL, "")


def _out(pod: Pod) -> bool:
    return pod.outlier.ejected is not None


def _until(pod: Pod) -> float:
    return pod.outlier.until
