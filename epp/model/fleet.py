"""The one mutable object: events go in, candidates come out.

It has one writer, on the event loop between awaits, and knows no clock: every call is told the
time, which never goes back.
"""

from collections.abc import Callable
from typing import Any, Final

from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.candidates import Candidates
from epp.model.endpoint import Endpoint, Load
from epp.model.estimate import Estimate
from epp.model.events import (
    Aborted,
    Admitted,
    EndpointRemoved,
    EndpointUpserted,
    Event,
    Finished,
    FirstToken,
    Generated,
    Listed,
    LoadReported,
    OrcaReported,
    ScrapeFailed,
    Served,
    Unobserved,
)
from epp.model.kernels import PrefixIndex, take_snapshot
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp
from epp.model.learning.busy_share import BusyShare
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.trust import DOUBT, Verdict
from epp.model.pods.cache_stats import CacheStats
from epp.model.pods.eligible import EligiblePods
from epp.model.pods.in_flight import InFlightRequest, PrefixLookup
from epp.model.pods.pod import Pod, PodEvent
from epp.model.pods.pods import Pods
from epp.model.pods.sequence import SequenceState
from epp.model.pods.unobserved import UnobservedRequests
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.reader import Prompts
from epp.model.request import InferenceRequest, RequestId, Usage


