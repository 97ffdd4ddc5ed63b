"""The fleet, the one mutable object of the model: events go in, candidates come out.

`Fleet.apply` takes events from outside; those that the fleet guesses or finds itself join them in
`Fleet._take`. `Fleet.subscribe` notifies listeners of all of them. If the fleet fails on an event,
the changes made so far stay, listeners are notified, and the error goes to `on_fault` instead of
the sender.

It has one writer, on the event loop between awaits, and does not read the clock: every call is
given the time in seconds, which never decreases.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final, cast

from epp.errors import FAULTS
from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.candidate import Candidate
from epp.model.candidates import price
from epp.model.endpoint import CacheStats, Endpoint, Load
from epp.model.ends import RequestEnds, keep_those_at, lost_at, measured
from epp.model.events import (
    BooksCorrected,
    EndpointRemoved,
    EndpointUpserted,
    Event,
    LearnedCopied,
    Listed,
    LoadReported,
    ModelsListed,
    OrcaReported,
    ResponsesCopied,
    Returned,
    ScrapeFailed,
)
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.stored_responses import StoredResponses
from epp.model.listeners import Listener, Listeners, OnFault, reraise
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.ledger import BusyShare
from epp.model.pods.outlier_detection import Found, Outcome, OutlierDetection
from epp.model.pods.outlier_settings import OUTLIERS, OutlierSettings
from epp.model.pods.pod import Pod, PodEvent
from epp.model.pods.pods import Pods
from epp.model.pods.uncertainty import Uncertainty
from epp.model.pods.unobserved import UnobservedRequests
from epp.model.prefix_index.index import BUDGET, PrefixIndex
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.reader import Prompts
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import (
    Aborted,
    Admitted,
    Finished,
    FirstToken,
    Generated,
    ResponseNamed,
    Served,
    Unobserved,
)


class Fleet:
    """The state of all endpoints and of the requests at them.

    Fleets that share the secret of `hasher` admit each other's quotes. `capacity`, in tokens, is
    the default for endpoints that have not reported theirs; `outliers` controls when failing
    endpoints are left out. The index takes at most about `index_bytes`. `synced`: all endpoints
    were listed. `pods`, `in_flight`, `output_lengths` and `responses` are read-only. Errors in
    events and listeners go to `on_fault`, after requests that end are released; by default it
    raises them.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        capacity: int = UNKNOWN_CAPACITY,
        outliers: OutlierSettings = OUTLIERS,
        on_fault: OnFault = reraise,
        index_bytes: int = BUDGET,
    ) -> None:
        self.synced = False
        self._on_fault: Final = on_fault
        self._prompts: Final = Prompts(hasher)
        self._index: Final = PrefixIndex(index_bytes)
        self._full_bytes: Final = 0.96 * index_bytes  # more remains than is forgotten at once
        self.pods: Final = Pods(self._index, hasher, capacity)
        self.in_flight: Final[dict[RequestId, InFlightRequest]] = {}
        self.output_lengths: Final = OutputLengths()
        self.responses: Final = StoredResponses(hasher.response_key)
        self._unobserved: Final = UnobservedRequests()
        self._uncertainty: Final = Uncertainty(self._prompts, self.output_lengths)
        self._busy: Final = BusyShare()
        self._outliers: Final = OutlierDetection(self.pods, self.in_flight, outliers)
        self._ends: Final = RequestEnds(
            self._prompts, self.output_lengths, self.pods, ejects=outliers.consecutive_failures > 0
        )
        self._listeners: Final = Listeners()
        self._on_repeated: Final = self._take
        self._version = 0  # counts changes of the index, and of the inputs of predictions

    # Queries.

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints."""
        return [pod.endpoint for pod in self.pods.values()]

    @property
    def indexed_blocks(self) -> int:
        """How many different blocks the index has."""
        return len(self._index)

    @property
    def full(self) -> bool:
        """Whether the index is nearly full, as it is while blocks are forgotten to save memory."""
        return self._index.used_bytes > self._full_bytes

    def needs_end(self, request: RequestId, now: float) -> bool:
        """Return whether a response that has begun must be observed to its end (`Uncertainty`)."""
        in_flight = self.in_flight.get(request)
        return in_flight is not None and self._uncertainty.needs_end(in_flight, now)

    def loads(self) -> list[tuple[Endpoint, Load, bool]]:
        """Return each endpoint, its last report, and whether it answers and is not ejected."""
        return [(pod.endpoint, pod.load, pod.may_be_picked) for pod in self.pods.values()]

    def cache_stats(self) -> list[CacheStats]:
        """Return the modelled state of each endpoint's cache."""
        return [pod.cache_stats() for pod in self.pods.values()]

    def quote(self, request: InferenceRequest, now: float) -> Quote:
        """Hash a request's prompts and estimate their lengths, once for all later steps.

        Responses that the prompts repeat are learned from (`ResponseRepeated`).
        """
        if now >= self._unobserved.due:
            self._catch_up(now)
        chains, token_offsets, kind = self._prompts.read(request, now, self._on_repeated)
        return Quote(request, chains, token_offsets, kind)

    @property
    def ejects(self) -> bool:
        """Whether any endpoint is left out because it fails."""
        return self._outliers.due < inf

    def candidates(
        self, quote: Quote, now: float, *, whole: bool = False, ejected: bool = False
    ) -> list[Candidate]:
        """Return the endpoints that may be picked, with their predicted costs for a request.

        The model is first brought up to `now` (listeners may be notified), however old the quote
        is. Left out are endpoints outside its subset, and those that `Pods.eligible` leaves out.
        """
        if now >= self._unobserved.due:
            self._catch_up(now)
        if now >= self._outliers.due:
            self._take_all(self._outliers.returns(now), now)
        model = quote.target_model
        eligible = self.pods.eligible(quote.subset, model, whole=whole, ejected=ejected)
        # Prompts that an engine has reached since then are in its cache by now.
        for pod in [pod for pod in eligible.pods if pod.scheduler.waiting]:
            pod.scheduler.schedule(pod.pace.longest_step, now)
            self._version += 1
        quote.look_up(self._index, self._version)
        length = self.output_lengths.length(quote.response_kind, quote.output_limit)
        share = self.output_lengths.ttft_share.value
        context = self.pods.least_context(quote, self._prompts)
        slot = model in self.pods.adapters
        return price(quote, eligible, self._busy, share, length, context, now, takes_slot=slot)

    # Events.

    def subscribe(
        self,
        kinds: Iterable[type[Event]],
        listener: Listener,
        name: str = "listener",
        on_fault: OnFault | None = None,
    ) -> None:
        """Call `listener` with every event of these kinds, in order, after it took effect.

        This includes events that the fleet guesses for unobserved requests or finds in prompts. A
        listener must not call `apply`. Its errors are passed to `on_fault` with its name, by
        default to the fleet's.
        """
        self._listeners.add(kinds, listener, name, on_fault or self._on_fault)

    def unsubscribe(self, name: str) -> None:
        """Stop calling the listeners of a name."""
        self._listeners.remove(name)

    def apply(self, event: Event, now: float) -> None:
        """Apply one event. Events about unknown endpoints or requests change nothing."""
        if now >= self._unobserved.due:
            self._catch_up(now)
        if type(event) is Aborted:
            event = measured(event, self.in_flight, now)
        self._take(event, now)

    def _take(self, event: Event, now: float, *, guessed: bool = False) -> None:
        kind = type(event)
        found: Sequence[Found] = ()
        try:
            if guessed or kind not in _OUTCOMES:
                _HANDLERS[kind](self, event, now)
            else:
                found = self._take_outcome(event, now)
        except FAULTS as error:  # whatever the error, the rest goes on
            self._on_fault(f"fleet/{kind.__name__}", error)
        self._version += 1
        self._listeners.notify(event, now, guessed=guessed)
        if found:
            self._take_all(found, now)
        if self._outliers.due < inf and kind is not Returned:
            self._take_all(self._outliers.returns(now), now)

    def _take_outcome(self, event: Event, now: float) -> Sequence[Found]:
        try:
            return self._outliers.observe(cast(Outcome, event), now)
        finally:
            _HANDLERS[type(event)](self, event, now)

    def _take_all(self, events: Sequence[Event], now: float, *, guessed: bool = False) -> None:
        for event in events:
            self._take(event, now, guessed=guessed)

    def _catch_up(self, now: float) -> None:
        """Apply the events that are guessed to have happened unobserved up to now."""
        for at, event in self._unobserved.advance(now):
            self._take(event, at, guessed=True)

    def _upsert(self, event: EndpointUpserted, now: float) -> None:
        if self.pods.upsert(event.endpoint):
            self._take_all(self._unobserved.ends_at(event.endpoint.id, now), now, guessed=True)

    def _remove(self, event: EndpointRemoved, now: float) -> None:
        self.pods.remove(event.endpoint_id)
        self._take_all(self._unobserved.ends_at(event.endpoint_id, now), now, guessed=True)

    def _listed(self, _event: Listed, _: float) -> None:
        self.synced = True

    def _of_pod(self, event: PodEvent, now: float) -> None:
        if (pod := self.pods.get(event.endpoint_id)) is not None:
            before, block = pod.eligibility, pod.reported_block
            pod.apply(event, now)
            if pod.eligibility != before:
                self.pods.refresh()
            if pod.reported_block != block and self._prompts.align_blocks(self.pods.engine_blocks):
                self.pods.follow_anew()
            self.pods.save_memory()
            if isinstance(event, ScrapeFailed):
                self._take_all(self._outliers.missed(pod, event.reason, now), now)

    def _reported(self, event: LoadReported, now: float) -> None:
        if (pod := self.pods.get(event.endpoint_id)) is None:
            return
        before = pod.load
        self._of_pod(event, now)
        if not (pod.reachable and before.awake):  # a sleeping endpoint is not reachable
            pod.ledger.record_sleep(now)
        if len(self._unobserved) and pod.load.counted:
            booked, coming = pod.ledger.requests, pod.ledger.count_prefilling(now)
            over = self._unobserved.reconcile(event.endpoint_id, pod.load, booked, coming)
            self._take_all(over, now, guessed=True)
        if pod.idle_reports.report(pod.load) and (lost := lost_at(pod, self.in_flight)):
            self._take(BooksCorrected(event.endpoint_id, lost), now, guessed=True)
        pod.close_books(now)
        self._take_all(self._outliers.reported(pod, before, now), now)

    def _corrected(self, event: BooksCorrected, now: float) -> None:
        for request in event.requests:
            in_flight = self.in_flight.get(request)
            if in_flight is None or in_flight.is_over:
                self._take(Aborted(request), now, guessed=True)
        if (pod := self.pods.get(event.endpoint_id)) is not None:
            keep_those_at(pod, self.in_flight, now)

    def _orca(self, event: OrcaReported, now: float) -> None:
        in_flight = self.in_flight.get(event.request_id)
        if in_flight is None or in_flight.pod.endpoint.target != event.target:
            return
        # vLLM `orca_metrics.py`: all engines of a server have the same names, so one is reported.
        if in_flight.pod.endpoint.rank is None and in_flight.pod.load.ranks == 1:
            in_flight.pod.update_load(event, now)

    def _admitted(self, event: Admitted, now: float) -> None:
        quote = event.quote
        if (pod := self.pods.get(event.endpoint_id)) is None:
            return
        before = self._remove_request(quote.request_id)
        if before is not None:  # sent again: the first endpoint did not serve it
            before.release(now, revoked=True)
            self._version += 1
        in_flight = InFlightRequest(quote, pod, now)
        self.in_flight[quote.request_id] = in_flight
        try:
            encode_id = event.encode_endpoint_id
            if encode_id is not None and encode_id != event.prefill_endpoint_id:
                encode_pod = self.pods.get(encode_id)
                if encode_pod is not None and encode_pod is not pod:
                    self._send(in_flight.encode_at(encode_pod), encode_pod, now)
            if event.prefill_endpoint_id is not None:
                prefill_pod = self.pods.get(event.prefill_endpoint_id)
                if prefill_pod is not None and prefill_pod is not pod:
                    self._send(in_flight.disaggregate(prefill_pod), prefill_pod, now)
            self._send(in_flight, pod, now)
            in_flight.expect(self.output_lengths, 0)
        except Exception:
            self._remove_request(quote.request_id)
            in_flight.release(now, revoked=True)
            raise
        self.pods.save_memory()

    def _send(self, in_flight: InFlightRequest, pod: Pod, now: float) -> None:
        quote = in_flight.quote
        quote.look_up(self._index, self._version)  # a look-up of this version is kept
        in_flight.send(pod, quote.estimate(pod.slot, pod.speed), now)
        quote.drop_lookup()

    def _served(self, event: Served, now: float) -> None:
        self._outliers.names_served = True
        in_flight = self.in_flight.get(event.request_id)
        if in_flight is None or in_flight.pod.endpoint.target == event.target:
            return
        if (pod := self.pods.at(event.target, in_flight.pod.endpoint.rank)) is None:
            return
        if event.retried:
            self._take_all(self._outliers.passed_over(in_flight), now)
        in_flight.move(now)
        if in_flight.is_at(pod):
            in_flight.aggregate(now)
        self._send(in_flight, pod, now)
        in_flight.expect(self.output_lengths, 0)

    def _first_token(self, event: FirstToken, now: float) -> None:
        if (in_flight := self.in_flight.get(event.request_id)) is not None:
            in_flight.record_first_token(now)

    def _named(self, event: ResponseNamed, now: float) -> None:
        if (in_flight := self.in_flight.get(event.request_id)) is not None:
            self.responses.store(event.response_id, in_flight.pod.endpoint.engine, now)

    def _generated(self, event: Generated, now: float) -> None:
        if (in_flight := self.in_flight.get(event.request_id)) is not None:
            in_flight.go_on(event.pieces, self.output_lengths, now)

    def _remove_request(self, request: RequestId) -> InFlightRequest | None:
        self._unobserved.discard(request)
        return self.in_flight.pop(request, None)

    def _finished(self, event: Finished, now: float) -> None:
        if (in_flight := self._remove_request(event.request_id)) is not None:
            self._ends.finished(in_flight, event, now)

    def _aborted(self, event: Aborted, now: float) -> None:
        if (in_flight := self._remove_request(event.request_id)) is not None:
            self._ends.aborted(in_flight, event, now)

    def _left_unobserved(self, event: Unobserved, now: float) -> None:
        in_flight = self.in_flight.get(event.request_id)
        if in_flight is not None and event.request_id not in self._unobserved:
            self._unobserved.add(in_flight.leave_unobserved(self.output_lengths, now))


