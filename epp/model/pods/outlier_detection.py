"""Outlier detection: endpoints that fail or stall are left out for a while, as in Envoy.

An endpoint is ejected after several failures in a row, for `base_ejection_time` times the number of
its ejections in a row. One that accepts requests but does nothing is ejected too, until it shows
life. At most half of the endpoints of a role are left out: one that fails as all do is not an
outlier.

Responses count in the order in which their requests were sent (`OutlierState`).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, log
from typing import Final

from epp.model.endpoint import ROLE_LABEL, UNREPORTED, EndpointId, Load
from epp.model.events import Ejected, EjectionReason, ReportsFrozen, Returned, ScrapeFailure
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
"""Up to this share of failures at the other endpoints, the configured row is long enough."""
_MAX_SHARE: Final = 0.99
_STALL_SECONDS: Final = 15.0
"""Seconds without a sign of life, while a prefill is overdue, after which an endpoint stalls."""
_STALL_FACTOR: Final = 3.0
"""The same in multiples of the predicted seconds of that prefill; the longer time counts."""
_SLOW_SECONDS: Final = 1.0
"""If an endpoint shows life this many seconds after a request, and the proxy tries another one, it
may only be slow: proxies that hedge requests wait this long, and failures are mostly faster."""

Outcome = FirstToken | Generated | Finished | Aborted | Unobserved
"""An event that shows how an endpoint serves a request."""
Found = Ejected | Returned | ReportsFrozen
"""A finding about an endpoint."""

# Looked up once: docs/adr/0013-compiled.md says why.
_STALL: Final = EjectionReason.STALL
_BUSY: Final = Failure.BUSY


def most_ejected(endpoints: int) -> int:
    """Return how many of this many endpoints of one role may be left out: half, rounded down."""
    return endpoints // 2


class OutlierDetection:
    """Finds out from requests in flight which of `pods` to leave out, and when they return.

    Its findings are events, which take effect by `apply`. `due` is the time of the next return,
    infinite while none is left out. `names_served`: the proxy reports which endpoints served
    requests.
    """

    def __init__(
        self,
        pods: Pods,
        in_flight: Mapping[RequestId, InFlightRequest],
        settings: OutlierSettings,
    ) -> None:
        self.due = inf
        self.names_served = False
        self._pods: Final = pods
        self._in_flight: Final = in_flight
        self._settings: Final = settings
        self._changes = -1  # of `pods`, when they were last looked at

    # Findings.

    def observe(self, event: Outcome, now: float) -> Sequence[Found]:
        """Learn from an observed event, not a guessed one, before it takes effect.

        A failure counts against the endpoint that served the request. It does not count if the
        proxy names such endpoints and named none. If other endpoints encode or compute the prompt,
        it counts against the decode endpoint, which answers for all of them. That lasts until the
        decode endpoint serves a request (`_moved`), or another of them turns out to be gone
        (`_lost`). A first token is a sign of life of all.
        """
        request = self._in_flight.get(event.request_id)
        if request is None:
            return ()
        if isinstance(event, Aborted):
            return self._blamed(event, request)
        prefill = request.prefill
        moved: Sequence[Found] = ()
        if isinstance(event, Generated):
            request.pod.outlier.alive_at = now
        elif not isinstance(event, Unobserved) or event.begun:
            moved = self._succeeded(request, now)
        revived = _revived(request.pod)
        if prefill is not None:
            revived += _revived(prefill.pod)
        return [*moved, *revived] if moved else revived

    def _succeeded(self, request: InFlightRequest, now: float) -> Sequence[Found]:
        ended = request.pod.outlier.record_success(request.sent_at, now)
        if request.prefill is not None:
            request.prefill.pod.outlier.record_success(request.sent_at, now)
        if request.encode is not None:
            request.encode.pod.outlier.record_success(request.sent_at, now)
        return self._moved(ended) if ended else ()

    def _moved(self, ended: Sequence[FailedRequest]) -> list[Found]:
        """Count failures of a decode endpoint that is well against the stages before it instead.

        A row that is long enough for an ejection is not moved: the failures may be its own.
        """
        found: dict[EndpointId, Pod] = {}
        if len(ended) >= self._settings.consecutive_failures:
            return []
        for each in ended:
            for pod in [pod for pod in self._pods.values() if pod.outlier in each.stages]:
                if not each.slow:
                    pod.outlier.count_failure(pod.ledger.sent)
                failed = FailedRequest(each.sent_at, each.prompt, slow=each.slow)
                if pod.outlier.record_failure(failed, self._unanswered(pod)):
                    found[pod.endpoint.id] = pod
        return [event for pod in found.values() for event in self._eject_failing(pod)]

    def _blamed(self, event: Aborted, request: InFlightRequest) -> Sequence[Found]:
        """Learn from the end of a request, if an endpoint is to blame."""
        failure = event.failure
        if failure is None or failure is _BUSY or (self.names_served and not event.served):
            return ()
        return self._record_failure(request, failure)

    def passed_over(self, request: InFlightRequest) -> Sequence[Found]:
        """Learn that the proxy retried a request at another endpoint than the first one.

        It retries after any failure, or while a slow first try goes on (Envoy's
        `hedge_on_per_try_timeout`); slow tries need a longer row. An endpoint that has never served
        a request is not blamed: the proxy may not know it yet.
        """
        state = request.pod.outlier
        if not state.has_served:
            return ()
        slow = state.alive_at >= request.sent_at + _SLOW_SECONDS
        return self._record_failure(request, Failure.ERROR, slow=slow)

    def _record_failure(
        self, request: InFlightRequest, failure: Failure, *, slow: bool = False
    ) -> Sequence[Found]:
        """Record a failure at the endpoint that answered.

        An error may be the request's own fault, so it never counts if the prompt is not known. A
        failure that may only be `slow` is left out of the share of failures.
        """
        prompt = prompt_key(request.quote) if failure is Failure.ERROR else None
        if not self._settings.consecutive_failures or (failure is Failure.ERROR and prompt is None):
            return ()
        stages, pod = [each.pod.outlier for each in request.parts[1:]], request.pod
        for each in stages:
            each.blamed = True
        if not slow:
            pod.outlier.count_failure(pod.ledger.sent)
        failed = FailedRequest(request.sent_at, prompt, stages, slow=slow)
        counts = pod.outlier.record_failure(failed, self._unanswered(pod))
        return list(self._eject_failing(pod)) if counts else []

    def _unanswered(self, pod: Pod) -> Iterator[float]:
        """Yield when an endpoint's unanswered requests were sent.

        There may be thousands, so they are looked up only as needed.
        """
        for name in pod.ledger.request_ids:
            other = self._in_flight.get(name)
            if other is not None and other.began is None:
                yield other.sent_at

    def reported(self, pod: Pod, before: Load, now: float) -> Sequence[Found]:
        """Compare an endpoint's report with the one before, to find out whether it stalls."""
        frozen = pod.frozen_reports
        if frozen.proven and not frozen.told:
            frozen.told = True
            return [ReportsFrozen(pod.endpoint.id, now - pod.load.at)]
        if shows_life(before, pod.load):
            pod.outlier.alive_at = now
            return _revived(pod)
        return self._stalled(pod, now)

    def missed(self, pod: Pod, reason: ScrapeFailure, now: float) -> Sequence[Found]:
        """Find out, after a scrape without a page, whether an endpoint stalls, or is gone.

        A late page counts as one with the same figures as the last one.
        """
        if not pod.reachable:
            return self._lost(pod)
        return self._stalled(pod, now) if reason is ScrapeFailure.LATE else ()

    def _stalled(self, pod: Pod, now: float) -> Sequence[Ejected]:
        enabled = self._settings.consecutive_failures
        if not enabled or not self._stalls(pod, now) or not self._may_eject(pod):
            return ()
        seconds = self._settings.max_ejection_time
        return [Ejected(pod.endpoint.id, EjectionReason.STALL, seconds)]

    def _lost(self, pod: Pod) -> Sequence[Returned]:
        """Take back failures of other endpoints on requests of which a lost one had a stage.

        Its server is gone, and may have been gone when those requests failed.
        """
        if not pod.outlier.blamed:
            return ()
        pod.outlier.blamed = False
        found = []
        for each in self._pods.values():
            if each.outlier.failures:
                each.outlier.forgive(pod.outlier)
                failing = each.outlier.failures >= self._settings.consecutive_failures
                if each.outlier.ejected is EjectionReason.FAILURES and not failing:
                    found.append(Returned(each.endpoint.id))
        return found

    def returns(self, now: float) -> Sequence[Returned]:
        """Return the endpoints whose time is over, and those that exceed the allowed number."""
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

    def _eject_failing(self, pod: Pod) -> Iterator[Found]:
        """Eject an endpoint that failed once more, if another one does not fail."""
        needed = self._settings.consecutive_failures
        if pod.outlier.failures < needed:
            return
        peers = self._peers(_role(pod))
        if not any(not _out(each) and each.outlier.failures < needed for each in peers):
            # All fail: those that were left out are as good as the others.
            for each in peers:
                if each.outlier.ejected is EjectionReason.FAILURES:
                    yield Returned(each.endpoint.id)
        elif self._may_eject(pod) and pod.outlier.failures >= needed * _times_longer(peers, pod):
            seconds = pod.outlier.ejection_seconds(
                self._settings.base_ejection_time, self._settings.max_ejection_time
            )
            yield Ejected(pod.endpoint.id, EjectionReason.FAILURES, seconds)

    def _stalls(self, pod: Pod, now: float) -> bool:
        """Whether an endpoint with a long overdue prefill shows no life while a peer does."""
        # If an endpoint only computes prompts for others, its progress is not seen.
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

    def _may_eject(self, pod: Pod) -> bool:
        """Whether one more endpoint of its role may be left out."""
        peers = self._peers(_role(pod))
        return sum(map(_out, peers)) < most_ejected(len(peers))

    def _peers(self, role: str) -> list[Pod]:
        """Return the reachable endpoints of a role; unreachable ones are left out anyway."""
        return [pod for pod in self._pods.values() if pod.reachable and _role(pod) == role]

    def apply(self, event: Found, now: float) -> None:
        """Leave an endpoint out, or let it be picked again; do nothing if this is already done.

        `ReportsFrozen` changes nothing here: `Pod.report` itself ignores reports of a copied page.
        """
        pod = self._pods.get(event.endpoint_id)
        if isinstance(event, ReportsFrozen) or pod is None:
            return
        if _out(pod) is isinstance(event, Ejected):
            return
        if isinstance(event, Ejected):
            pod.outlier.eject(event.reason, event.seconds, now)
            self.due = min(self.due, pod.outlier.until)
        else:
            pod.outlier.uneject(now)
        self._pods.refresh()


