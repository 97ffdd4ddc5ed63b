"""One endpoint's cache with a tier in host memory below it, as vLLM's native offloading keeps it.

Mirrors vLLM 0.32 (`--kv-offloading-size`): `OffloadingConnectorScheduler` in
`distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, `CPUOffloadingManager` in
`v1/kv_offload/cpu/manager.py`, `LRUCachePolicy` in `v1/kv_offload/cpu/policies/lru.py`, with one
block to a chunk:

- the first tier's hit comes first; the second extends it by the blocks that follow without a
  gap, which are loaded into space that is allocated in the first like that of computed blocks;
- a prompt offers its full blocks to the second tier: all of them, or if some were loaded only
  those after the hit. They are inserted from the head on. Output is not offered until it comes
  back in a prompt (`offload_prompt_only`);
- if space runs out the least recently used blocks are evicted, except those just being offered; if
  that is not enough nothing is stored;
- when a request ends, the blocks that it loaded and offered become the most recently used ones, its
  head more recently than its tail.

Copies take no time here: offered blocks can be loaded at once. The ARC policy and
`store_threshold` are not modelled. A block that only the second tier holds counts as found,
although loading it takes longer than finding it in the first.
"""

from collections.abc import Sequence
from itertools import chain, islice, takewhile

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import CacheModel, Lease, lease_of
from epp.model.prompts.hashing import BlockHash


class OffloadTier:
    """Blocks in host memory, below the cache `first`. `capacity` and `used` are in tokens.

    Changes of its content are recorded in `changes`. The blocks that `first` lacks, as of the last
    `follow`, are `alone`.
    """

    def __init__(self, capacity: int, first: CacheModel, changes: ContentChanges) -> None:
        self.capacity = capacity
        self.used = 0
        self.alone: set[BlockHash] = set()
        self._sizes: dict[BlockHash, int] = {}  # the least recently used first
        self._first = first
        self._changes = changes

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that it holds, the least recently used first."""
        return list(self._sizes)

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> Sequence[BlockHash]:
        """Insert the blocks that it lacks, of `sizes` tokens; return these.

        Inserts nothing if evicting all others would not make room (vLLM `prepare_store`).
        """
        offered = zip(hashes, sizes, strict=False)
        new = {key: size for key, size in offered if key not in self._sizes}
        lacking = self.used + sum(new.values()) - self.capacity
        spared, gone = frozenset(hashes), list[BlockHash]()
        for block_hash, size in self._sizes.items():
            if lacking <= 0:
                break
            # vLLM `prepare_store`: "Chunks from the original input are excluded from eviction".
            if block_hash not in spared:
                gone.append(block_hash)
                lacking -= size
        if lacking > 0:
            return ()
        self.discard(gone)
        self._sizes.update(new)
        self.used += sum(new.values())
        self._changes.record_stored(new)
        beyond = hashes[self._first.match(hashes) :]
        self.alone.update(key for key in beyond if key in new and not self._first.match((key,)))
        return list(new)

    def follow(self, came: Sequence[BlockHash], gone: Sequence[BlockHash]) -> None:
        """Record that the first tier holds blocks, and others no longer."""
        self.alone.difference_update(came)
        self.alone.update(filter(self._sizes.__contains__, gone))

    def touch(self, hashes: Sequence[BlockHash]) -> None:
        """Make the blocks that it holds the most recently used, the first of them most so."""
        for block_hash in reversed(hashes):
            if block_hash in self._sizes:
                self._sizes[block_hash] = self._sizes.pop(block_hash)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Remove blocks; unknown ones are ignored."""
        for block_hash in hashes:
            self.used -= self._sizes.pop(block_hash, 0)
        self.alone.difference_update(hashes)
        self._changes.record_evicted(hashes)


class TieredLease(Lease):
    """A request's lease in the first tier (`inner`), and the blocks that it used of the second.

    `cached` counts the blocks hit in either. `loaded` and `offered` are blocks in the order of
    the chain, `stored` the offered ones that the second tier lacked and took.
    """

    __slots__ = ("inner", "loaded", "offered", "stored")

    def __init__(self, inner: Lease, cached: int) -> None:
        super().__init__(cached, inner.tokens, inner.reserved_tokens)
        self.inner = inner
        self.loaded: Sequence[BlockHash] = ()
        self.offered: Sequence[BlockHash] = ()
        self.stored: Sequence[BlockHash] = ()


