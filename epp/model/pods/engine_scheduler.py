"""Who is in an endpoint's cache, who waits to be, and what the fleet's index knows of it.

The scheduler's part of the engine (vLLM `v1/core/sched/scheduler.py`): a request is let in once
a step can reach it and its whole prompt fits, in the order of arrival; one that outgrows the cache
puts the one that was let in last back at the head of the line.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain

from epp.model.caches.choice import CacheSpec
from epp.model.caches.contract import CacheModel
from epp.model.caches.kv_event_mirror import Mirror
from epp.model.caches.lease import Lease
from epp.model.kernels import Ledger, PrefixIndex
from epp.model.kv_changes import Change
from epp.model.pods.sequence import SequenceState
from epp.model.prefix_index import Slot
from epp.model.prompts.block_hasher import BlockHash


class EngineScheduler:
    """One endpoint's cache and its requests. What it holds is in the index under `slot`.

    `generation` counts the caches that there were: leases are good for the one they are of. `line`
    has the prompts that wait to be let in.
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
        self.line: deque[SequenceState] = deque()
        self._promised: Counter[BlockHash] = Counter()

    def __len__(self) -> int:
        return len(self._running) + len(self.line)

    # The cache itself.

    def leave(self) -> None:
        """The endpoint is gone; requests still under way change nothing any more."""
        self._index.close(self.slot, chain(self.cache, self._promised))
        self._present = False
        self._empty()

    def renew(self, spec: CacheSpec) -> None:
        """Begin anew with an empty cache; requests still under way change nothing any more."""
        self.spec = spec
        if self._present:
            self._index.close(self.slot, chain(self.cache, self._promised))
            self.slot = self._index.open()
            self._closed = False
        self._empty()

    def _empty(self) -> None:
        self.cache = self.spec.build()
        self.generation += 1
        self._running, self.line, self._promised = {}, deque(), Counter()

    def fit(self, spec: CacheSpec, *, first: bool) -> None:
        """Take in what the cache is made of; another make than before is another cache.

        What the `first` report says was so all along: nothing is forgotten for it.
        """
        if _make(spec) != _make(self.spec) or not (first or spec.block == self.spec.block):
            self.renew(spec)
            return
        self.spec = spec
        self.cache.block = spec.block
        self.cache.resize(spec.capacity)
        self._mirror()

    def press(self, share: float) -> None:
        """Evict a share of the cache, blank space first: it holds less than was believed."""
        capacity = self.cache.capacity
        self.cache.resize(capacity - int(capacity * share))
        self.cache.resize(capacity)
        self._mirror()

    def thin(self, blocks: int) -> None:
        """Hold so many blocks fewer, for want of memory, at the cost of precision."""
        self.cache.coarsen(blocks)
        self._mirror()

    def believe(self, sequence: SequenceState) -> None:
        """Take in that the engine holds a request's prompt."""
        self.cache.store(sequence.chain.hashes, sequence.offsets.sizes())
        self._mirror()

    def fresh(self, sequence: SequenceState, since: Sequence[SequenceState]) -> int:
        """Return how many tokens of a prompt requests `since` some moment could have left here.

        Those that are here now count too.
        """
        return max((sequence.common(other) for other in chain(since, self._running)), default=0)

    def follow(self, mirror: Mirror, change: Change) -> None:
        """Correct the cache by what the engine says of it."""
        mirror.apply(change, self.cache)
        self._mirror()

    # Its requests. `step` is how long the engine's longest step takes, in seconds.

    def enter(self, sequence: SequenceState, step: float, now: float) -> None:
        """Let a prompt in as the engine will: once it is scheduled, and where it fits.

        What waits is promised: it will be there by the time that a later request is scheduled.
        The ledger knows the request already.
        """
        if self.line or not self._admit(sequence, step, now):
            self.line.append(sequence)
            self._promise(sequence)
        self._mirror()

    def progress(self, sequence: SequenceState, computed: int) -> None:
        """Follow a request that has computed so many tokens, prompt and output."""
        if computed <= sequence.computed or sequence.cache is not self.cache:
            return
        sequence.computed = computed
        while not sequence.grow():
            self._preempt()
        self._mirror()

    def exit(self, sequence: SequenceState, *, revoked: bool) -> None:
        """Let a prompt out: what it computed stays, to be evicted in its turn.

        `revoked`: the engine never computed it.
        """
        if sequence.cache is not self.cache:
            return
        if sequence in self._running:
            del self._running[sequence]
            sequence.end(revoked=revoked)
        elif sequence in self.line:
            self.line.remove(sequence)
            self._keep_promise(sequence)
            if not revoked and sequence.try_admit(self.spec.block):
                sequence.end(revoked=False)  # its end says that it was there after all

    def settle(self, step: float, now: float) -> None:
        """Let in those in line that are scheduled by now, and tell the index."""
        while self.line and self._admit(self.line[0], step, now):
            self._keep_promise(self.line.popleft())
        self._mirror()

    def assign_hashes(
        self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]
    ) -> None:
        """Name what a request of this generation of the cache has generated."""
        self.cache.assign_hashes(lease, hashes, sizes)
        self._mirror()

    def _admit(self, sequence: SequenceState, step: float, now: float) -> bool:
        """Schedule a prompt if one step can reach it, and it fits."""
        if self._ledger.owed_before(sequence.request, now) >= step:
            return False
        if not sequence.try_admit(self.spec.block):
            return False
        sequence.grow()
        self._running[sequence] = None
        return True

    def _preempt(self) -> None:
        """Put the request that was let in last back in line (FCFS)."""
        victim, _ = self._running.popitem()
        victim.put_back()
        self.line.appendleft(victim)
        self._promise(victim)

    def _promise(self, sequence: SequenceState) -> None:
        self._promised.update(sequence.chain.hashes)
        if self._present:
            self._index.add(self.slot, sequence.chain.hashes)

    def _keep_promise(self, sequence: SequenceState) -> None:
        """Take back a promise: what was let in is held now, the rest is not."""
        self._promised -= Counter(sequence.chain.hashes)
        gone = [
            each
            for each in sequence.chain.hashes
            if each not in self._promised and not self.cache.match((each,))
        ]
        if self._present and gone:
            self._index.remove(self.slot, gone)

    def _mirror(self) -> None:
        """Tell the index what is new."""
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


def _make(spec: CacheSpec) -> tuple[str, str, int]:
    """Return what a cache cannot change without being another one."""
    return spec.model, spec.eviction, spec.offload
