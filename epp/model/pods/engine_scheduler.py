"""The model of an engine's scheduler: which prompts are in the cache, and which ones wait.

Mirrors vLLM v1/core/sched/scheduler.py: a request is scheduled once a step can reach it and its
whole prompt fits, first come, first served; one that outgrows the cache preempts the one that was
scheduled last, which waits again before all others.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from epp.model.caches.choice import CacheSpec
from epp.model.caches.contract import CacheModel, Lease
from epp.model.caches.kv_event_mirror import KvEventMirror
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.kv_changes import CacheCleared, CacheCopied, Change
from epp.model.pods.ledger import Ledger
from epp.model.pods.sequence import SequenceState
from epp.model.prefix_index.index import PrefixIndex, Slot
from epp.model.prompts.block_hashes import BlockHashes
from epp.model.prompts.hashing import BlockHash

NewMirror = Callable[[], KvEventMirror]

_MAX_BLOCKS: Final = 1 << 14
"""About how many blocks of waiting prompts one call schedules (10 ms), and the most blocks of one
waiting prompt that are in the index."""
_MANY_BLOCKS: Final = 1 << 12
"""Beyond this many blocks, all hashes of a cache are listed instead of looked up one by one."""


class EngineScheduler:
    """One endpoint's cache and the prompts in it; the index has its blocks under `slot`.

    `generation` counts replaced caches; a lease belongs to one generation. As of the last change,
    requests hold `held` of the `capacity` tokens. `waiting` has the prompts that are not scheduled
    yet. Their first blocks (262,144 tokens at 16 a block) are in the index too, because they will
    be cached before a later request is scheduled. `mirror` follows the engine's KV events, and
    `reported` has the blocks in them; both are None while no KV events are followed.
    """

    def __init__(self, index: PrefixIndex, ledger: Ledger, spec: CacheSpec) -> None:
        self.spec = spec
        self.generation = 0
        self.cache: CacheModel = spec.build()
        self.mirror: KvEventMirror | None = None
        self.reported: ReportedBlocks | None = None
        self.capacity = float(self.cache.capacity)
        self.held = 0.0
        self.slot: Slot = index.add_slot()
        self._forgotten: KvEventMirror | None = None  # its memory is freed step by step
        self._index = index
        self._ledger = ledger
        self._present = True
        self._prefix_closed = False
        self._withdrawn = 0  # blocks of a prompt that ended while it waited
        self._running: dict[SequenceState, None] = {}
        self.waiting: deque[SequenceState] = deque()
        self._promised = BlockHashes()  # of the prompts that wait

    @property
    def usage(self) -> float:
        """The share of the cache that running requests hold, in 0..1."""
        # vLLM v1/core/block_pool.py `get_usage`: blocks that are not in the free queue.
        capacity = self.cache.capacity
        return (capacity - self.cache.free) / capacity if capacity > 0 else 0.0

    @property
    def blocks(self) -> int:
        """How many blocks can be found: those in the cache, and those that only reports have."""
        return len(self.cache) + len(self._aside())

    def sequences(self) -> list[SequenceState]:
        """Return all prompts, those that run and those that wait."""
        return [*self._running, *self.waiting]

    # The cache.

    def detach(self) -> None:
        """Remove the endpoint from the index for good: no request is added from then on.

        Requests in flight no longer change anything.
        """
        mirrored = () if self.mirror is None else self.mirror.drain()
        self._index.remove_slot(self.slot, chain(self._found(), self._drained(), mirrored))
        self._present = False
        self._clear()

    def reset(self, spec: CacheSpec) -> None:
        """Replace the cache by an empty one; requests in flight no longer change anything."""
        self.spec = spec
        if self._present:
            self._index.remove_slot(self.slot, chain(self._found(), self._drained()))
            self.slot = self._index.add_slot()
            self._prefix_closed = False
        self._clear()

    def _clear(self) -> None:
        self.cache = self.spec.build()
        self.capacity = float(self.cache.capacity)
        if self.reported is not None:
            self.reported = ReportedBlocks(self.cache)
        self.held = 0.0
        self.generation += 1
        self._running, self.waiting, self._promised = {}, deque(), BlockHashes()

    def reconfigure(self, spec: CacheSpec, *, first: bool) -> None:
        """Apply `spec` to the cache, which starts empty if its model or block size changes.

        The `first` report describes the engine from its start, so its block size empties nothing.
        """
        same = replace(spec, capacity=self.spec.capacity, block=self.spec.block) == self.spec
        if not same or (spec.block != self.spec.block and not first):
            self.reset(spec)
            return
        self.spec = spec
        self.cache.block = spec.block
        self.cache.resize(spec.capacity)
        self.capacity = float(self.cache.capacity)
        self._update_index()

    def evict(self, share: float) -> None:
        """Evict a share (0..1) of the capacity; empty space counts towards it first."""
        capacity = self.cache.capacity
        self.cache.resize(capacity - int(capacity * share))
        self.cache.resize(capacity)
        self._update_index()

    def coarsen(self, blocks: int) -> None:
        """Drop at least `blocks` blocks, which saves memory and costs precision."""
        if self.reported is not None:
            blocks -= self.reported.coarsen(blocks)
        if blocks > 0:
            self.cache.coarsen(blocks)
        self._update_index()

    def store(self, sequence: SequenceState) -> None:
        """Add a prompt to the cache that the engine has reported as cached."""
        self.cache.store(sequence.chain.hashes, sequence.offsets.sizes())
        self._update_index()

    def shared_tokens(self, sequence: SequenceState, finished: Sequence[SequenceState]) -> int:
        """Return the most tokens that a prompt shares with a running or a `finished` one."""
        blocks = 0
        for other in chain(finished, self._running):
            blocks = sequence.common_blocks(other, blocks)
        return sequence.offsets.covered(blocks)

    def copy(self, event: CacheCopied | CacheCleared) -> None:
        """Correct the cache by a copy of another replica's, unless its engine reports."""
        if self.reported is not None:
            return
        if isinstance(event, CacheCopied):
            self.cache.discard(event.gone)
            self.cache.restore(event.hashes, event.sizes, closed=event.closed)
        else:
            for tier in (self.cache.offload_tier, self.cache):
                if tier is not None:
                    tier.discard(tier.hashes())
        self._update_index()

    def begin_reports(self, new_mirror: NewMirror) -> None:
        """Begin to follow KV events, if they are not followed already."""
        if self.mirror is None:
            self.mirror, self.reported = new_mirror(), ReportedBlocks(self.cache)

    def apply_change(self, change: Change) -> None:
        """Correct the cache by one of the engine's own KV events, if these are followed."""
        if self.mirror is not None and self.reported is not None:
            self.mirror.room = self.spec.capacity + self.spec.offload
            self.mirror.apply(change, self.reported)
            self._update_index()

    def purge(self) -> None:
        """Continue the work that current and former KV events have left."""
        for each in (self.mirror, self._forgotten):
            if each is not None and each.is_leaving:
                each.purge(self.cache if self.reported is None else self.reported)
                self._update_index()
        if self._forgotten is not None and not self._forgotten.is_leaving:
            self._forgotten = None

    def end_reports(self) -> None:
        """Stop following KV events, and leave the cache as it is."""
        if self.mirror is not None and self.reported is not None:
            held = self.reported.clear()
            self._update_index()
            self.mirror.forget(held)
            self._forgotten, self.mirror, self.reported = self.mirror, None, None

    # Requests. `step` is the duration of the engine's longest step, in seconds.

    def add_request(self, sequence: SequenceState, step: float, now: float) -> None:
        """Schedule a prompt, or let it wait; the ledger already has the request."""
        # vLLM `schedule`: waiting requests are taken first come, first served; the first that does
        # not fit ends the loop.
        if self.reported is not None and (sequence.chain.multimodal or not sequence.chain.exact):
            self.reported.expect_text()
        if self.waiting or not self._try_schedule(sequence, step, now):
            self.waiting.append(sequence)
            self._promise(sequence)
        self._update_index()

    def record_computed(self, sequence: SequenceState, computed: int) -> None:
        """Allocate for a request that has computed `computed` tokens, of prompt and output."""
        if computed <= sequence.computed or sequence.cache is not self.cache:
            return
        sequence.computed = computed
        # vLLM `schedule`: while `allocate_slots` returns None for a running request, the last one
        # is preempted, which may be the request itself.
        while not sequence.grow():
            self._preempt_last()
        self._update_index()

    def finish_request(self, sequence: SequenceState, *, revoked: bool) -> None:
        """Free a prompt; what it computed stays cached until it is evicted.

        `revoked`: the engine never computed it. The caller calls `schedule` afterwards.
        """
        if sequence.cache is not self.cache:
            return
        if sequence in self._running:
            del self._running[sequence]
            sequence.free(revoked=revoked)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._withdraw(sequence)
            self._withdrawn = len(sequence.chain.hashes)
            if not revoked and sequence.allocate(self.spec.block):
                sequence.free(revoked=False)  # it was computed, as its response has ended

    def cut_off(self, sequence: SequenceState, computed: int) -> None:
        """Free a prompt of which only the first `computed` tokens were computed.

        If the prompt still waits, none were. If the engine reports tokens, its reports decide
        instead. The caller calls `schedule` afterwards.
        """
        if sequence.cache is not self.cache:
            return
        waits = sequence.lease is None
        self.finish_request(sequence, revoked=True)
        if waits:
            return
        prompt, sizes = sequence.chain, sequence.offsets.sizes()
        hashes = prompt.hashes
        if self.reported is not None and prompt.exact and not prompt.multimodal:
            blocks = self.reported.known(hashes)
        else:
            blocks = bisect_right(sequence.offsets.ends, computed)
        # vLLM caches the full blocks of each chunk as it schedules the chunk.
        part = self.cache.allocate(hashes[:blocks], sizes[:blocks], 0, blocks)
        if part is not None:
            self.cache.release(part)

    def schedule(self, step: float, now: float) -> None:
        """Schedule waiting prompts that the engine has reached by now; update the index.

        A very long prompt is the last one that a call schedules.
        """
        blocks, self._withdrawn = self._withdrawn, 0
        while self.waiting and blocks < _MAX_BLOCKS:
            sequence = self.waiting[0]
            if not self._try_schedule(sequence, step, now):
                break
            blocks += len(sequence.chain.hashes)
            self._withdraw(self.waiting.popleft())
        self._update_index()

    def assign_hashes(
        self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]
    ) -> None:
        """Give hashes to blocks that a request of this cache has generated, of `sizes` tokens."""
        self.cache.assign_hashes(lease, hashes, sizes)
        self._update_index()

    def _try_schedule(self, sequence: SequenceState, step: float, now: float) -> bool:
        """Schedule a prompt if one step can reach it and it fits."""
        # vLLM `schedule`: a step computes at most `max_num_batched_tokens`, and the prompts before
        # this one come first.
        if not self._ledger.reaches(sequence.request_id, step, now):
            return False
        # vLLM `scheduler_reserve_full_isl`: admitted only if the whole prompt fits.
        if not sequence.allocate(self.spec.block):
            return False
        sequence.grow()
        self._running[sequence] = None
        return True

    def _preempt_last(self) -> None:
        # vLLM `_preempt_request`: under FCFS the last of `running` is preempted: its blocks are
        # freed, `num_computed_tokens` is 0, and it is put at the head of `waiting`.
        victim, _ = self._running.popitem()
        victim.preempt()
        self.waiting.appendleft(victim)
        self._promise(victim)

    def _promise(self, sequence: SequenceState) -> None:
        """Add a waiting prompt's first blocks to the index."""
        hashes = sequence.chain.hashes[:_MAX_BLOCKS]
        self._promised.add(hashes)
        self._index.add(self.slot, hashes)

    def _withdraw(self, sequence: SequenceState) -> None:
        """Remove a prompt that no longer waits from the index, except blocks that are cached."""
        hashes = sequence.chain.hashes[:_MAX_BLOCKS]
        alone = self._promised.remove(hashes)
        # A scheduled prompt is cached as a whole, which one look-up shows.
        if self.cache.match(hashes) == len(hashes):
            return
        cached = set(self.cache.hashes()) if len(hashes) > _MANY_BLOCKS else None
        match, aside = self.cache.match, self._aside()
        gone = [
            each
            for each in alone
            if each not in aside and not (match((each,)) if cached is None else each in cached)
        ]
        if gone:
            self._index.remove(self.slot, gone)

    def _update_index(self) -> None:
        """Apply to the index what the cache has stored and evicted since the last call."""
        cache, index, slot = self.cache, self._index, self.slot
        self.held = self.capacity - cache.free
        reported = self.reported
        changing = reported if reported is not None and reported.changing else None
        if changing is None and not cache.changed:
            return
        stored, evicted = cache.take_stored(), cache.take_evicted()
        if changing is not None:
            stored, evicted = changing.amend(stored, evicted)
        if not self._present:
            return
        if evicted:
            index.remove(slot, self._promised.missing(evicted) if self.waiting else evicted)
        if stored:
            index.add(slot, stored)
        closed = cache.closed and (reported is None or not reported.aside)
        if closed is not self._prefix_closed:
            self._prefix_closed = closed
            index.mark(slot, closed=self._prefix_closed)

    def _found(self) -> Iterator[BlockHash]:
        """Iterate over all blocks that the index has; they must not change meanwhile."""
        return chain(self.cache.hashes(), self._promised, self._aside())

    def _drained(self) -> Iterable[BlockHash]:
        """Yield the blocks of reports, and free them as they are read."""
        return () if self.reported is None else self.reported.drain()

    def _aside(self) -> Collection[BlockHash]:
        return () if self.reported is None else self.reported.aside