class OffloadedCache:
    """A `CacheModel` over any other, `first`, with an `offload_tier` of `offload` tokens below it.

    Its capacity, free space and block size are the first tier's; reports of the engine (`store`,
    `discard`) are about the first tier too.
    """

    def __init__(self, first: CacheModel, offload: int) -> None:
        self._first = first
        self._changes = ContentChanges(self._holds)
        self.offload_tier = OffloadTier(offload, first, self._changes)

    @property
    def capacity(self) -> int:
        """All that the first tier can hold, in tokens."""
        return self._first.capacity

    @property
    def free(self) -> int:
        """Tokens that could be allocated in the first tier."""
        return self._first.free

    @property
    def blank(self) -> int:
        """Tokens of the first tier that can be allocated without evicting anything."""
        return self._first.blank

    @property
    def closed(self) -> bool:
        """Whether the first tier is closed and the second, which has gaps, holds nothing."""
        return self._first.closed and not len(self.offload_tier)

    @property
    def block(self) -> int:
        """The engine's block size in tokens, in the first tier."""
        return self._first.block

    @block.setter
    def block(self, block: int) -> None:
        self._first.block = block

    def __len__(self) -> int:
        self._follow_first()
        return len(self._first) + len(self.offload_tier.alone)

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that can be found in either tier."""
        return list(dict.fromkeys(chain(self._first.hashes(), self.offload_tier.hashes())))

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks the first tier holds, and from there on the second."""
        here = self._first.match(hashes)
        return here + self._extension(hashes[here:])

    def allocate(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> TieredLease | None:
        """Allocate a prompt in the first tier, and offer it to the second."""
        here = self._first.match(hashes[:lookup])
        # vLLM `get_num_new_matched_tokens`: external hits follow the local ones.
        more = self._extension(hashes[here:lookup])
        inner = self._first.allocate(hashes, sizes, reserved, lookup)
        if inner is None:
            return None
        if not inner.tokens + inner.reserved_tokens:
            return TieredLease(inner, 0)
        lease = TieredLease(inner, here + more)
        after = here + more if more else 0  # vLLM offers no block before one that it loads
        lease.loaded = hashes[here : here + more]
        lease.offered = hashes[after:]
        lease.stored = self.offload_tier.store(lease.offered, sizes[after:])
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate output in the first tier."""
        return self._first.grow(lease_of(TieredLease, lease).inner, computed)

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of a prompt's blocks in the first tier."""
        self._first.correct_sizes(lease_of(TieredLease, lease).inner, sizes)

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to output, which only the first tier holds (`offload_prompt_only`)."""
        return self._first.assign_hashes(lease_of(TieredLease, lease).inner, hashes, sizes)

    def release(self, lease: Lease) -> None:
        """End a request; make its blocks in the second tier the most recently used ones."""
        held = lease_of(TieredLease, lease)
        self._first.release(held.inner)
        # vLLM `LRUCachePolicy.on_request_finished`: its keys, from the last to the first.
        self.offload_tier.touch([*held.loaded, *held.offered])
        held.loaded = held.offered = held.stored = ()

    def revoke(self, lease: Lease) -> None:
        """End a request that was never computed; neither tier keeps what only it brought."""
        held = lease_of(TieredLease, lease)
        self._first.revoke(held.inner)
        self.offload_tier.discard(held.stored)
        held.loaded = held.offered = held.stored = ()

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine's first tier holds blocks."""
        self._first.store(hashes, sizes)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Record that the engine's first tier evicted blocks."""
        self._first.discard(hashes)

    def resize(self, capacity: int) -> None:
        """Change the capacity of the first tier, in tokens."""
        self._first.resize(capacity)

    def contents(self) -> tuple[Sequence[BlockHash], Sequence[int]]:
        """Return the contents of the first tier."""
        return self._first.contents()

    def restore(self, hashes: Sequence[BlockHash], sizes: Sequence[int], *, closed: bool) -> None:
        """Hold blocks in the first tier; the content of the second one is not known."""
        self._first.restore(hashes, sizes, closed=closed)

    def coarsen(self, blocks: int) -> None:
        """Evict first the blocks that only the second tier holds, then those of the first."""
        self._follow_first()
        only = filter(self.offload_tier.alone.__contains__, self.offload_tier.hashes())
        gone = list(islice(only, max(0, blocks)))
        self.offload_tier.discard(gone)
        lacking = blocks - len(gone)
        if lacking > 0:
            self.offload_tier.discard(self.offload_tier.hashes())
            self._first.coarsen(lacking)

    @property
    def changed(self) -> bool:
        """Whether any block came to a tier or went."""
        return self._first.changed or bool(self._changes)

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the blocks that neither tier held at the last call and one does."""
        self._follow_first()
        return self._changes.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the blocks that a tier held at the last call and neither does."""
        self._follow_first()
        return self._changes.take_evicted()

    def _follow_first(self) -> None:
        """Apply the changes of the first tier since the last time."""
        if self._first.changed:
            came, gone = self._first.take_stored(), self._first.take_evicted()
            self._changes.record_stored(came)
            self._changes.record_evicted(gone)
            self.offload_tier.follow(came, gone)

    def _holds(self, block_hash: BlockHash) -> bool:
        return block_hash in self.offload_tier or self._first.match((block_hash,)) > 0

    def _extension(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks the second tier holds."""
        return sum(1 for _ in takewhile(self.offload_tier.__contains__, hashes))
