"""The engine's scheduler as the picker models it: which prompts are in the cache, and which wait.

It follows vLLM v1/core/sched/scheduler.py: a request is scheduled once a step can reach it and
its whole prompt fits, first come, first served; one that outgrows the cache preempts the one that
was scheduled last, which waits again before all others.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain

from epp.model.caches.choice import CacheSpec
from epp.model.caches.contract import CacheModel
from epp.model.caches.kv_event_mirror import KvEventMirror
from epp.model.caches.lease import Lease
from epp.model.invariants import check
from epp.model.kv_changes import Change
from epp.model.pods.ledger import Ledger
from epp.model.pods.sequence import SequenceState
from epp.model.prefix_index import PrefixIndex, Slot
from epp.model.prompts.hashing import BlockHash


class EngineScheduler:
    """One endpoint's cache and the prompts in it; the index has its blocks under `slot`.

    `generation` counts the caches that there were: a lease is good for the one that made it.
    `waiting` has the prompts that are not scheduled yet. Their blocks are in the index as well:
    they will be in the cache by the time that a later request is scheduled.
    """

    def __init__(self, index: PrefixIndex, ledger: Ledger, spec: CacheSpec) -> None:
        self.spec = spec
        self.generation = 0
        self.cache: CacheModel = spec.build()
        self.slot: Slot = index.open()
        self._index = index
        self._ledger = ledger
        self._present = True
        self._closed = False
        self._running: dict[SequenceState, None] = {}
        self.waiting: deque[SequenceState] = deque()
        self._promised: Counter[BlockHash] = Counter()

    def __len__(self) -> int:
        return len(self._running) + len(self.waiting)

    # The cache.

    def detach(self) -> None:
        """Leave the index for good; requests still in flight change nothing any more."""
        self._index.close(self.slot, chain(self.cache, self._promised))
        self._present = False
        self._clear()

    def reset(self, spec: CacheSpec) -> None:
        """Start with an empty cache; requests still in flight change nothing any more."""
        self.spec = spec
        if self._present:
            self._index.close(self.slot, chain(self.cache, self._promised))
            self.slot = self._index.open()
            self._closed = False
        self._clear()

    def _clear(self) -> None:
        self.cache = self.spec.build()
        self.generation += 1
        self._running, self.waiting, self._promised = {}, deque(), Counter()

    def reconfigure(self, spec: CacheSpec, *, first: bool) -> None:
        """Take `spec` for what the cache is made of; another make is another, empty cache.

        What the `first` report says was so from the start: nothing is dropped for another block.
        """
        if _make(spec) != _make(self.spec) or not (first or spec.block == self.spec.block):
            self.reset(spec)
            return
        self.spec = spec
        self.cache.block = spec.block
        self.cache.resize(spec.capacity)
        self._update_index()

    def evict(self, share: float) -> None:
        """Evict a share (0..1) of the capacity, what was never used first."""
        capacity = self.cache.capacity
        self.cache.resize(capacity - int(capacity * share))
        self.cache.resize(capacity)
        self._update_index()

    def coarsen(self, blocks: int) -> None:
        """Remember fewer blocks, by so many, to save memory at the cost of precision."""
        self.cache.coarsen(blocks)
        self._update_index()

    def store(self, sequence: SequenceState) -> None:
        """Put a prompt that the engine has reported as cached into the cache."""
        self.cache.store(sequence.chain.hashes, sequence.offsets.sizes())
        self._update_index()

    def shared_tokens(self, sequence: SequenceState, finished: Sequence[SequenceState]) -> int:
        """Return the most tokens that a prompt shares with a running or a `finished` one."""
        others = chain(finished, self._running)
        return max((sequence.common_tokens(other) for other in others), default=0)

    def apply_change(self, mirror: KvEventMirror, change: Change) -> None:
        """Correct the cache by one of the engine's own KV events."""
        mirror.apply(change, self.cache)
        self._update_index()

    # Its requests. `step` is how long the engine's longest step takes, in seconds.

    def add_request(self, sequence: SequenceState, step: float, now: float) -> None:
        """Schedule a prompt, or let it wait; the ledger has booked the request already."""
        if self.waiting or not self._try_schedule(sequence, step, now):
            self.waiting.append(sequence)
            self._promise(sequence)
        self._update_index()

    def record_computed(self, sequence: SequenceState, computed: int) -> None:
        """Allocate for a request that has computed `computed` tokens, prompt and output."""
        if computed <= sequence.computed or sequence.cache is not self.cache:
            return
        sequence.computed = computed
        while not sequence.grow():
            self._preempt_last()
        self._update_index()

    def finish_request(self, sequence: SequenceState, *, revoked: bool) -> None:
        """Free a prompt: what it computed stays, to be evicted in its turn.

        `revoked`: the engine never computed it. `schedule` is called afterwards.
        """
        if sequence.cache is not self.cache:
            return
        if sequence in self._running:
            del self._running[sequence]
            sequence.free(revoked=revoked)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._withdraw(sequence)
            if not revoked and sequence.allocate(self.spec.block):
                sequence.free(revoked=False)  # it has ended, so that it was computed after all

    def schedule(self, step: float, now: float) -> None:
        """Schedule the waiting prompts that the engine has reached by now, and update the index."""
        while self.waiting and self._try_schedule(self.waiting[0], step, now):
            self._withdraw(self.waiting.popleft())
        self._update_index()

    def assign_hashes(
        self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]
    ) -> None:
        """Give hashes to what a request of this generation of the cache has generated."""
        self.cache.assign_hashes(lease, hashes, sizes)
        self._update_index()

    def _try_schedule(self, sequence: SequenceState, step: float, now: float) -> bool:
        """Schedule a prompt if one step can reach it and it fits."""
        if self._ledger.queued_seconds_before(sequence.request_id, now) >= step:
            return False
        if not sequence.allocate(self.spec.block):
            return False
        sequence.grow()
        self._running[sequence] = None
        return True

    def _preempt_last(self) -> None:
        # vLLM v1/core/sched/scheduler.py: under FCFS the last of `running` is preempted, and put
        # at the head of `waiting`.
        victim, _ = self._running.popitem()
        victim.preempt()
        self.waiting.appendleft(victim)
        self._promise(victim)

    def _promise(self, sequence: SequenceState) -> None:
        """Put a waiting prompt's blocks into the index."""
        self._promised.update(sequence.chain.hashes)
        if self._present:
            self._index.add(self.slot, sequence.chain.hashes)

    def _withdraw(self, sequence: SequenceState) -> None:
        """Take a prompt's blocks that are not cached out of the index: it waits no more."""
        self._promised -= Counter(sequence.chain.hashes)
        gone = [
            each
            for each in sequence.chain.hashes
            if each not in self._promised and not self.cache.match((each,))
        ]
        if self._present and gone:
            self._index.remove(self.slot, gone)

    def _update_index(self) -> None:
        """Put what the cache stored and evicted since into the index."""
        cache, index, slot = self.cache, self._index, self.slot
        stored, evicted = cache.take_stored(), cache.take_evicted()
        if not self._present:
            return
        if evicted:
            promised = self._promised
            index.remove(slot, [e for e in evicted if e not in promised] if promised else evicted)
        if stored:
            index.add(slot, stored)
        merged = cache.take_merged()
        if merged:
            index.widen(slot, merged)
        if cache.closed is not self._closed:
            self._closed = cache.closed
            index.mark(slot, closed=self._closed)

    # For tests.

    def indexed(self) -> set[BlockHash]:
        """Return the blocks that the index must have: those cached and those that wait."""
        return {*self.cache, *self._promised}

    def check_invariants(self) -> None:
        """Assert that the books of waiting and running prompts balance, and the cache's own."""
        waiting = [each for sequence in self.waiting for each in sequence.chain.hashes]
        held = [sequence.lease for sequence in self._running if sequence.lease is not None]
        check(
            promised_blocks=self._promised == Counter(waiting),
            waiting_hold_nothing=all(each.lease is None for each in self.waiting),
            running_hold_leases=len(held) == len(self._running),
        )
        check_cache = getattr(self.cache, "check_invariants", None)  # Python caches have one
        if check_cache is not None:
            check_cache(held)


def _make(spec: CacheSpec) -> tuple[str, str, int]:
    """Return what a cache cannot change without being another one."""
    return spec.model, spec.eviction, spec.offload
