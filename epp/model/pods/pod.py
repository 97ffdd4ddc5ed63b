"""One endpoint: its load, its reachability, the trust in predictions for it, and restarts."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from msgspec.structs import replace

from epp.model.caches.choice import CacheSpec, spec_of
from epp.model.endpoint import NO_ATTRIBUTES, UNREPORTED, CacheStats, Endpoint, Load
from epp.model.events import (
    AttributesReported,
    LoadReported,
    OrcaReported,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.kv_changes import (
    BlocksCleared,
    CacheChanged,
    CacheCleared,
    CacheCopied,
    CacheFeedLost,
    CacheFeedUp,
    CacheNews,
    Change,
    Cleared,
)
from epp.model.learning.prefill import Speed, steps
from epp.model.learning.trust import DOUBT, PredictionTrust, Verdict
from epp.model.pods.current_load import LoadBooks
from epp.model.pods.engine_scheduler import EngineScheduler, NewMirror
from epp.model.pods.growth import Growth
from epp.model.pods.idle_reports import FrozenReports, IdleReports, is_old
from epp.model.pods.ledger import Ledger
from epp.model.pods.outlier_state import OutlierState
from epp.model.pods.pace import Pace, PaceClass
from epp.model.pods.sequence import Admission, SequenceState
from epp.model.prefix_index.index import PrefixIndex, Slot
from epp.model.quote import Estimate, Quote
from epp.model.request import RequestId

_MAX_BROKEN: Final = 3
"""Scrapes in a row whose connections broke, after which an endpoint is unreachable."""
_MAX_SUSPECTS: Final = 5
"""Reports after which an unconfirmed suspicion of a restart is dropped."""
_EVICTED_SHARE: Final = 0.01
"""The share of the cache that is evicted after a prediction that was too high."""

PodEvent = LoadReported | AttributesReported | ScrapeFailed | CacheNews
"""Events of an endpoint itself, not of its requests."""


class Pod:
    """One endpoint: its requests, its load and the model of its cache.

    The cache is of the `unknown` spec until the endpoint has reported its own.
    """

    def __init__(  # noqa: PLR0913, PLR0915, PLR0917 (what all endpoints share; lines of fields)
        self,
        endpoint: Endpoint,
        index: PrefixIndex,
        of_class: PaceClass,
        new_mirror: NewMirror,
        unknown: CacheSpec,
        adapters: set[str],
    ) -> None:
        self.endpoint = endpoint
        self.partial = endpoint.partial
        """Whether its role does not serve whole requests."""
        self.pace = Pace(of_class)
        self.load: Load = UNREPORTED
        self.growth = Growth()
        self.ledger = Ledger()
        self.feedback = PredictionTrust()
        self.answered_at = -inf
        """When a response last began."""
        self.answers_apart = inf
        """Seconds between the beginnings of recent responses, on average."""
        self.reachable = True
        """Whether it can be connected to, and is awake."""
        self.outlier = OutlierState()
        self.idle_reports = IdleReports()
        self.frozen_reports = FrozenReports()
        self.home: list[Pod] = [self]
        """The pod, empty once it is removed: a reference that keeps no removed pod alive."""
        self.models: frozenset[str] | None = None
        """The models that it listed; None before."""
        self.max_model_lens: Mapping[str, int] = {}
        """The longest contexts of its models, in tokens, as far as it reported them."""
        self.serves_others = False
        """Whether it may serve more models than it listed."""
        self.scheduler = EngineScheduler(index, self.ledger, spec_of(endpoint, UNREPORTED, unknown))
        self.books = LoadBooks(self.ledger, self.scheduler, adapters)
        self.speed = of_class.prefill.speed(self.engine_block)
        self._new_mirror = new_mirror
        self.reported_block = 0
        """The size of the engine's blocks, in tokens, by its last report; 0 before the first."""
        self._suspects: list[SequenceState] = []
        self._broken = 0
        self._page_at = inf  # of a page whose requests count: responses renew a part of it only
        self._started_at: float | None = None
        self._queries = 0.0
        self._attributes: Mapping[str, float] = NO_ATTRIBUTES

    @property
    def slot(self) -> Slot:
        """The slot under which the index has its blocks."""
        return self.scheduler.slot

    @property
    def eligibility(self) -> tuple[Slot, Speed, bool]:
        """The facts that `EligiblePods` depends on."""
        return self.slot, self.speed, self.reachable

    @property
    def may_be_picked(self) -> bool:
        """Whether it answers and is not ejected."""
        return self.reachable and self.outlier.ejected is None

    @property
    def engine_block(self) -> int:
        """The size of the engine's blocks, in tokens."""
        return self.scheduler.spec.block

    def cache_stats(self) -> CacheStats:
        """Return the modelled state of the cache."""
        cache = self.scheduler.cache
        return CacheStats(
            self.endpoint,
            cache.capacity,
            cache.capacity - cache.free,
            cache.capacity - cache.blank,
            len(cache),
            self.feedback.trust,
            live=self.scheduler.mirror is not None,
        )

    def relabel(self, endpoint: Endpoint, of_class: PaceClass) -> None:
        """Set new labels of the same engine, which may change its class."""
        self.endpoint = endpoint
        self.partial = endpoint.partial
        if of_class.prefill is not self.speed.prefill:
            self.pace.join(of_class)
            self.speed = of_class.prefill.speed(self.speed.unit)

    def fits(self, model: str, tokens: int) -> bool | None:
        """Return whether a model's context here has room for `tokens`; None if not known."""
        limit = self.max_model_lens.get(model)
        return None if limit is None else tokens <= limit

    @property
    def running(self) -> float:
        """How many requests run, no matter who sent them, as far as is known."""
        return max(float(self.ledger.requests), self.ledger.running)

    def decode_seconds(self, running: float) -> float:
        """Return the seconds that this many decodes add to a step; 0 without any."""
        return self.pace.decode_seconds(running, self.books.held_tokens) if running > 0 else 0.0

    @property
    def step_ratio(self) -> float:
        """The duration of a step with what runs now, in multiples of one with a single sequence."""
        alone = self.pace.step_seconds(1.0, 0.0)
        return self.pace.step_seconds(max(1.0, self.running), self.books.held_tokens) / alone

    def slot_seconds(self, adapter: str, tokens: float) -> tuple[float, float]:
        """Return `LoadBooks.slot_seconds` for responses of this many tokens."""
        step = self.pace.step_seconds(max(1.0, self.running), self.books.held_tokens)
        return self.books.slot_seconds(adapter, tokens * step)

    def count_time(self, now: float) -> None:
        """Count the time up to now; call it before the running requests change."""
        prefilling = self.ledger.queued_seconds(now) > 0  # here: elsewhere it slows no step
        self.pace.count(self.running, self.books.held_tokens, now, prefilling=prefilling)

    # Its requests.

    def admit(
        self, quote: Quote, estimate: Estimate, now: float, *, decode_only: bool
    ) -> Admission:
        """Add a request to the books and the scheduler; the cache should save `estimate`.

        `decode_only`: another endpoint computes its prompts. If an error is raised, nothing of the
        request remains.
        """
        request_id, scheduler = quote.request_id, self.scheduler
        longest_step = self.pace.longest_step
        self.count_time(now)
        doubtful = estimate.matched > 0 and self.feedback.trust < DOUBT
        delayed = doubtful or self.books.waits_for_slot(quote.target_model)
        busy = delayed or self.load.waiting or self.ledger.queued_seconds(now)
        admission = Admission(met_idle=not busy)
        self.books.add_request(quote)
        try:
            if decode_only:
                self.ledger.admit_decode(request_id, now)
            else:
                admission.beside = self._admit_prefill(quote, estimate, now, delayed=delayed)
            for position, chain in enumerate(quote.chains):
                offsets = quote.token_offsets[position]
                sequence = SequenceState(request_id, chain, offsets, scheduler.cache)
                admission.sequences.append(sequence)
                scheduler.add_request(sequence, longest_step, now)
        except Exception:
            self.release(quote, admission, now, revoked=True)
            raise
        return admission

    def _admit_prefill(
        self, quote: Quote, estimate: Estimate, now: float, *, delayed: bool
    ) -> float:
        """Add a prefill to the ledger; return the seconds of the decodes in the same steps."""
        uncached = quote.tokens - estimate.cached
        beside = 0.0
        if quote.tokens:  # an engine prefills nothing for a GET
            beside = steps(uncached) * self.decode_seconds(self.running)
        slowness = self.pace.prefill_slowness
        self.ledger.admit(
            quote.request_id,
            slowness.value * estimate.seconds + beside,
            now,
            observed=quote.stream and bool(quote.tokens),
            tokens=uncached,
            beside=beside,
            slowness=slowness.by_first_prediction,
            delayed=delayed,
        )
        return beside

    def release(self, quote: Quote, admission: Admission, now: float, *, revoked: bool) -> None:
        """Free what a request holds; `revoked` if it was never computed here."""
        try:
            self.count_time(now)
        finally:
            self.ledger.end(quote.request_id, now)
            self.books.remove_request(quote)
            for sequence in admission.sequences:
                self.scheduler.finish_request(sequence, revoked=revoked)
                self.scheduler.schedule(self.pace.longest_step, now)

    @property
    def booked(self) -> set[RequestId]:
        """The requests in its books."""
        return self.ledger.request_ids | {each.request_id for each in self.scheduler.sequences()}

    def keep(self, quotes: Mapping[RequestId, Quote], now: float) -> None:
        """Remove all requests from its books but these."""
        for request in self.ledger.request_ids - quotes.keys():
            self.ledger.end(request, now)
        for sequence in self.scheduler.sequences():
            if sequence.request_id not in quotes:
                self.scheduler.finish_request(sequence, revoked=False)
        self.scheduler.schedule(self.pace.longest_step, now)
        self.books.recount(quotes.values())

    # Reports of the engine.

    def apply(self, event: PodEvent, now: float) -> None:
        """Apply one event of this endpoint."""
        match event:
            case LoadReported():
                self.report(event.load)
            case AttributesReported():
                self.add_attributes(event.attributes)
            case ScrapeFailed():
                self.record_failure(event.reason, now)
            case CacheChanged():
                self.follow(event.changes)
            case CacheCopied() | CacheCleared():
                self.scheduler.copy(event)
            case CacheFeedUp():
                self.follow(())
            case CacheFeedLost():
                self.scheduler.end_reports()

    def detach(self) -> None:
        """Remove the endpoint from the index; its requests no longer change anything."""
        self.home.clear()
        self.pace.join(PaceClass())
        self.scheduler.detach()

    def restart(self) -> None:
        """Start over with an empty cache, as the engine did."""
        self.scheduler.reset(self.scheduler.spec)
        self.feedback.restarted()

    def report(self, load: Load) -> None:
        """Apply a scrape: the cache's spec, restarts, reachability."""
        self.scheduler.purge()
        if self.frozen_reports.report(load, self.ledger.requests):
            load = load.uncounted(self.frozen_reports.changed_at)
        self.load = load if not self._attributes else self._with_attributes(load)
        self._page_at = load.at
        self._broken, self.reachable = 0, load.awake
        self._count_external()
        if (spec := spec_of(self.endpoint, load, self.scheduler.spec)) != self.scheduler.spec:
            self.scheduler.reconfigure(spec, first=not self.reported_block)
        if load.emptied:
            self.scheduler.copy(CacheCleared(self.endpoint.id))
        unit = (load.match_unit or spec.block) if load.caching else 0
        self.speed = self.speed.prefill.speed(unit)
        self.reported_block = spec.block
        if self._restarted(load) and not self._reports_blocks:
            self.restart()  # KV events report restarts themselves

    def add_attributes(self, attributes: Mapping[str, float]) -> None:
        """Set attributes from another source than the metrics page."""
        self._attributes = {**self._attributes, **attributes}
        self.load = self._with_attributes(self.load)

    def _with_attributes(self, load: Load) -> Load:
        return replace(load, attributes={**load.attributes, **self._attributes})

    @property
    def _reports_blocks(self) -> bool:
        """Whether KV events come; a stream of another topic, say, brings none."""
        mirror = self.scheduler.mirror
        return mirror is not None and mirror.follows

    def _restarted(self, load: Load) -> bool:
        """Detect a restart by a new start time, or by a counter that fell.

        Prometheus: a counter only falls when its process restarts.
        """
        started, queries = self._started_at, self._queries
        self._started_at = load.started_at or started
        self._queries = queries if load.cache_queries is None else load.cache_queries
        known = started is not None and load.started_at is not None
        return started != load.started_at if known else self._queries < queries

    def update_load(self, report: OrcaReported, now: float) -> None:
        """Set the parts of the load that a response's headers reported at `now`, in seconds."""
        named = {"kv_usage": report.kv_usage, "waiting": report.waiting, "running": report.running}
        known = {key: value for key, value in named.items() if value is not None}
        self.load = replace(self.load, at=now, **known)
        self._count_external()
        self.close_books(now, report)

    def close_books(self, now: float, part: OrcaReported | None = None) -> None:
        """Compare the last report, or what a part of one names, with the books of that moment."""
        step = self.pace.longest_step
        self.pace.fade(now)
        self.scheduler.schedule(step, now)
        load = self.load if part is None else self.books.complete(self.load, part, now)
        self.books.close(load, step, now)

    def follow(self, changes: Sequence[Change]) -> None:
        """Correct the cache by the engine's own KV events."""
        self.scheduler.begin_reports(self._new_mirror)
        for change in changes:
            if isinstance(change, BlocksCleared) and change.reason is Cleared.RESTART:
                self.restart()
            self.scheduler.apply_change(change)

    def _count_external(self) -> None:
        """Count requests of other senders, by a report and the ledger of the same moment."""
        self.ledger.running = self.load.running
        self.ledger.external_waiting = max(0.0, self.load.waiting - self.books.counted)

    def record_failure(self, reason: ScrapeFailure, now: float) -> None:
        """Apply a failed scrape: the endpoint is unreachable if it cannot be connected to.

        Requests of a report that has become too old (`is_old`) no longer count.
        """
        if is_old(replace(self.load, at=min(self.load.at, self._page_at)), reason, now):
            self.load, self._page_at = self.load.uncounted(self.load.at), inf
            self._count_external()
            self.close_books(now)
        match reason:
            case ScrapeFailure.NO_PAGE:
                self._broken, self.reachable = 0, True
            case ScrapeFailure.BROKEN:
                self._broken += 1
                self.reachable = self.reachable and self._broken < _MAX_BROKEN
            case ScrapeFailure.REFUSED:  # a server that is gone does not sleep
                self.load, self.reachable = replace(self.load, awake=True), False
            case ScrapeFailure.LATE:
                pass  # a busy server sends its page late

    def judge(self, predicted: int, actual: int, sequence: SequenceState) -> Verdict:
        """Compare predicted cached tokens with reported ones; correct the cache accordingly."""
        scheduler, suspicious = self.scheduler, self.feedback.suspicious
        self.feedback.reports_restarts = self._started_at is not None or self._reports_blocks
        fresh = scheduler.shared_tokens(sequence, self._suspects) if suspicious else 0
        early = _EVICTED_SHARE * scheduler.cache.capacity
        verdict = self.feedback.judge(predicted, actual, self.engine_block, fresh, early)
        self._suspects.append(sequence)
        if verdict is Verdict.RESTARTED:
            self.restart()
            for each in self._suspects:
                scheduler.store(each)
        elif verdict is Verdict.MISSED:
            scheduler.evict(_EVICTED_SHARE)
        if not self.feedback.suspicious or len(self._suspects) > _MAX_SUSPECTS:
            self.feedback.suspicious = False
            self._suspects.clear()
        return verdict
