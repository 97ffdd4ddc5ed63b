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

There is no object per block, and where nothing is shared no loop over blocks either: what happens
to a request's blocks happens to all of them at once. A block is a key: its hash, or, for a second
copy of one, the hash with a number above its 64 bits, or, for generated content that nobody can
name, a negative number. It has a size and a stamp: 0 while in use, else the number of the release
that freed it. The free queue is made of releases: what a request gave back, in order, of which
only keys that still bear the release's stamp count.
"""

from collections import deque
from collections.abc import Sequence
from itertools import count, filterfalse
from typing import cast

from epp.model.blocks import BlockHash
from epp.model.lease import Key, Lease, Release

_HASH_BITS = 64
_HASH = (1 << _HASH_BITS) - 1
_IN_USE = 0
_SLACK = 1024


class BlockPool:
    """`capacity` is in tokens. Not thread-safe; one writer.

    Callers learn of changed content by `take_stored` and `take_evicted`.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blank = capacity  # free and without content; below 0 after shrinking under load
        self._queued = 0  # free with content
        self._stamps: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}
        self._shared: dict[Key, int] = {}  # references beyond the first
        self._copies: dict[BlockHash, list[Key]] = {}
        self._promoted: dict[Key, Key] = {}  # copies that took the place of the first
        self._queue: deque[Release] = deque()
        self._entries = 0
        self._releases = count(1)
        self._numbers = count(1)
        self._stored: list[BlockHash] = []
        self._evicted: list[Key] = []  # hashes, all of them

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
        return [BlockHash(key) for key in self._stamps if 0 <= key <= _HASH]

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        missing = next(filterfalse(self._stamps.__contains__, hashes), None)
        return len(hashes) if missing is None else hashes.index(missing)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> Lease | None:
        """Allocate a prompt: its full blocks and `blank` tokens of a last, partial one.

        `sizes` are in tokens, at least as many as `hashes`; only the first `lookup` blocks may
        hit. None: it does not fit now, nothing changed. A prompt larger than the whole pool is
        given an empty lease, for the engine will never hold it.
        """
        hits = self.match(hashes[:lookup])
        found, fresh = hashes[:hits], sizes[hits : len(hashes)]
        idle = self._idle(found)
        held, new = self._tokens(found), sum(fresh)
        idle_tokens = held if idle is found else self._tokens(idle)
        if new + blank > self.free - idle_tokens:
            return None if held + new + blank <= self._capacity else Lease((), 0, 0, 0)
        self._touch(found, idle)
        self._queued -= idle_tokens
        self._take(new + blank)
        return Lease(self._register(hashes, fresh, hits), hits, held + new, blank)

    def grow(self, lease: Lease, tokens: int) -> None:
        """Add generated tokens: full blocks whose content nobody can name yet, but which age.

        What does not fit is left out: the engine would preempt a request instead.
        """
        tokens = min(tokens, self.free)
        if tokens > 0:
            self._take(tokens)
            key = -next(self._numbers)
            self._stamps[key], self._sizes[key] = _IN_USE, tokens
            lease.keys = [*lease.keys, key]
            lease.tokens += tokens

    def release(self, lease: Lease) -> None:
        """Free what a request holds, last block first."""
        self._release(lease)

    def revoke(self, lease: Lease) -> None:
        """Free what a request holds; what it did not find was never computed, and is dropped."""
        fresh = [self._promoted.get(key, key) for key in lease.keys[lease.cached :]]
        stamp = self._release(lease)
        for key in fresh:
            if self._stamps.get(key) == stamp:
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
        return cast("list[BlockHash]", evicted)

    def _tokens(self, keys: Sequence[Key]) -> int:
        return sum(map(self._sizes.__getitem__, keys))

    def _idle(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Return those that are free; the same sequence where all of them are."""
        stamps = self._stamps
        if all(map(stamps.__getitem__, keys)):
            return keys
        return [key for key in keys if stamps[key]]

    def _touch(self, found: Sequence[Key], idle: Sequence[Key]) -> None:
        """Take one more reference to each block; `idle` are those that nobody held."""
        if idle is not found:
            first = set(idle)
            for key in found:
                if key not in first:
                    self._shared[key] = self._shared.get(key, 0) + 1
        self._stamps.update(dict.fromkeys(idle, _IN_USE))

    def _register(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], hits: int
    ) -> Sequence[Key]:
        """Give the blocks after the hits their keys; return those of the whole chain."""
        fresh = hashes[hits:]
        keys: Sequence[Key] = hashes
        new: Sequence[Key] = fresh
        if self._stamps.keys().isdisjoint(fresh):
            self._stored += fresh
        else:
            new = [self._key_of(block_hash) for block_hash in fresh]
            keys = [*hashes[:hits], *new]
        self._stamps.update(dict.fromkeys(new, _IN_USE))
        self._sizes.update(zip(new, sizes, strict=True))
        return keys

    def _key_of(self, block_hash: BlockHash) -> Key:
        """Name a new block: by its hash, or as one more copy of what is there."""
        if block_hash not in self._stamps:
            self._stored.append(block_hash)
            return block_hash
        key = block_hash | next(self._numbers) << _HASH_BITS
        self._copies.setdefault(block_hash, []).append(key)
        return key

    def _release(self, lease: Lease) -> int:
        """Free a lease under a new stamp, and return that."""
        keys, tokens, stamp = lease.keys, lease.tokens, next(self._releases)
        if self._promoted or not self._shared.keys().isdisjoint(keys):
            keys = self._unshare(keys)
            tokens = self._tokens(keys)
        self._stamps.update(dict.fromkeys(keys, stamp))
        self._queued += tokens
        self._queue.append(Release(keys, stamp))
        self._entries += len(keys)
        self._blank += lease.blank
        lease.keys, lease.tokens, lease.blank = (), 0, 0
        if self._entries > 4 * len(self._stamps) + _SLACK:
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
        while self._blank < 0 and self._queue:
            release = self._queue[0]
            self._entries -= release.left
            self._evict(release)
            self._entries += release.left
            if not release.left:
                self._queue.popleft()

    def _evict(self, release: Release) -> None:
        """Evict of a release, last block first, what is needed and still counts."""
        keys, left, stamp, stamps = release.keys, release.left, release.stamp, self._stamps
        plain = not self._copies and not self._promoted
        while left and self._blank < 0:
            left -= 1
            key = keys[left] if plain else self._promoted.pop(keys[left], keys[left])
            if stamps.get(key) != stamp:
                continue
            if plain and key >= 0:
                del stamps[key]
                size = self._sizes.pop(key)
                self._queued -= size
                self._blank += size
                self._evicted.append(key)
            else:
                self._drop(key)
        release.left = left

    def _drop(self, key: Key) -> None:
        """Make a free block blank."""
        del self._stamps[key]
        size = self._sizes.pop(key)
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
        self._stamps[block_hash] = self._stamps.pop(copy)
        self._sizes[block_hash] = self._sizes.pop(copy)
        if copy in self._shared:
            self._shared[block_hash] = self._shared.pop(copy)
        self._promoted[copy] = block_hash

    def _sweep(self) -> None:
        """Leave out of the queue what no longer counts."""
        kept: deque[Release] = deque()
        for release in self._queue:
            own = (self._promoted.pop(key, key) for key in release.keys[: release.left])
            keys = [key for key in own if self._stamps.get(key) == release.stamp]
            if keys:
                kept.append(Release(keys, release.stamp))
        self._queue = kept
        self._entries = sum(release.left for release in kept)
