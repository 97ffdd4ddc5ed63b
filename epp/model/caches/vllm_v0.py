"""One endpoint's cache as vLLM's first engine (v0, until 0.10) keeps it.

Mirrors vLLM `vllm/core/block_manager_v1.py` (0.4-0.6: `CachedBlockAllocator`, `can_allocate`,
`_promote_last_block`), and the same rules in `vllm/core/block/prefix_caching_block.py` (0.6-0.10):

- equal blocks are merged: a second request adds a reference, and a full block of output is replaced
  by an equal one that exists;
- a prompt is admitted if as many blocks as it has in all, those that it would hit included,
  are free, and 1 % of all blocks remain (`watermark`);
- a block without references is the evictor's (`vllm_v0_evictor.py`). All blocks of a running
  request are accessed in every step, so a block's last access is the last release of it.

Until 0.6 a request's last full block counts as computed once there is one more; here at once.
"""

import sys
from collections.abc import Sequence
from itertools import count

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import Key, Lease, own
from epp.model.caches.single_tier import SingleTierCache, count_fitting
from epp.model.caches.vllm_v0_evictor import LruEvictor
from epp.model.prompts.hashing import BlockHash

WATERMARK = 0.01  # share of all blocks that stay free at admission (`BlockSpaceManager`)
_DEEPEST = sys.maxsize
"""The depth of output without hashes: deeper than all blocks of its request that have some."""


class CachedLease(Lease):
    """The blocks `keys` of one request, with `tokens` in total, and its `reserved_tokens`.

    `all_keys` includes its blocks of output with hashes, and `depth` is their number.
    `unhashed_tokens` are those of its full blocks of output without. After the request they are the
    block `unhashed_key`, last accessed at `release_seq`.
    """

    __slots__ = ("all_keys", "depth", "keys", "release_seq", "unhashed_key", "unhashed_tokens")

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, reserved: int) -> None:
        super().__init__(cached, tokens, reserved)
        self.keys = keys
        self.release_seq = 0
        self.all_keys: list[Key] = [*keys]
        self.unhashed_tokens = 0
        self.depth = len(keys)
        self.unhashed_key: Key = 0