class Fleet:
    """What is believed of all endpoints. `hasher` names blocks; replicas share its secret.

    `capacity`, in tokens, is that of a cache whose endpoint has not said.
    """

    def __init__(self, hasher: BlockHasher, capacity: int = UNKNOWN_CAPACITY) -> None:
        self.synced = False
        self._prompts = Prompts(hasher)
        self._index = PrefixIndex()
        self._pods = Pods(self._index, hasher, capacity)
        self._in_flight: dict[RequestId, InFlightRequest] = {}
        self._answers = OutputLengths()
        self._unseen = UnobservedRequests()
        self._busy = BusyShare()
        self._asked: PrefixLookup | None = None

    # What others may ask.

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints there are."""
        return [pod.endpoint for pod in self._pods.values()]

    @property
    def indexed_blocks(self) -> int:
        """How many different blocks are believed to be held."""
        return len(self._index)

    def under_way(self, request: RequestId) -> bool:
        """Whether a request is believed to be at an endpoint."""
        return request in self._in_flight

    def loads(self) -> list[tuple[Endpoint, Load, bool]]:
        """Return each endpoint, what it last reported, and whether it answers."""
        return [(pod.endpoint, pod.load, pod.reachable) for pod in self._pods.values()]

    def cache_stats(self) -> list[CacheStats]:
        """Return what is believed of each endpoint's cache."""
        return [pod.cache_stats() for pod in self._pods.values()]

    def candidates(self, request: InferenceRequest, now: float) -> Candidates:
        """Return the endpoints that may be picked, with what is believed of them for a request.

        Endpoints outside the request's subset are left out; those that do not answer too, as
        long as there are others.
        """
        if now >= self._unseen.due:
            self._catch_up(now)
        lookup = self._ask(request)
        eligible = self._pods.eligible(request.subset)
        for pod in [pod for pod in eligible.pods if pod.scheduler.line]:
            pod.settle(now)
        self._find(lookup)
        estimates = lookup.estimates(eligible.places)
        trust = [pod.feedback.trust for pod in eligible.pods]
        if trust and min(trust) < DOUBT:
            self._discount(lookup, eligible, estimates)
        prices = [each.seconds for each in estimates]
        if not lookup.tokens:
            prices = [speed.prefill.step for _, speed in eligible.places]
        books = take_snapshot(eligible.ledgers, prices, now)
        self._busy.note(books[3], len(trust), now)
        loads = [pod.load for pod in eligible.pods]
        return Candidates(
            lookup, eligible.endpoints, loads, estimates, trust, books, self._busy.value
        )

    @staticmethod
    def _discount(lookup: PrefixLookup, eligible: EligiblePods, estimates: list[Estimate]) -> None:
        """Take what is predicted of each endpoint as far as it has done so before."""
        for position, (pod, estimate) in enumerate(zip(eligible.pods, estimates, strict=True)):
            cached = pod.feedback.discount(estimate.cached)
            if cached < estimate.cached:
                estimates[position] = lookup.discounted(estimate, cached, pod.speed)

    def _find(self, lookup: PrefixLookup) -> None:
        """Look up what every endpoint holds of the prompts."""
        match = self._index.match
        lookup.finds = [match(chain.hashes[: chain.lookup]) for chain in lookup.chains]

    def _ask(self, request: InferenceRequest) -> PrefixLookup:
        """Hash and measure a request's prompts, once for asking and admitting."""
        if self._asked is None or self._asked.request is not request:
            self._asked = self._prompts.read(request)
        return self._asked

    # What happens.

    def apply(self, event: Event, now: float) -> None:
        """Take in one event. Events about unknown endpoints or requests change nothing."""
        if now >= self._unseen.due:
            self._catch_up(now)
        _READERS[type(event)](self, event, now)

    def _catch_up(self, now: float) -> None:
        """Take in what has happened out of sight."""
        for at, event in self._unseen.advance(now):
            _READERS[type(event)](self, event, at)

    def _upsert(self, event: EndpointUpserted, _: float) -> None:
        if self._pods.upsert(event.endpoint):
            self._asked = None  # what was found goes by slots, and one of them is another's now

    def _remove(self, event: EndpointRemoved, _: float) -> None:
        self._pods.remove(event.endpoint_id)

    def _listed(self, _event: Listed, _: float) -> None:
        self.synced = True

    def _of_pod(self, event: PodEvent, _: float) -> None:
        pod = self._pods.get(event.endpoint_id)
        if pod is not None:
            before, block = pod.standing, pod.engine_block
            pod.hear(event)
            if pod.standing != before:
                self._pods.changed()
            if pod.engine_block != block:
                self._pods.resized(block, pod.engine_block)
                self._prompts.fit(self._pods.blocks)

    def _reported(self, event: LoadReported, now: float) -> None:
        self._of_pod(event, now)
        pod = self._pods.get(event.endpoint_id)
        if pod is not None and len(self._unseen):
            books = pod.ledger.requests, pod.ledger.prefilling(now)
            for over in self._unseen.counted(event.endpoint_id, event.load, books):
                self._aborted(over, now)

    def _orca(self, event: OrcaReported, now: float) -> None:
        pod = self._pods.at(event.target)
        if pod is not None:
            pod.overhear(event, now)

    def _admitted(self, event: Admitted, now: float) -> None:
        pod = self._pods.get(event.endpoint_id)
        if pod is None:
            return
        before = self._end(event.request.id)
        if before is not None:  # sent anew: it was not served where it was
            before.leave(now, revoked=True)
        lookup = self._ask(event.request)
        in_flight = InFlightRequest(event.request, lookup, now)
        self._in_flight[event.request.id] = in_flight
        self._enter(in_flight, pod, now)
        self._asked = None
        if self._index.excess:
            self._pods.fullest().scheduler.thin(self._index.excess)

    def _enter(self, in_flight: InFlightRequest, pod: Pod, now: float) -> None:
        lookup = in_flight.lookup
        if not lookup.finds or len(lookup.finds[0]) <= pod.slot:
            self._find(lookup)
        estimate = lookup.estimate(pod.slot, pod.speed)
        in_flight.cached, in_flight.found = estimate.cached, estimate.matched
        in_flight.met_idle = not pod.ledger.owed(now)
        observed = in_flight.request.stream and bool(lookup.tokens)
        pod.ledger.admit(in_flight.request.id, estimate.seconds, now, observed=observed)
        in_flight.pod = pod
        in_flight.sequences = [
            pod.enter(in_flight.request.id, chain, lookup.token_offsets[position], now)
            for position, chain in enumerate(lookup.chains)
        ]

    def _served(self, event: Served, now: float) -> None:
        in_flight = self._in_flight.get(event.request_id)
        pod = self._pods.at(event.target)
        if in_flight is None or pod is None or in_flight.pod.endpoint.target == event.target:
            return
        in_flight.leave(now, revoked=True)
        in_flight.lookup.finds = []
        self._enter(in_flight, pod, now)

    def _first_token(self, event: FirstToken, now: float) -> None:
        in_flight = self._in_flight.get(event.request_id)
        if in_flight is None:
            return
        in_flight.first_token(now)

    def _generated(self, event: Generated, _: float) -> None:
        in_flight = self._in_flight.get(event.request_id)
        if in_flight is not None:
            in_flight.progress(0, event.tokens)

    def _end(self, request: RequestId) -> InFlightRequest | None:
        """Close a request's visit, if there is one, whether it was seen to the end or not."""
        self._unseen.forget(request)
        return self._in_flight.pop(request, None)

    def _finished(self, event: Finished, now: float) -> None:
        in_flight = self._end(event.request_id)
        if in_flight is None:
            return
        usage = event.usage or Usage(completion_tokens=event.generated)
        sequences = in_flight.sequences
        if len(sequences) == 1:
            sequences[0].settle(self._prompts.learn(in_flight.request, in_flight.lookup, usage))
        in_flight.progress(usage.prompt_tokens, usage.completion_tokens)
        in_flight.end(self._answers, usage.completion_tokens, now)
        in_flight.leave(now, revoked=False)
        if len(sequences) == 1:
            self._learn(in_flight, sequences[0], usage)

    def _learn(self, in_flight: InFlightRequest, sequence: SequenceState, usage: Usage) -> None:
        """Take in how much of a prompt was cached, and what was generated after it."""
        pod, cached = in_flight.pod, usage.cached_tokens
        if (
            cached is not None
            and pod.judge(in_flight.cached, cached, sequence) is Verdict.RESTARTED
        ):
            self._pods.changed()
            return
        self._prompts.learn_prefix(in_flight.lookup, in_flight.found, cached or 0, pod.engine_block)
        self._prompts.remember(in_flight.request, pod, sequence, usage)

    def _aborted(self, event: Aborted, now: float) -> None:
        in_flight = self._end(event.request_id)
        if in_flight is None:
            return
        in_flight.progress(0, event.generated)
        sequences = in_flight.sequences
        in_flight.leave(now, revoked=event.refused)
        if len(sequences) == 1 and not event.refused:
            self._prompts.remember_broken(
                in_flight.request, in_flight.pod, sequences[0], event.generated
            )

    def _unobserved(self, event: Unobserved, now: float) -> None:
        in_flight = self._in_flight.get(event.request_id)
        if in_flight is not None and event.request_id not in self._unseen:
            self._unseen.take(in_flight.fade(self._answers, now))


_READERS: Final[dict[type[Event], Callable[[Fleet, Any, float], None]]] = {
    EndpointUpserted: Fleet._upsert,  # noqa: SLF001 (the table of this class)
    EndpointRemoved: Fleet._remove,  # noqa: SLF001
    Listed: Fleet._listed,  # noqa: SLF001
    LoadReported: Fleet._reported,  # noqa: SLF001
    ScrapeFailed: Fleet._of_pod,  # noqa: SLF001
    OrcaReported: Fleet._orca,  # noqa: SLF001
    Admitted: Fleet._admitted,  # noqa: SLF001
    Served: Fleet._served,  # noqa: SLF001
    FirstToken: Fleet._first_token,  # noqa: SLF001
    Generated: Fleet._generated,  # noqa: SLF001
    Finished: Fleet._finished,  # noqa: SLF001
    Aborted: Fleet._aborted,  # noqa: SLF001
    Unobserved: Fleet._unobserved,  # noqa: SLF001
    CacheChanged: Fleet._of_pod,  # noqa: SLF001
    CacheFeedUp: Fleet._of_pod,  # noqa: SLF001
    CacheFeedLost: Fleet._of_pod,  # noqa: SLF001
}
