"""One pod's KV block pool: allocates, touches, frees and evicts as vLLM v1 does.

Mirrors vLLM 0.32 `vllm/v1/core/block_pool.py`, `kv_cache_manager.py` and
`FreeKVCacheBlockQueue`: lookup is the longest cached run from the start; admission touches the
hits, then takes new blocks from the head of the free queue, whose old content is evicted only
then, and registers all full blocks at once; a request that does not fit holds nothing; blocks
are freed in reverse order, hashed ones to the tail of the queue, others to its head; equal blocks
are not merged; recency is the time of the last release.

The unit is a token, so that blocks may differ in size: with equal sizes, and a capacity of
`(num_gpu_blocks - 1) * block_size`, the rules are vLLM's to the letter. Free blocks without a
hash are interchangeable and always ahead of the others, so they are a number, not a queue.

There is no object per block. A block is a key: its hash, or, for a second copy of one, the hash
with a number above its 64 bits, or, for generated content that nobody can name, a negative number.
One integer holds its size and, while it is free, the stamp of the release that freed it. The free
queue is made of releases: what a request gave back, in order, of which only keys that still bear
the release's stamp count.
"""

from collections import deque
from collections.abc import Sequence
from itertools import count

from epp.model.blocks import BlockHash

_SIZE_BITS = 32
_SIZE = (1 << _SIZE_BITS) - 1
_HASH_BITS = 64
_HASH = (1 << _HASH_BITS) - 1
_SLACK = 1024

Key = int


class Lease:
    """What one request holds.

    Its blocks in order (`keys`), the first `cached` of which it found, and `blank` tokens of
    blocks without a hash.
    """

    __slots__ = ("blank", "cached", "keys")

    def __init__(self, keys: Sequence[Key], cached: int, blank: int) -> None:
        self.keys = keys
        self.cached = cached
        self.blank = blank


class _Release:
    """What one lease gave back; `left` counts the keys whose turn to be evicted has not come."""

    __slots__ = ("keys", "left", "stamp")

    def __init__(self, keys: Sequence[Key], stamp: int) -> None:
        self.keys = keys
        self.left = len(keys)
        self.stamp = stamp


