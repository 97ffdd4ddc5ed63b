"""Everything that is believed of one endpoint: its load, its books, its cache."""

from collections import Counter, deque
from collections.abc import Sequence

from msgspec.structs import replace

from epp.model.belief import Belief
from epp.model.blockpool import BlockPool
from epp.model.blocks import TOKEN_BLOCK, BlockHash, BlockHasher, Chain
from epp.model.cache import CacheModel
from epp.model.endpoint import UNREPORTED, VLLM, Endpoint, Load
from epp.model.events import LoadReported, OrcaReported, ScrapeFailed
from epp.model.feedback import Feedback, Verdict
from epp.model.kvchange import (
    BlocksCleared,
    CacheChanged,
    CacheFeedLost,
    CacheFeedUp,
    Change,
    Cleared,
)
from epp.model.ledger import Ledger
from epp.model.mirror import Mirror
from epp.model.prefill import BUDGET_TOKENS, PrefillModel
from epp.model.prefixindex import PrefixIndex, Slot
from epp.model.request import RequestId
from epp.model.ruler import Measure
from epp.model.stay import Stay

UNKNOWN_CAPACITY = 1_000_000
"""Tokens of cache where an endpoint has not said: too much costs little, too little a lot."""

_SCRAPES_TO_DOUBT = 3
_PRESSURE = 0.01
"""What is evicted, as a share of the cache, for a prediction that promised too much."""


PodEvent = LoadReported | ScrapeFailed | CacheChanged | CacheFeedUp | CacheFeedLost
"""What an endpoint itself takes in, whatever requests do."""


