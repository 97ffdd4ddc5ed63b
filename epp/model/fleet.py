"""The one mutable object: events go in, candidates come out.

It has one writer, on the event loop between awaits, and knows no clock: every call is told the
time, which never goes back.
"""

from collections.abc import Callable
from math import exp
from typing import Any

from epp.model.blocks import BlockHasher
from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, EndpointId, Load, Target
from epp.model.events import (
    Aborted,
    Admitted,
    EndpointRemoved,
    EndpointUpserted,
    Event,
    Finished,
    FirstToken,
    Listed,
    LoadReported,
    OrcaReported,
    ScrapeFailed,
    Served,
    Unobserved,
)
from epp.model.pod import Pod
from epp.model.prefill import PrefillModel
from epp.model.prefixindex import PrefixIndex
from epp.model.request import InferenceRequest, RequestId
from epp.model.ruler import Rulers
from epp.model.visit import Asked, Visit

CLASS_LABEL = "warmpick.io/endpoint-class"
"""Endpoints with the same value of this label are taken to be equally fast."""

_BUSY_SECONDS = 10.0
_DECODE_SECONDS = 20e-6
"""What one running decode adds to a step (study, cost model A)."""
_MIN_LEARNED_TOKENS = 64


class Fleet:
    """What is believed of all endpoints. `hasher` names blocks; replicas share its secret."""

    def __init__(self, hasher: BlockHasher) -> None:
        self.synced = False
        self._hasher = hasher
        self._index = PrefixIndex()
        self._pods: dict[EndpointId, Pod] = {}
        self._by_target: dict[Target, Pod] = {}
        self._visits: dict[RequestId, Visit] = {}
        self._rulers = Rulers()
        self._prefill: dict[str, PrefillModel] = {}
        self._busy_share = 0.0
        self._busy_at = 0.0
        self._asked: Asked | None = None

    # What others may ask.

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints there are."""
        return [pod.endpoint for pod in self._pods.values()]

    @property
    def indexed_blocks(self) -> int:
        """How many different blocks are believed to be held."""
        return len(self._index)

    def loads(self) -> list[tuple[Endpoint, Load, bool]]:
        """Return each endpoint, what it last reported, and whether it answers."""
        return [(pod.endpoint, pod.load, pod.reachable) for pod in self._pods.values()]

    def candidates(self, request: InferenceRequest, now: float) -> list[Candidate]:
        """Return the endpoints that may be picked, with what is believed of them for a request.

        Endpoints outside the request's subset are left out; those that do not answer too, as
        long as there are others.
        """
        asked = self._ask(request)
        self._find(asked)
        pods = self._eligible(request.subset)
        owed = [pod.ledger.owed(now) for pod in pods]
        self._average_busy(owed, now)
        return [self._candidate(pod, asked, owes) for pod, owes in zip(pods, owed, strict=True)]

    def _find(self, asked: Asked) -> None:
        """Look up what every endpoint holds of the prompts."""
        match = self._index.match
        asked.finds = [match(chain.hashes[: chain.lookup]) for chain in asked.chains]

    def _eligible(self, subset: tuple[str, ...] | None) -> list[Pod]:
        pods = list(self._pods.values())
        if subset is not None:
            allowed = set(subset)
            pods = [
                pod
                for pod in pods
                if pod.endpoint.target in allowed or pod.endpoint.address in allowed
            ]
        return [pod for pod in pods if pod.reachable] or pods

    def _ask(self, request: InferenceRequest) -> Asked:
        """Hash a request's prompts, once for asking and admitting."""
        if self._asked is None or self._asked.request_id != request.id:
            model, salt = request.target_model, request.cache_salt
            chains = [self._hasher.chain(prompt, model, salt) for prompt in request.prompts]
            rulers = [self._rulers.of(model, chain) for chain in chains]
            self._asked = Asked(request.id, chains, rulers)
        return self._asked

    def _candidate(self, pod: Pod, asked: Asked, owed: float) -> Candidate:
        estimate = asked.estimate(pod)
        load, requests, prefill = pod.load, pod.ledger.requests, estimate.seconds
        if pod.foreign:
            # What others queued there is seen in scrapes alone: a floor, at this prompt's price.
            owed += pod.foreign * (prefill or pod.prefill.step)
        running = max(requests, load.running)
        return Candidate(
            endpoint=pod.endpoint,
            load=load,
            prompt_tokens=asked.tokens,
            cached_tokens=estimate.cached,
            matched_blocks=estimate.matched,
            total_blocks=asked.blocks,
            owed_seconds=owed,
            prefill_seconds=prefill,
            decode_seconds=_DECODE_SECONDS * running,
            requests=requests,
            busy_share=self._busy_share,
        )

    def _average_busy(self, owed: list[float], now: float) -> None:
        """Take note of how many of the endpoints that were asked for have prefill to do."""
        if owed:
            gain = 1.0 - exp(-max(0.0, now - self._busy_at) / _BUSY_SECONDS)
            busy = len(owed) - owed.count(0.0)
            self._busy_share += gain * (busy / len(owed) - self._busy_share)
            self._busy_at = now

    # What happens.

    def apply(self, event: Event, now: float) -> None:
        """Take in one event. Events about unknown endpoints or requests change nothing."""
        _READERS[type(event)](self, event, now)

    def _upsert(self, event: EndpointUpserted, _: float) -> None:
        endpoint = event.endpoint
        pod = self._pods.get(endpoint.id)
        if pod is not None:
            old = pod.endpoint
            if (old.uid, old.target) == (endpoint.uid, endpoint.target):
                pod.endpoint = endpoint
                pod.prefill = self._class_of(endpoint)
                return
            self._drop(pod)
        pod = Pod(endpoint, self._index, self._class_of(endpoint))
        self._asked = None  # what was found goes by slots, and one of them is another's now
        self._pods[endpoint.id] = pod
        self._by_target[endpoint.target] = pod

    def _class_of(self, endpoint: Endpoint) -> PrefillModel:
        name = endpoint.labels.get(CLASS_LABEL, "")
        return self._prefill.setdefault(name, PrefillModel())

    def _remove(self, event: EndpointRemoved, _: float) -> None:
        pod = self._pods.get(event.endpoint_id)
        if pod is not None:
            self._drop(pod)

    def _drop(self, pod: Pod) -> None:
        pod.leave()
        del self._pods[pod.endpoint.id]
        if self._by_target.get(pod.endpoint.target) is pod:
            del self._by_target[pod.endpoint.target]

    def _listed(self, _event: Listed, _: float) -> None:
        self.synced = True

    def _reported(self, event: LoadReported, _: float) -> None:
        pod = self._pods.get(event.endpoint_id)
        if pod is not None:
            pod.report(event.load)

    def _scrape_failed(self, event: ScrapeFailed, _: float) -> None:
        pod = self._pods.get(event.endpoint_id)
        if pod is not None:
            pod.fail(refused=event.refused)

    def _orca(self, event: OrcaReported, now: float) -> None:
        pod = self._by_target.get(event.target)
        if pod is not None:
            pod.overhear(event, now)

    def _admitted(self, event: Admitted, now: float) -> None:
        pod = self._pods.get(event.endpoint_id)
        if pod is None:
            return
        before = self._visits.pop(event.request.id, None)
        if before is not None:  # sent anew: it was not served where it was
            before.leave(0, now, revoked=True)
        asked = self._ask(event.request)
        visit = Visit(event.request, asked, now)
        self._visits[event.request.id] = visit
        self._enter(visit, pod, now)
        self._asked = None

    def _enter(self, visit: Visit, pod: Pod, now: float) -> None:
        asked = visit.asked
        if not asked.finds:
            self._find(asked)
        estimate = asked.estimate(pod)
        visit.cached = estimate.cached
        visit.met_idle = not pod.ledger.owed(now)
        observed = visit.request.stream and bool(asked.tokens)
        pod.ledger.admit(visit.request.id, estimate.seconds, now, observed=observed)
        visit.pod = pod
        visit.stays = [
            pod.enter(chain, ruler) for chain, ruler in zip(asked.chains, asked.rulers, strict=True)
        ]

    def _served(self, event: Served, now: float) -> None:
        visit = self._visits.get(event.request_id)
        pod = self._by_target.get(event.target)
        if visit is None or pod is None or visit.pod is pod:
            return
        visit.leave(0, now, revoked=True)
        visit.asked.finds = []
        self._enter(visit, pod, now)

    def _first_token(self, event: FirstToken, now: float) -> None:
        visit = self._visits.get(event.request_id)
        if visit is None:
            return
        pod = visit.pod
        pod.ledger.first_token(event.request_id, now)
        uncached = visit.asked.tokens - visit.cached
        if visit.met_idle and uncached >= _MIN_LEARNED_TOKENS:
            pod.prefill.learn(uncached, visit.cached, now - visit.sent_at)

    def _finished(self, event: Finished, now: float) -> None:
        visit = self._visits.pop(event.request_id, None)
        if visit is None:
            return
        usage = event.usage
        visit.leave(usage.completion_tokens if usage else event.generated, now, revoked=False)
        chains = visit.asked.chains
        if usage and usage.prompt_tokens and len(chains) == 1 and not chains[0].exact:
            model = visit.request.target_model
            self._rulers.learn(model, chains[0].size, usage.prompt_tokens)

    def _aborted(self, event: Aborted, now: float) -> None:
        visit = self._visits.pop(event.request_id, None)
        if visit is not None:
            visit.leave(event.generated, now, revoked=event.refused)

    def _unobserved(self, event: Unobserved, now: float) -> None:
        visit = self._visits.pop(event.request_id, None)
        if visit is not None:
            visit.fade(now)


_READERS: dict[type[Event], Callable[[Fleet, Any, float], None]] = {
    EndpointUpserted: Fleet._upsert,  # noqa: SLF001 (the table of this class)
    EndpointRemoved: Fleet._remove,  # noqa: SLF001
    Listed: Fleet._listed,  # noqa: SLF001
    LoadReported: Fleet._reported,  # noqa: SLF001
    ScrapeFailed: Fleet._scrape_failed,  # noqa: SLF001
    OrcaReported: Fleet._orca,  # noqa: SLF001
    Admitted: Fleet._admitted,  # noqa: SLF001
    Served: Fleet._served,  # noqa: SLF001
    FirstToken: Fleet._first_token,  # noqa: SLF001
    Finished: Fleet._finished,  # noqa: SLF001
    Aborted: Fleet._aborted,  # noqa: SLF001
    Unobserved: Fleet._unobserved,  # noqa: SLF001
}