class BlockPool:
    """`capacity` is in tokens. Not thread-safe; one writer.

    Callers learn of changed content by `take_stored` and `take_evicted`.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blank = capacity  # free and without content; below 0 after shrinking under load
        self._queued = 0  # free with content
        self._blocks: dict[Key, int] = {}  # size, and above it the stamp where free
        self._shared: dict[Key, int] = {}  # references beyond the first
        self._copies: dict[BlockHash, list[Key]] = {}
        self._promoted: dict[Key, Key] = {}  # copies that took the place of the first
        self._queue: deque[_Release] = deque()
        self._entries = 0
        self._stamps = count(1)
        self._numbers = count(1)
        self._stored: list[BlockHash] = []
        self._evicted: list[BlockHash] = []

    @property
    def capacity(self) -> int:
        """All that the pool can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, in tokens."""
        return self._blank + self._queued

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return [BlockHash(key) for key in self._blocks if 0 <= key <= _HASH]

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        blocks = self._blocks
        for held, block_hash in enumerate(hashes):
            if block_hash not in blocks:
                return held
        return len(hashes)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> Lease | None:
        """Allocate a prompt: its full blocks and `blank` tokens of a last, partial one.

        `sizes` are in tokens, at least as many as `hashes`; only the first `lookup` blocks may
        hit. None: it does not fit now, nothing changed. A prompt larger than the whole pool is
        given an empty lease, for the engine will never hold it.
        """
        hits = self.match(hashes[:lookup])
        found = [self._blocks[block_hash] for block_hash in hashes[:hits]]
        need = sum(sizes[hits : len(hashes)]) + blank
        if need > self.free - sum(value & _SIZE for value in found if value > _SIZE):
            whole = need + sum(value & _SIZE for value in found)
            return None if whole <= self._capacity else Lease((), 0, 0)
        self._touch(hashes[:hits], found)
        self._take(need)
        return Lease(self._register(hashes, sizes, hits), hits, blank)

    def grow(self, lease: Lease, tokens: int) -> None:
        """Add generated tokens: full blocks whose content nobody can name yet, but which age.

        What does not fit is left out: the engine would preempt a request instead.
        """
        tokens = min(tokens, self.free)
        if tokens > 0:
            self._take(tokens)
            key = -next(self._numbers)
            self._blocks[key] = tokens
            lease.keys = [*lease.keys, key]

    def release(self, lease: Lease) -> None:
        """Free what a request holds, last block first."""
        self._release(lease)

    def revoke(self, lease: Lease) -> None:
        """Free what a request holds; what it did not find was never computed, and is dropped."""
        fresh = [self._promoted.get(key, key) for key in lease.keys[lease.cached :]]
        stamp = self._release(lease)
        for key in fresh:
            if self._blocks.get(key, 0) >> _SIZE_BITS == stamp:
                self._drop(key)

    def resize(self, capacity: int) -> None:
        """Change the capacity; blocks in use stay, and are owed until they are freed."""
        self._blank += capacity - self._capacity
        self._capacity = capacity
        self._take(0)

    def take_stored(self) -> list[BlockHash]:
        """Return the hashes that became findable since the last call."""
        stored, self._stored = self._stored, []
        return stored

    def take_evicted(self) -> list[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _touch(self, keys: Sequence[Key], values: Sequence[int]) -> None:
        for key, value in zip(keys, values, strict=True):
            if value > _SIZE:
                self._blocks[key] = value & _SIZE
                self._queued -= value & _SIZE
            else:
                self._shared[key] = self._shared.get(key, 0) + 1

    def _register(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], hits: int
    ) -> Sequence[Key]:
        """Give new blocks their keys; return those of the whole chain."""
        fresh, blocks = hashes[hits:], self._blocks
        if blocks.keys().isdisjoint(fresh):
            blocks.update(zip(fresh, sizes[hits:], strict=False))
            self._stored += fresh
            return hashes
        keys: list[Key] = list(hashes[:hits])
        for block_hash, size in zip(fresh, sizes[hits:], strict=False):
            key: Key = block_hash
            if block_hash in blocks:
                key |= next(self._numbers) << _HASH_BITS
                self._copies.setdefault(block_hash, []).append(key)
            else:
                self._stored.append(block_hash)
            blocks[key] = size
            keys.append(key)
        return keys

    def _release(self, lease: Lease) -> int:
        """Free a lease under a new stamp, and return that."""
        self._blank += lease.blank
        keys, stamp = lease.keys, next(self._stamps)
        lease.keys, lease.blank = (), 0
        blocks, mark, freed = self._blocks, stamp << _SIZE_BITS, 0
        if self._promoted or not self._shared.keys().isdisjoint(keys):
            keys = self._unshare(keys)
        for key in keys:
            size = blocks[key]
            blocks[key] = mark | size
            freed += size
        self._queued += freed
        self._queue.append(_Release(keys, stamp))
        self._entries += len(keys)
        if self._entries > 4 * len(blocks) + _SLACK:
            self._sweep()
        self._take(0)
        return stamp

    def _unshare(self, keys: Sequence[Key]) -> list[Key]:
        """Give back one reference each; return the keys that nobody holds any more."""
        last: list[Key] = []
        for each in keys:
            key = self._promoted.pop(each, each)
            others = self._shared.get(key, 0)
            if others > 1:
                self._shared[key] = others - 1
            elif others:
                del self._shared[key]
            else:
                last.append(key)
        return last

    def _take(self, tokens: int) -> None:
        """Take tokens from the head of the free queue, evicting what stands there."""
        self._blank -= tokens
        blocks = self._blocks
        while self._blank < 0 and self._queue:
            release = self._queue[0]
            if not release.left:
                self._queue.popleft()
                continue
            release.left -= 1
            self._entries -= 1
            key = release.keys[release.left]
            key = self._promoted.pop(key, key)
            if blocks.get(key, 0) >> _SIZE_BITS == release.stamp:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        """Make a free block blank."""
        size = self._blocks.pop(key) & _SIZE
        self._queued -= size
        self._blank += size
        if key < 0:
            return
        block_hash = BlockHash(key & _HASH)
        copies = self._copies.get(block_hash)
        if copies is None:
            self._evicted.append(block_hash)
            return
        if key > _HASH:
            copies.remove(key)
        else:
            self._promote(block_hash, copies.pop(0))
        if not copies:
            del self._copies[block_hash]

    def _promote(self, block_hash: BlockHash, copy: Key) -> None:
        """Let a copy be found in the place of the first, which is evicted."""
        value = self._blocks.pop(copy)
        self._blocks[block_hash] = value
        if copy in self._shared:
            self._shared[block_hash] = self._shared.pop(copy)
        self._promoted[copy] = block_hash

    def _sweep(self) -> None:
        """Leave out of the queue what no longer counts."""
        kept: deque[_Release] = deque()
        for release in self._queue:
            own = (self._promoted.pop(key, key) for key in release.keys[: release.left])
            keys = [key for key in own if self._blocks.get(key, 0) >> _SIZE_BITS == release.stamp]
            if keys:
                kept.append(_Release(keys, release.stamp))
        self._queue = kept
        self._entries = sum(release.left for release in kept)