class VllmV0Cache(SingleTierCache):
    """A `CacheModel`. `capacity` and `block`, the engine's block size, are in tokens."""

    def __init__(self, capacity: int, block: int = 16) -> None:
        self.capacity = capacity
        """All that the cache can hold, in tokens."""
        self._block = max(1, block)
        self.blank = capacity  # without content; below 0 after shrinking under load
        """Tokens that can be allocated without evicting anything."""
        self._ref_counts: dict[Key, int] = {}
        self._uncomputed: set[Key] = set()  # held by requests of which none was computed yet
        self._sizes: dict[Key, int] = {}
        self._depths: dict[Key, int] = {}
        self._evictor = LruEvictor()  # of blocks without references
        self._evictable_tokens = 0  # of the evictor's blocks
        self._unhashed = 0
        self._clock = count(1)
        self._prefix_closed = True
        self._reported = False
        super().__init__(self._sizes, ContentChanges(self._sizes.__contains__))

    @property
    def free(self) -> int:
        """Tokens that could be allocated, by evicting all blocks without references."""
        return self.blank + self._evictable_tokens

    @property
    def closed(self) -> bool:
        """Whether each block has all before it: true until the engine reports, or it is empty."""
        return self._prefix_closed or not self._sizes

    @property
    def block(self) -> int:
        """The engine's block size, in tokens."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        self._block = max(1, block)

    def __len__(self) -> int:
        return len(self._sizes) - self._unhashed

    def allocate(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> CachedLease | None:
        """Allocate a prompt, with a reference to each of its blocks."""
        sizes = sizes[: len(hashes)]
        total = sum(sizes) + reserved
        spare = int(self.capacity // self._block * WATERMARK) * self._block
        # vLLM v0 `can_allocate`: NEVER if even an empty cache lacks the space, else LATER.
        if total > self.capacity - spare:
            return CachedLease((), 0, 0, 0)
        if total > self.free - spare:
            return None
        lease = CachedLease(hashes, min(self.match(hashes), lookup), total - reserved, reserved)
        for depth, (key, size) in enumerate(zip(hashes, sizes, strict=True), 1):
            self._allocate(lease, key, size, depth)
        self._take_space(reserved)
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate blocks for output."""
        held = own(CachedLease, lease)
        if held.release_seq or not held.tokens + held.reserved_tokens:
            return True
        full = computed // self._block * self._block
        space = -(-computed // self._block) * self._block
        need = max(0, space - held.tokens - held.reserved_tokens)
        if need and need > self.free:
            return False
        self._take_space(need)
        more = max(0, full - held.tokens)
        held.unhashed_tokens += more
        held.tokens += more
        held.reserved_tokens += need - more
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of a prompt's blocks that no other request holds."""
        held = own(CachedLease, lease)
        if held.release_seq or len(sizes) != len(held.keys):
            return
        for key, size in zip(held.keys, sizes, strict=True):
            more = size - self._sizes[key]
            if (
                key in self._uncomputed
                and self._ref_counts[key] == 1
                and more <= held.reserved_tokens
            ):
                self._sizes[key] = size
                held.tokens += more
                held.reserved_tokens -= more

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to output: each block is one with its equals from then on."""
        held = own(CachedLease, lease)
        sizes = sizes[: len(hashes)]
        left = self._sizes.get(held.unhashed_key, 0) if held.release_seq else held.unhashed_tokens
        hashed = count_fitting(sizes, left)
        if not hashed:
            return 0
        if held.release_seq:
            self._shrink(held.unhashed_key, sum(sizes[:hashed]))
        for key, size in zip(hashes[:hashed], sizes, strict=False):
            held.depth += 1
            if held.release_seq:
                self._free_block(key, size, held.depth, held.release_seq)
            else:  # vLLM v0 `_promote_last_block`: a full block gives way to an equal one
                held.unhashed_tokens -= size
                self.blank += size
                self._allocate(held, key, size, held.depth)
                held.all_keys.append(key)
        return hashed

    def release(self, lease: Lease) -> None:
        """End a request: its blocks without other references are the evictor's."""
        held = own(CachedLease, lease)
        if not held.release_seq:
            self._uncomputed.difference_update(held.all_keys)
            self._release(held)

    def revoke(self, lease: Lease) -> None:
        """End a request that was never computed: drop blocks that only such ones held."""
        held = own(CachedLease, lease)
        if not held.release_seq:
            # Blocks that the engine reported may follow a block that is evicted here.
            self._prefix_closed = self._prefix_closed and not self._reported
            self.blank += held.unhashed_tokens
            held.unhashed_tokens = 0
            self._release(held)

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine holds blocks of one chain, as far as there is space."""
        step, known = next(self._clock), self.match(hashes)
        unreferenced = [key for key in hashes[:known] if key in self._evictor]
        for key in unreferenced:
            self._make_evictable(key, step)
        depth = self._depths[hashes[known - 1]] if known else 0
        space = self.free - sum([self._sizes[key] for key in unreferenced])
        fit = count_fitting(sizes[known : len(hashes)], space)
        rooted = known > 0 and self._depths[hashes[0]] == 1
        self._prefix_closed = self._prefix_closed and (rooted or not (known or fit))
        self._reported = self._reported or fit > 0
        for key, size in zip(hashes[known:], sizes[known : known + fit], strict=False):
            depth += 1
            self._take_space(size)
            self.blank += size  # the block takes it again
            self._free_block(key, size, depth, step)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Record that the engine evicted blocks; those that requests hold stay."""
        for key in hashes:
            if key in self._evictor:
                self._prefix_closed = False
                self._evict_block(key)

    def resize(self, capacity: int) -> None:
        """Change the capacity, in tokens; what requests hold stays until they release it."""
        self.capacity, more = capacity, capacity - self.capacity
        self._take_space(-more)

    def coarsen(self, blocks: int) -> None:
        """Evict, in the evictor's order, until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and len(self._evictor):
            self._evict_block(self._evictor.first())

    def _allocate(self, lease: CachedLease, key: Key, size: int, depth: int) -> None:
        """Add a reference to a block, which is allocated if it is not held."""
        # vLLM v0 `CachedBlockAllocator.allocate`: a cached block leaves the evictor.
        if key in self._evictor:
            self._evictable_tokens -= self._sizes[key]
            self._evictor.remove(key)
        elif key not in self._sizes:
            self._take_space(size)
            self._sizes[key], self._depths[key] = size, depth
            self._changes.record_stored((BlockHash(key),))
            self._uncomputed.add(key)
        self._ref_counts[key] = self._ref_counts.get(key, 0) + 1

    def _release(self, lease: CachedLease) -> None:
        lease.release_seq = step = next(self._clock)
        for key in lease.all_keys:
            self._ref_counts[key] -= 1
            if self._ref_counts[key]:
                continue
            del self._ref_counts[key]
            self._make_evictable(key, step)
            if key in self._uncomputed:
                self._evict_block(key)
        if lease.unhashed_tokens:
            lease.unhashed_key = -next(self._clock)
            self._unhashed += 1
            self.blank += lease.unhashed_tokens
            self._free_block(lease.unhashed_key, lease.unhashed_tokens, _DEEPEST, step)
        self.blank += lease.reserved_tokens
        lease.keys, lease.tokens, lease.reserved_tokens, lease.unhashed_tokens = (), 0, 0, 0
        self._take_space(0)

    def _free_block(self, key: Key, size: int, depth: int, step: int) -> None:
        """Make empty space a block without references; a second equal one is not kept."""
        if key in self._sizes:
            self._uncomputed.discard(key)
            if key in self._evictor:
                self._make_evictable(key, step)
            return
        self._sizes[key], self._depths[key] = size, depth
        self.blank -= size
        if key >= 0:
            self._changes.record_stored((BlockHash(key),))
        self._make_evictable(key, step)

    def _make_evictable(self, key: Key, step: int) -> None:
        """Hand a block without references to the evictor, last accessed at `step`."""
        if key not in self._evictor:
            self._evictable_tokens += self._sizes[key]
        self._evictor.add(key, step, self._depths[key])

    def _take_space(self, tokens: int) -> None:
        """Take empty space, in tokens; if there is too little, evict in the evictor's order."""
        self.blank -= tokens
        while self.blank < 0 and len(self._evictor):
            key = self._evictor.first()
            if key < 0 and self._sizes[key] > self._block:
                self._shrink(key, self._block)
            else:
                self._evict_block(key)

    def _shrink(self, key: Key, tokens: int) -> None:
        """Free a part, in tokens, of output without hashes."""
        self._sizes[key] -= tokens
        self._evictable_tokens -= tokens
        self.blank += tokens
        if not self._sizes[key]:
            self._evict_block(key)

    def _evict_block(self, key: Key) -> None:
        """Free the space of a block without references, and remove the block."""
        size = self._sizes.pop(key)
        del self._depths[key]
        self._uncomputed.discard(key)
        self._evictor.remove(key)
        self._evictable_tokens -= size
        self.blank += size
        if key < 0:
            self._unhashed -= 1
        else:
            self._changes.record_evicted((BlockHash(key),))
