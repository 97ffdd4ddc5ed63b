"""Outlier detection: endpoints that fail or stall are left out for a while, as Envoy does it.

An endpoint is ejected after some failures in a row: for `base_ejection_time` times the number of
ejections in a row. One that accepts requests and does nothing is ejected too, until it shows life.
At most half of a role is left out: an endpoint that fails as all others do is not an outlier.

What a response shows counts by when its request was sent (`OutlierState`).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, log
from typing import Final

from epp.model.endpoint import ROLE_LABEL, Load
from epp.model.events import Ejected, EjectionReason, Returned, ScrapeFailure
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.outlier_settings import OutlierSettings
from epp.model.pods.outlier_state import FailedRequest, PromptKey
from epp.model.pods.pod import Pod
from epp.model.pods.pods import Pods
from epp.model.quote import Quote
from epp.model.request import RequestId
from epp.model.request_events import (
    Aborted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    Unobserved,
)

_USUAL_SHARE: Final = 0.1
"""Up to this share of failures at the others a row of failures says what it says."""
_MAX_SHARE: Final = 0.99
_STALL_SECONDS: Final = 15.0
"""Seconds without a sign of life, while a prefill is overdue, after which an endpoint stalls."""
_STALL_FACTOR: Final = 3.0
"""The same, in multiples of what that prefill was predicted to take."""
_SLOW_SECONDS: Final = 1.0
"""Seconds after which an endpoint that shows life may only be slow, if the proxy asks another one
too: so long a proxy waits that hedges requests. A failure seldom takes as long."""

Outcome = FirstToken | Generated | Finished | Aborted | Unobserved
"""An event that shows what an endpoint makes of a request."""

# Looked up once: docs/adr/0013-compiled.md says why.
_STALL: Final = EjectionReason.STALL


def most_ejected(endpoints: int) -> int:
    """Return how many of this many endpoints of one role may be left out: half, rounded down."""
    return endpoints // 2


class OutlierDetection:
    """Finds out which of `pods` are to be left out, and when they return.

    What it finds it returns as events: they take effect by `apply`. `due` is the
    time of the next return, infinite while none is left out. `names_served`: the proxy reports
    who served requests.
    """

    def __init__(self, pods: Pods, settings: OutlierSettings) -> None:
        self.due = inf
        self.names_served = False
        self._pods: Final = pods
        self._settings: Final = settings
        self._changes = -1  # of `pods`, when they were last looked at

    # Events that were found.

    def observe(
        self, event: Outcome, in_flight: Mapping[RequestId, InFlightRequest], now: float
    ) -> Sequence[Ejected | Returned]:
        """Learn from an event, not a guess, that has not taken effect yet.

        A failure is that of the endpoint that served; of none, if the proxy would have named it.
        If another computes the prompt it is that of the decode endpoint, which answers for both,
        unless it proves to be gone. A first token is life in both.
        """
        if not self._settings.consecutive_failures:
            return ()
        request = in_flight.get(event.request_id)
        if request is None:
            return ()
        parts = request.parts
        match event:
            case FirstToken() | Finished() | Unobserved(begun=True):
                for part in parts:
                    part.pod.outlier.record_success(request.sent_at, now)
            case Generated():
                request.pod.outlier.alive_at = now
            case Aborted(failure=Failure() as failure, served=served):
                if (served or not self.names_served) and self._counts(request, failure, in_flight):
                    return list(self._failed(request.pod))
            case _:
                pass
        return _revived([part.pod for part in parts])

    def passed_over(
        self, request: InFlightRequest, in_flight: Mapping[RequestId, InFlightRequest]
    ) -> Sequence[Ejected | Returned]:
        """Learn that the proxy tried again, and not where a request was sent first.

        It does so after a failure, of whatever kind; or beside the first try, if that takes long
        (Envoy's `hedge_on_per_try_timeout`), which takes a longer row. To an endpoint that has
        served nothing so far it may only not know the way yet.
        """
        state = request.pod.outlier
        if not self._settings.consecutive_failures or not state.has_served:
            return ()
        slow = state.alive_at >= request.sent_at + _SLOW_SECONDS
        if not self._counts(request, Failure.ERROR, in_flight, slow=slow):
            return ()
        return list(self._failed(request.pod))

    def _counts(
        self,
        request: InFlightRequest,
        failure: Failure,
        in_flight: Mapping[RequestId, InFlightRequest],
        *,
        slow: bool = False,
    ) -> bool:
        """Record a failure at the endpoint that answered; return whether it counts.

        An error may be the request's own fault: of a prompt that is not known it never counts. One
        that may only be `slow` is in no share of failures.
        """
        prompt = prompt_key(request.quote) if failure is Failure.ERROR else None
        if failure is Failure.ERROR and prompt is None:
            return False
        prefill = None if request.prefill is None else request.prefill.pod.endpoint.id
        if request.prefill is not None:
            request.prefill.pod.outlier.blamed = True
        pod = request.pod
        if not slow:
            pod.outlier.count_failure(pod.ledger.sent)
        return pod.outlier.record_failure(
            FailedRequest(request.sent_at, prompt, prefill, slow=slow),
            _others_unanswered(request, in_flight),
        )

    def reported(self, pod: Pod, before: Load, now: float) -> Sequence[Ejected | Returned]:
        """Compare a report of an endpoint with the one before; find out whether it stalls."""
        if shows_life(before, pod.load):
            pod.outlier.alive_at = now
            return _revived([pod])
        return self._unchanged(pod, now)

    def missed(self, pod: Pod, reason: ScrapeFailure, now: float) -> Sequence[Ejected | Returned]:
        """Find out, after a scrape without a page, whether an endpoint stalls, or is gone.

        That the page is late says as much as one that shows the figures of the last one.
        """
        if not pod.reachable:
            return self._lost(pod)
        return self._unchanged(pod, now) if reason is ScrapeFailure.LATE else ()

    def _unchanged(self, pod: Pod, now: float) -> Sequence[Ejected]:
        enabled = self._settings.consecutive_failures
        if not enabled or not self._stalls(pod, now) or not self._room(pod):
            return ()
        seconds = self._settings.max_ejection_time
        return [Ejected(pod.endpoint.id, EjectionReason.STALL, seconds)]

    def _lost(self, pod: Pod) -> Sequence[Returned]:
        """Take back what others were blamed for while an endpoint computed prompts for them.

        The server is gone, and may have been when those requests failed.
        """
        if not pod.outlier.blamed:
            return ()
        pod.outlier.blamed = False
        found = []
        for each in self._pods.values():
            if each.outlier.failures:
                each.outlier.forgive(pod.endpoint.id)
                failing = each.outlier.failures >= self._settings.consecutive_failures
                if each.outlier.ejected is EjectionReason.FAILURES and not failing:
                    found.append(Returned(each.endpoint.id))
        return found

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
            out = sorted(filter(_out, peers), key=lambda pod: pod.outlier.until)
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
        elif self._room(pod) and pod.outlier.failures >= needed * _times_longer(peers, pod):
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
            pod.outlier.uneject(now)
        self._pods.refresh()


def _others_unanswered(
    request: InFlightRequest, in_flight: Mapping[RequestId, InFlightRequest]
) -> Iterator[float]:
    """Yield when the other requests were sent that its endpoint has and did not answer yet.

    There may be thousands: who takes none asks for none.
    """
    for name in request.pod.ledger.request_ids:
        other = in_flight.get(name)
        if other is not None and other is not request and other.began is None:
            yield other.sent_at


def _times_longer(peers: Sequence[Pod], pod: Pod) -> float:
    """Return how many times longer a row has to be where all others fail as well, now and then.

    It is to be as unlikely, at the share in which the best of them does, as it is at one in ten.
    """
    others = [each for each in peers if each is not pod and not _out(each)]
    share = min((each.outlier.share(each.ledger.sent) for each in others), default=0.0)
    return log(_USUAL_SHARE) / log(min(_MAX_SHARE, max(_USUAL_SHARE, share)))


def _revived(pods: list[Pod]) -> list[Ejected | Returned]:
    """Return those of some endpoints that stalled and have shown a sign of life since."""
    return [
        Returned(pod.endpoint.id)
        for pod in pods
        if pod.outlier.ejected is _STALL and pod.outlier.alive_at >= pod.outlier.ejected_at
    ]


def shows_life(before: Load, after: Load) -> bool:
    """Whether an engine did something between two reports, or was asleep and had not to.

    That more wait is others' doing.
    """
    return (
        not (before.awake and after.awake)
        or after.waiting < before.waiting
        or after.running != before.running
        or after.kv_usage != before.kv_usage
        or after.cache_queries != before.cache_queries
        or after.cache_hits != before.cache_hits
    )


def prompt_key(quote: Quote) -> PromptKey | None:
    """Return what tells a request's prompts from others; None if they were not read."""
    if not quote.chains:
        return None
    chain = quote.chains[0]
    last = chain.hashes[-1] if len(chain.hashes) else 0
    return last, chain.rest_digest, chain.size


def _role(pod: Pod) -> str:
    return pod.endpoint.labels.get(ROLE_LABEL, "")


def _out(pod: Pod) -> bool:
    return pod.outlier.ejected is not None