def _times_longer(peers: Sequence[Pod], pod: Pod) -> float:
    """Return how many times longer a row must be if all other endpoints fail now and then, too.

    At the lowest share of failures among them, the longer row must be as unlikely as the usual row
    is at a share of one in ten.
    """
    others = [each for each in peers if each is not pod and not _out(each)]
    share = min((each.outlier.share(each.ledger.sent) for each in others), default=0.0)
    return log(_USUAL_SHARE) / log(min(_MAX_SHARE, max(_USUAL_SHARE, share)))


def _revived(pod: Pod) -> list[Found]:
    """Return an endpoint if it was ejected for a stall and has shown a sign of life since."""
    state = pod.outlier
    revived = state.ejected is _STALL and state.alive_at >= state.ejected_at
    return [Returned(pod.endpoint.id)] if revived else []


def shows_life(before: Load, after: Load) -> bool:
    """Whether an engine did something between two reports, or slept at one of them.

    More waiting requests are the clients' doing. Numbers of requests show nothing if they only
    count at one of the reports (`Load.counted`).
    """
    requests = (
        after.waiting < before.waiting
        or after.running != before.running
        or after.kv_usage != before.kv_usage
    )
    return (
        not (before.awake and after.awake)
        or (requests and (before.counted is after.counted or before is UNREPORTED))
        or after.cache_queries != before.cache_queries
        or after.cache_hits != before.cache_hits
    )


def prompt_key(quote: Quote) -> PromptKey | None:
    """Return a key of a request's prompt; None if no prompt was read."""
    if not quote.chains:
        return None
    chain = quote.chains[0]
    last = chain.hashes[-1] if len(chain.hashes) else 0
    return last, chain.rest_digest, chain.size


def _role(pod: Pod) -> str:
    return pod.endpoint.labels.get(ROLE_LABEL, "")


def _out(pod: Pod) -> bool:
    return pod.outlier.ejected is not None