_OUTCOMES: Final = frozenset((FirstToken, Generated, Finished, Aborted, Unobserved))

_HANDLERS: Final[dict[type[Event], Callable[[Fleet, Any, float], None]]] = {
    EndpointUpserted: Fleet._upsert,  # noqa: SLF001 (the table of this class)
    EndpointRemoved: Fleet._remove,  # noqa: SLF001
    Listed: Fleet._listed,  # noqa: SLF001
    **dict.fromkeys(PodEvent.__args__, Fleet._of_pod),  # noqa: SLF001
    LoadReported: Fleet._reported,  # noqa: SLF001
    ModelsListed: lambda fleet, event, _: fleet.pods.list_models(event),
    OrcaReported: Fleet._orca,  # noqa: SLF001
    Admitted: Fleet._admitted,  # noqa: SLF001
    Served: Fleet._served,  # noqa: SLF001
    FirstToken: Fleet._first_token,  # noqa: SLF001
    ResponseNamed: Fleet._named,  # noqa: SLF001
    Generated: Fleet._generated,  # noqa: SLF001
    Finished: Fleet._finished,  # noqa: SLF001
    Aborted: Fleet._aborted,  # noqa: SLF001
    Unobserved: Fleet._left_unobserved,  # noqa: SLF001
    **dict.fromkeys(Found.__args__, lambda fleet, event, now: fleet._outliers.apply(event, now)),  # noqa: SLF001
    BooksCorrected: Fleet._corrected,  # noqa: SLF001
    ResponseRepeated: lambda fleet, event, _: fleet._prompts.assign_hashes(event),  # noqa: SLF001
    LearnedCopied: lambda fleet, event, now: fleet.pods.take_over(event, fleet.output_lengths, now),
    ResponsesCopied: lambda fleet, event, now: fleet.responses.take_over(event.stored, now),
}