class Pod:
    """One endpoint. Its cache's content is mirrored in the fleet's index under `slot`.

    `foreign` counts requests that waited there at the last report and are not this picker's;
    `engine_block` is the size of the engine's blocks, in tokens.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        index: PrefixIndex,
        prefill: PrefillModel,
        hasher: BlockHasher,
    ) -> None:
        self.endpoint = endpoint
        self.prefill = prefill
        self.load: Load = UNREPORTED
        self.ledger = Ledger()
        self.feedback = Feedback()
        self.slot: Slot = index.open()
        self.reachable = True
        self.foreign = 0.0
        self.engine_block = TOKEN_BLOCK
        self._knows_block = False
        self.cache: CacheModel = BlockPool(UNKNOWN_CAPACITY, self.engine_block)
        self.mirror: Mirror | None = None
        self._index = index
        self._hasher = hasher
        self._failures = 0
        self._started_at: float | None = None
        self._queries = 0.0
        self._running: dict[Stay, None] = {}
        self._waiting: deque[Stay] = deque()
        self._promised: Counter[BlockHash] = Counter()
        self._present = True

    def belief(self) -> Belief:
        """Say what is believed of the cache."""
        cache = self.cache
        used, trust = cache.capacity - cache.free, self.feedback.trust
        engine = self.load.engine or VLLM
        return Belief(
            self.endpoint, cache.capacity, used, len(cache), trust, engine, self.mirror is not None
        )

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
                self.unfollow()

    def leave(self) -> None:
        """The endpoint is gone; requests still under way change nothing any more."""
        self._index.close(self.slot, [*self.cache.hashes(), *self._promised])
        self._present = False

    def restart(self) -> None:
        """The engine began anew: its cache is empty."""
        self.mirror = None
        self._renew()

    def _renew(self) -> None:
        self._index.remove(self.slot, [*self.cache.hashes(), *self._promised])
        self._promised.clear()
        self._running.clear()
        self._waiting.clear()
        self.cache = BlockPool(self.cache.capacity, self.engine_block)
        self.feedback.restarted()

    def report(self, load: Load) -> None:
        """Take in a scrape: capacity, restarts, reachability."""
        self.load = load
        self._failures, self.reachable = 0, True
        self._count_foreign()
        self._reblock(load.block_size)
        capacity = load.capacity_tokens
        if capacity is not None and capacity != self.cache.capacity:
            self.cache.resize(capacity)
            self._mirror()
        if self._began_anew(load) and self.mirror is None:
            self.restart()  # an engine that is followed says so itself

    def _reblock(self, block: int | None) -> None:
        """Take in the size of the engine's blocks; another one than before is another engine."""
        if not block or block == self.engine_block:
            return
        first, self.engine_block = not self._knows_block, block
        self._knows_block = True
        if first and isinstance(self.cache, BlockPool):
            self.cache.block = block
        else:
            self.restart()

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
            self.mirror.apply(change, self.cache)
        self._mirror()

    def unfollow(self) -> None:
        """The engine says nothing any more: its cache is modelled from requests alone."""
        self.mirror = None

    def _count_foreign(self) -> None:
        """Compare a report with the books of the same moment; later they no longer go together."""
        self.foreign = max(0.0, self.load.waiting - self.ledger.requests)

    def fail(self, *, refused: bool) -> None:
        """Take in a scrape that failed: nobody at home at once, silence after three times."""
        self._failures += 1
        if refused or self._failures >= _SCRAPES_TO_DOUBT:
            self.reachable = False

    def judge(self, predicted: int, actual: int) -> Verdict:
        """Hold a prediction to what the engine reported, and correct the cache by it."""
        verdict = self.feedback.judge(predicted, actual, self.engine_block)
        if verdict is Verdict.RESTARTED:
            self.restart()
        elif verdict is Verdict.MISSED:
            capacity = self.cache.capacity
            self.cache.resize(capacity - int(capacity * _PRESSURE))
            self.cache.resize(capacity)
            self._mirror()
        return verdict

    # What its requests do.

    def enter(self, request: RequestId, chain: Chain, measure: Measure, now: float) -> Stay:
        """Let a prompt in as the engine will: once it is scheduled, and where it fits.

        What waits is promised: it will be there by the time that a later request is scheduled.
        The ledger knows the request already.
        """
        stay = Stay(request, chain, measure, self.cache)
        if self._waiting or not self._admit(stay, now):
            self._waiting.append(stay)
            self._promise(stay)
        self._mirror()
        return stay

    def progress(self, stay: Stay, computed: int) -> None:
        """Follow a request that has computed so many tokens, prompt and output."""
        if computed <= stay.computed or stay.cache is not self.cache:
            return
        stay.computed = computed
        while not stay.grow():
            self._preempt()
        self._mirror()

    def exit(self, stay: Stay, now: float, *, revoked: bool) -> None:
        """Let a prompt out: what it computed stays, to be evicted in its turn.

        `revoked`: the engine never computed it.
        """
        if stay.cache is not self.cache:
            return
        if stay in self._running:
            del self._running[stay]
            stay.end(revoked=revoked)
        elif stay in self._waiting:
            self._waiting.remove(stay)
            self._keep_promise(stay)
            if not revoked and stay.try_admit(self.engine_block):
                stay.end(revoked=False)  # its end says that it was there after all
        self.settle(now)

    def settle(self, now: float) -> None:
        """Let in those in line that are scheduled by now, and tell the index."""
        while self._waiting and self._admit(self._waiting[0], now):
            self._keep_promise(self._waiting.popleft())
        self._mirror()

    @property
    def waiting(self) -> int:
        """How many prompts wait to be let in."""
        return len(self._waiting)

    def name(self, stay: Stay, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Name what a request generated here."""
        if stay.cache is self.cache:
            stay.name(hashes, sizes)
            self._mirror()

    def _admit(self, stay: Stay, now: float) -> bool:
        """Schedule a prompt if one step can reach it, and it fits."""
        step = self.prefill.seconds(BUDGET_TOKENS, 0)
        if self.ledger.owed_before(stay.request, now) >= step:
            return False
        if not stay.try_admit(self.engine_block):
            return False
        stay.grow()
        self._running[stay] = None
        return True

    def _preempt(self) -> None:
        """Put the request that was let in last back in line (vLLM's scheduler, FCFS)."""
        victim, _ = self._running.popitem()
        victim.put_back()
        self._waiting.appendleft(victim)
        self._promise(victim)

    def _promise(self, stay: Stay) -> None:
        self._promised.update(stay.chain.hashes)
        if self._present:
            self._index.add(self.slot, stay.chain.hashes)

    def _keep_promise(self, stay: Stay) -> None:
        """Take back a promise: what was let in is held now, the rest is not."""
        self._promised -= Counter(stay.chain.hashes)
        gone = [
            each
            for each in stay.chain.hashes
            if each not in self._promised and not self.cache.match((each,))
        ]
        if self._present and gone:
            self._index.remove(self.slot, gone)

    def _mirror(self) -> None:
        stored, evicted = self.cache.take_stored(), self.cache.take_evicted()
        if not self._present:
            return
        if self._promised:
            evicted = [each for each in evicted if each not in self._promised]
        # A block may be evicted and stored anew in one step, never the other way round.
        self._index.remove(self.slot, evicted)
        self._index.add(self.slot, stored)
