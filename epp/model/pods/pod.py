"""Everything that is believed of one endpoint: its load, its books, its cache."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from epp.model.caches.choice import CacheSpec, eviction_of, model_of
from epp.model.caches.kv_event_mirror import Mirror
from epp.model.endpoint import UNREPORTED, Endpoint, Load
from epp.model.events import LoadReported, OrcaReported, ScrapeFailed
from epp.model.kernels import Ledger, PrefixIndex
from epp.model.kv_changes import (
    BlocksCleared,
    CacheChanged,
    CacheFeedLost,
    CacheFeedUp,
    Change,
    Cleared,
)
from epp.model.learning.prefill import PrefillModel, Speed
from epp.model.learning.trust import PredictionTrust, Verdict
from epp.model.pods.cache_stats import CacheStats
from epp.model.pods.engine_scheduler import EngineScheduler
from epp.model.pods.sequence import SequenceState
from epp.model.prefix_index import Slot
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.chain import Chain
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import RequestId

_SCRAPES_TO_DOUBT: Final = 3
_MOST_SINCE: Final = 3
"""Reports after which a suspicion that nothing has confirmed is dropped."""
_PRESSURE: Final = 0.01
"""What is evicted, as a share of the cache, for a prediction that promised too much."""

PodEvent = LoadReported | ScrapeFailed | CacheChanged | CacheFeedUp | CacheFeedLost
"""What an endpoint itself takes in, whatever requests do."""


class Pod:
    """One endpoint.

    `home` holds it as long as it is there: who remembers the list keeps nothing alive that is gone.
    Its cache is taken to be an `unknown` one until it has said what it is.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        index: PrefixIndex,
        prefill: PrefillModel,
        hasher: BlockHasher,
        unknown: CacheSpec,
    ) -> None:
        self.endpoint = endpoint
        self.prefill = prefill
        self.load: Load = UNREPORTED
        self.ledger = Ledger()
        self.feedback = PredictionTrust()
        self.reachable = True
        self.home: list[Pod] = [self]
        self.mirror: Mirror | None = None
        self.scheduler = EngineScheduler(index, self.ledger, self._spec(UNREPORTED, unknown))
        self.speed = prefill.speed(self.engine_block)
        self._hasher = hasher
        self._heard = False
        self._since: list[SequenceState] = []
        self._failures = 0
        self._started_at: float | None = None
        self._queries = 0.0

    @property
    def slot(self) -> Slot:
        """Where the index has its blocks."""
        return self.scheduler.slot

    @property
    def standing(self) -> tuple[Slot, Speed, bool]:
        """What a roster takes for granted of it."""
        return self.slot, self.speed, self.reachable

    @property
    def engine_block(self) -> int:
        """The size of the engine's blocks, in tokens."""
        return self.scheduler.spec.block

    def cache_stats(self) -> CacheStats:
        """Say what is believed of the cache."""
        cache, spec = self.scheduler.cache, self.scheduler.spec
        return CacheStats(
            self.endpoint,
            cache.capacity,
            cache.capacity - cache.free,
            len(cache),
            self.feedback.trust,
            spec.model,
            live=self.mirror is not None,
        )

    def rename(self, endpoint: Endpoint, prefill: PrefillModel) -> None:
        """Take in what else is said of the endpoint, which may be of another class now."""
        self.endpoint, self.prefill = endpoint, prefill
        self.speed = prefill.speed(self.speed.unit)

    # What is heard of the engine.

    def hear(self, event: PodEvent) -> None:
        """Take in one event of this endpoint."""
        match event:
            case LoadReported():
                self.report(event.load)
            case ScrapeFailed():
                self.fail(refused=event.refused)
            case CacheChanged():
                self.follow(event.changes)
            case CacheFeedUp():
                self.follow(())
            case CacheFeedLost():
                self.mirror = None

    def leave(self) -> None:
        """The endpoint is gone; requests still under way change nothing any more."""
        self.home.clear()
        self.scheduler.leave()

    def restart(self) -> None:
        """The engine began anew: its cache is empty."""
        self.mirror = None
        self._renew()

    def _renew(self) -> None:
        self.scheduler.renew(self.scheduler.spec)
        self.feedback.restarted()

    def report(self, load: Load) -> None:
        """Take in a scrape: the cache's make, restarts, reachability."""
        self.load = load
        self._failures, self.reachable = 0, True
        self._count_foreign()
        spec = self._spec(load, self.scheduler.spec)
        if spec != self.scheduler.spec:
            self.scheduler.fit(spec, first=not self._heard)
        self.speed = self.prefill.speed((load.match_unit or spec.block) if load.caching else 0)
        self._heard = True
        if self._began_anew(load) and self.mirror is None:
            self.restart()  # an engine that is followed says so itself

    def _spec(self, load: Load, before: CacheSpec) -> CacheSpec:
        """Say what the cache is made of; what is not reported is as it was `before`."""
        labels, second = self.endpoint.labels, load.offload_tokens
        return CacheSpec(
            model=model_of(labels, load.engine),
            capacity=load.capacity_tokens or before.capacity,
            block=load.block_size or before.block,
            eviction=eviction_of(labels),
            offload=self.endpoint.offload_tokens or 0 if second is None else second,
        )

    def _began_anew(self, load: Load) -> bool:
        """Tell a restart from another start time, or from a counter that went back."""
        started, queries = self._started_at, self._queries
        self._started_at = load.started_at or started
        self._queries = queries if load.cache_queries is None else load.cache_queries
        if started is not None and load.started_at is not None:
            return started != load.started_at
        return self._queries < queries

    def overhear(self, report: OrcaReported, now: float) -> None:
        """Take in what a response's headers said of the load."""
        named = {"kv_usage": report.kv_usage, "waiting": report.waiting, "running": report.running}
        known = {key: value for key, value in named.items() if value is not None}
        self.load = replace(self.load, at=now, **known)
        self._count_foreign()

    def follow(self, changes: Sequence[Change]) -> None:
        """Correct the cache by what the engine says of it."""
        if self.mirror is None:
            self.mirror = Mirror(self._hasher, "")
        for change in changes:
            if isinstance(change, BlocksCleared) and change.reason is Cleared.RESTART:
                self._renew()
            self.scheduler.follow(self.mirror, change)

    def _count_foreign(self) -> None:
        """Compare a report with the books of the same moment; later they no longer go together."""
        self.ledger.running = self.load.running
        self.ledger.external_waiting = max(0.0, self.load.waiting - self.ledger.requests)

    def fail(self, *, refused: bool) -> None:
        """Take in a scrape that failed: nobody at home at once, silence after three times."""
        self._failures += 1
        if refused or self._failures >= _SCRAPES_TO_DOUBT:
            self.reachable = False

    def judge(self, predicted: int, actual: int, sequence: SequenceState) -> Verdict:
        """Hold a prediction to what the engine reported, and correct the cache by it."""
        fresh = self.scheduler.fresh(sequence, self._since) if self.feedback.suspicious else 0
        verdict = self.feedback.judge(predicted, actual, self.engine_block, fresh)
        self._since.append(sequence)
        if verdict is Verdict.RESTARTED:
            self.restart()
            for each in self._since:
                self.scheduler.believe(each)
        elif verdict is Verdict.MISSED:
            self.scheduler.press(_PRESSURE)
        if not self.feedback.suspicious or len(self._since) > _MOST_SINCE:
            self.feedback.suspicious = False
            self._since.clear()
        return verdict

    # What its requests do.

    def enter(
        self, request: RequestId, chain: Chain, offsets: TokenOffsets, now: float
    ) -> SequenceState:
        """Let a prompt in, or put it in line; the ledger knows its request already."""
        sequence = SequenceState(request, chain, offsets, self.scheduler.cache)
        self.scheduler.enter(sequence, self.prefill.longest, now)
        return sequence

    def progress(self, sequence: SequenceState, computed: int) -> None:
        """Follow a request that has computed so many tokens, prompt and output."""
        self.scheduler.progress(sequence, computed)

    def exit(self, sequence: SequenceState, now: float, *, revoked: bool) -> None:
        """Let a prompt out; `revoked` where the engine never computed it."""
        self.scheduler.exit(sequence, revoked=revoked)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Let in those in line that are scheduled by now."""
        self.scheduler.settle(self.prefill.longest, now)
