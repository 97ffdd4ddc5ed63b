"""One endpoint's cache with a second tier: what the first has evicted may be in host memory still.

Mirrors vLLM 0.32's native offloading (`--kv-offloading-size`; `OffloadingConnectorScheduler` in
`distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, `CPUOffloadingManager` and
`LRUCachePolicy` in `v1/kv_offload/cpu/`), one block to a chunk:

- the first tier's hit comes first; the second extends it by the blocks that follow without a
  gap, which are then allocated in the first like any that are computed;
- a prompt offers its full blocks to the second tier, generated ones never (`offload_prompt_only`,
  until they come back in a prompt): all of them, or where some were loaded only those after the
  hit; they are inserted from the head on;
- where space lacks the oldest go, but none that is just being offered; if that is not enough
  nothing is stored;
- when a request ends, what it loaded and offered becomes the newest, its tail the oldest of that.

Copies take no time here: what is offered can be loaded at once. The ARC policy and a store
threshold are not modelled. A block that is only in the second tier counts as found, though loading
it takes longer than finding it.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import CacheModel
from epp.model.caches.lease import Lease, own
from epp.model.prompts.block_hasher import BlockHash


class OffloadTier:
    """Blocks in host memory, the oldest first: `capacity` in tokens. `news` is told of changes."""

    def __init__(self, capacity: int, news: ContentChanges) -> None:
        self.capacity = capacity
        self.used = 0
        self._sizes: dict[BlockHash, int] = {}
        self._news = news

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that it holds."""
        return list(self._sizes)

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> Sequence[BlockHash]:
        """Take what is not there, or nothing if it does not fit; return what came."""
        offered = zip(hashes, sizes, strict=False)
        new = {key: size for key, size in offered if key not in self._sizes}
        lacking = self.used + sum(new.values()) - self.capacity
        gone = self._oldest(lacking, frozenset(hashes))
        if gone is None:
            return ()
        self.discard(gone)
        self._sizes.update(new)
        self.used += sum(new.values())
        self._news.stored(new)
        return list(new)

    def touch(self, hashes: Sequence[BlockHash]) -> None:
        """Make those that are held the newest, the first of them last."""
        for block_hash in reversed(hashes):
            if block_hash in self._sizes:
                self._sizes[block_hash] = self._sizes.pop(block_hash)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Take blocks out; unknown ones are ignored."""
        for block_hash in hashes:
            self.used -= self._sizes.pop(block_hash, 0)
        self._news.evicted(hashes)

    def resize(self, capacity: int) -> None:
        """Change the capacity; what no longer fits goes."""
        self.capacity = capacity
        self.discard(self._oldest(self.used - capacity, frozenset()) or ())

    def _oldest(self, tokens: int, spared: frozenset[BlockHash]) -> Sequence[BlockHash] | None:
        """Choose the oldest blocks that make so many tokens; None where there are not as many."""
        chosen: list[BlockHash] = []
        for block_hash, size in self._sizes.items():
            if tokens <= 0:
                break
            if block_hash not in spared:
                chosen.append(block_hash)
                tokens -= size
        return None if tokens > 0 else chosen


class TieredLease(Lease):
    """What a request holds in the first tier (`inner`), and what it used of the second.

    `cached` counts hits in both; `offered` and `loaded` are in the order of the chain, `stored`
    those of them that the second tier did not have.
    """

    __slots__ = ("inner", "loaded", "offered", "stored")

    def __init__(self, inner: Lease, cached: int) -> None:
        super().__init__(inner.keys, cached, inner.tokens, inner.reserved_tokens)
        self.inner = inner
        self.loaded: Sequence[BlockHash] = ()
        self.offered: Sequence[BlockHash] = ()
        self.stored: Sequence[BlockHash] = ()


class OffloadedCache:
    """A `CacheModel` over any other, `first`, with an `offload_tier` of `offload` tokens below it.

    Its capacity and free space are those of the first tier; so is what it is told of.
    """

    def __init__(self, first: CacheModel, offload: int) -> None:
        self._first = first
        self._news = ContentChanges(self._holds)
        self.offload_tier = OffloadTier(offload, self._news)

    @property
    def capacity(self) -> int:
        """All that the first tier can hold, in tokens."""
        return self._first.capacity

    @property
    def free(self) -> int:
        """What could be allocated in the first tier now."""
        return self._first.free

    @property
    def closed(self) -> bool:
        """Whether the first tier is, and the second, which has gaps, holds nothing."""
        return self._first.closed and not len(self.offload_tier)

    @property
    def block(self) -> int:
        """The engine's block size in tokens, in the first tier."""
        return self._first.block

    @block.setter
    def block(self, block: int) -> None:
        self._first.block = block

    def __len__(self) -> int:
        return len(set(self.hashes()))

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found, in either tier."""
        return iter(self.hashes())

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found, in either tier."""
        return list(dict.fromkeys(chain(self._first.hashes(), self.offload_tier.hashes())))

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held: in the first tier, and on in the second."""
        here = self._first.match(hashes)
        return here + self._extension(hashes[here:])

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> TieredLease | None:
        """Let a prompt in, as `CacheModel.admit` says."""
        here = self._first.match(hashes[:lookup])
        more = self._extension(hashes[here:lookup])
        inner = self._first.admit(hashes, sizes, blank, lookup)
        if inner is None:
            return None
        if not inner.tokens + inner.reserved_tokens:
            return TieredLease(inner, 0)
        lease = TieredLease(inner, here + more)
        after = here + more if more else 0
        lease.loaded = hashes[here : here + more]
        lease.offered = hashes[after:]
        lease.stored = self.offload_tier.store(lease.offered, sizes[after:])
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request in the first tier; see `CacheModel.grow`."""
        return self._first.grow(own(TieredLease, lease).inner, computed)

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of what a prompt brought to the first tier."""
        self._first.correct_sizes(own(TieredLease, lease).inner, sizes)

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Name what `lease` generated: only the first tier has it."""
        return self._first.assign_hashes(own(TieredLease, lease).inner, hashes, sizes)

    def release(self, lease: Lease) -> None:
        """The request is over: what it used of the second tier is the newest there."""
        held = own(TieredLease, lease)
        self._first.release(held.inner)
        self.offload_tier.touch([*held.loaded, *held.offered])
        held.loaded = held.offered = held.stored = ()

    def revoke(self, lease: Lease) -> None:
        """The request was never computed: neither tier keeps what it brought."""
        held = own(TieredLease, lease)
        self._first.revoke(held.inner)
        self.offload_tier.discard(held.stored)
        held.loaded = held.offered = held.stored = ()

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """The engine says that its first tier holds blocks."""
        self._first.store(hashes, sizes)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """The engine says that its first tier evicted blocks."""
        self._first.discard(hashes)

    def resize(self, capacity: int) -> None:
        """Change the capacity of the first tier."""
        self._first.resize(capacity)

    def coarsen(self, blocks: int) -> None:
        """Drop the oldest blocks that only the second tier holds; after these, of the first.

        The first evicts what blocks of the engine's size take. It merges nothing: a block that
        stands for several could not be told from its parts that the other tier holds.
        """
        only = (each for each in self.offload_tier.hashes() if not self._first.match((each,)))
        gone = list(islice(only, max(0, blocks)))
        self.offload_tier.discard(gone)
        lacking = blocks - len(gone)
        if lacking > 0:
            self.offload_tier.discard(self.offload_tier.hashes())
            capacity, kept = self.capacity, max(0, len(self._first) - lacking)
            self.resize(min(capacity, kept * self.block))
            self.resize(capacity)

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable in either tier since the last call."""
        self._news.stored(self._first.take_stored())
        return self._news.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found in any tier since the last call."""
        self._news.evicted(self._first.take_evicted())
        return self._news.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return nothing: blocks are never merged."""
        return ()

    def _holds(self, block_hash: BlockHash) -> bool:
        return block_hash in self.offload_tier or self._first.match((block_hash,)) > 0

    def _extension(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that the second tier holds."""
        return sum(1 for _ in takewhile(self.offload_tier.__contains__, hashes))
