"""One pod's KV block pool: allocates, touches, frees and evicts as vLLM v1 does.

Mirrors vLLM 0.32 `vllm/v1/core/block_pool.py` and `kv_cache_manager.py`: lookup is the longest
cached run from the start; admission touches the hits, then takes new blocks from the head of the
free queue, whose old content is evicted only then, and registers all full blocks at once; a
request that does not fit holds nothing; what is generated becomes a block whenever one is full;
blocks are freed in reverse order, hashed ones to the tail of the queue, others to its head; equal
blocks are not merged; recency is the time of the last release.

The unit is a token, so that blocks may differ in size: with equal sizes, and a capacity of
`(num_gpu_blocks - 1) * block_size`, the rules are vLLM's to the letter. The engine names what it
generates; here such blocks have no hash
until `assign_hashes` or `store` gives them one.

Where nothing is shared there is no loop over blocks: what happens to a request's blocks happens
to all of them at once. The blocks are in `blocks.py`, the order of eviction is in `free_queue.py`;
free blocks without content, all alike and the first to be taken, are a number of tokens. The
extension, `pool.pyx`, keeps the same books in C arrays (docs/adr/0013-compiled.md).
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import count
from operator import index

from epp.model.caches.block_pool.blocks import IN_USE, BlockStore, hash_of
from epp.model.caches.block_pool.bounds import LARGEST, hashes_in, sizes_in, tokens_in
from epp.model.caches.block_pool.free_queue import FreeQueue
from epp.model.caches.block_pool.unhashed import UnhashedBlocks
from epp.model.caches.lease import Key, Lease, PoolLease, own
from epp.model.invariants import check
from epp.model.prompts.hashing import BlockHash

BLOCK = 16

_NUMBERS = count(1)


class BlockPool:
    """`capacity` is in tokens, and so is `block`, the engine's block size.

    A `CacheModel`. Not thread-safe; one writer.
    Hashes have 64 bits, sizes and counts have bounds (`bounds.py`). Raises `TypeError` for a
    lease of another cache.
    """

    def __init__(self, capacity: int, block: int = BLOCK) -> None:
        self._capacity = tokens_in(capacity)
        self.block = block
        self._blank_tokens = self._capacity  # without content; below 0 after shrinking under load
        self._blocks = BlockStore()
        self._queue = FreeQueue(self._blocks)
        self._last_hole = 0  # blocks of releases up to this one may lack what stands before them
        self._number = next(_NUMBERS)
        self._unhashed = UnhashedBlocks()
        self._engine_reports = False  # whether it ever did: it may then hash unhashed blocks

    # What the pool holds.

    def __len__(self) -> int:
        return len(self._blocks.stamps)

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all that can be found; the pool must not change meanwhile."""
        return self._blocks.findable()

    @property
    def block(self) -> int:
        """The engine's block size, in tokens."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        self._block = max(1, tokens_in(block, LARGEST))

    @property
    def capacity(self) -> int:
        """All that the pool can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, in tokens."""
        return self._blank_tokens + self._queue.tokens

    @property
    def closed(self) -> bool:
        """Whether no block is held without all that stand before it, each by its own hash.

        The rules alone keep it so: what a request holds it holds from the start of the chain, and
        gives back together, to be evicted from its end. Only what the engine says by itself can
        leave a hole (`store`, `discard`), and only blocks that are free by then can lack what
        stands before them: until they are evicted, or hit again together with it.
        """
        return self._queue.oldest > self._last_hole and not self._blocks.spans

    @property
    def offload_tier(self) -> None:
        """None: the pool is the GPU's, and all is in it."""

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return list(self)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        return self._blocks.find(hashes_in(hashes))[0]

    # What requests do.

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> Lease | None:
        """Allocate a prompt: its full blocks and `reserved` tokens of a last, partial one.

        `sizes` are in tokens, at least as many as `hashes`; only the first `lookup` blocks may
        hit. None: it does not fit now, nothing changed. A prompt larger than the whole pool is
        given an empty lease, for the engine will never hold it. Raises `ValueError` for blocks
        without sizes.
        """
        reserved, blocks = tokens_in(reserved), self._blocks
        hashes, sizes = hashes_in(hashes), sizes_in(sizes)
        if len(sizes) < len(hashes):
            raise ValueError("fewer sizes than blocks")
        hits, found = blocks.find(hashes[: index(lookup)])
        fresh = sizes[hits : len(hashes)]
        unreferenced = blocks.unreferenced(found)
        held, new = blocks.tokens(found), sum(fresh)
        unreferenced_tokens = held if unreferenced is found else blocks.tokens(unreferenced)
        if new + reserved > self.free - unreferenced_tokens:
            return None if held + new + reserved <= self._capacity else self._lease((), 0, 0, 0)
        self._queue.tokens -= blocks.touch(found, unreferenced)
        self._allocate(new + reserved)
        keys: Sequence[Key] = found
        if fresh:
            if found:
                blocks.joints.add(found[-1])
            added = blocks.register(hashes[hits:], fresh, IN_USE)
            keys = [*found, *added] if found else added
        lease = self._lease(keys, hits, held + new, reserved)
        lease.hit_keys = len(found)
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request that has computed `computed` tokens of prompt and output.

        Space is given out in blocks of the engine's; each that is full is kept without a hash.
        False: there is no space, nothing changed; the engine would preempt a request. A lease
        that is empty or was given back never grows.
        """
        self._check_owner(lease)
        computed = tokens_in(computed)
        block, space = self.block, lease.tokens + lease.reserved_tokens
        full = computed - computed % block
        need = (full if full == computed else full + block) - space
        if need <= 0 and full <= lease.tokens:
            return True
        if lease.release_seq or not space:
            return True
        if need > max(0, self.free):
            return False
        if need > 0:
            self._allocate(need)
            lease.reserved_tokens += need
        self._fill(lease, full)
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of a lease's hashed blocks, once it is known how long they are.

        The space that was allocated stays: what blocks lose is blank, and the other way round.
        Blocks that others hold too, or that were found, keep theirs.
        """
        self._check_owner(lease)
        sizes = sizes_in(sizes)
        blocks, last = self._blocks, len(sizes) - lease.cached + lease.hit_keys
        if lease.release_seq or last != len(lease.keys):
            return
        own, new = lease.keys[lease.hit_keys :], sizes[lease.cached :]
        change = blocks.correct(own, new, lease.reserved_tokens)
        lease.tokens += change
        lease.reserved_tokens -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to what `lease` generated, from its first unhashed token on.

        Works while the lease is held and after it was given back; returns how many blocks got
        a hash: those that are still held, less than a block of the engine's excepted. Their
        places in the free queue stay.
        """
        self._check_owner(lease)
        hashes, sizes = hashes_in(hashes), sizes_in(sizes)
        unhashed = self._unhashed.of(lease, self._blocks.stamps)
        hashed, rest = self._blocks.assign_hashes(unhashed, hashes, sizes, self.block)
        if not hashed:
            return 0
        self._unhashed.remove(lease)
        if lease.release_seq:
            self._queue.replace(
                lease, [*lease.keys[: lease.evictable - len(unhashed)], *hashed, *rest]
            )
        else:
            lease.keys, lease.unhashed_keys = [*lease.keys, *hashed], rest
        if rest:
            self._unhashed.add(lease, hashes[len(hashed) - 1])
        return len(hashed)

    def release(self, lease: Lease) -> None:
        """Free what a request holds, last block first; a second time changes nothing."""
        self._check_owner(lease)
        if lease.release_seq:
            return
        blocks, queue = self._blocks, self._queue
        keys: Sequence[Key] = (
            [*lease.keys, *lease.unhashed_keys] if lease.unhashed_keys else lease.keys
        )
        tokens, reserved = lease.tokens, lease.reserved_tokens
        if blocks.promoted or not blocks.shared.keys().isdisjoint(keys):
            keys, lease.contiguous = blocks.unshare(keys)
            tokens = blocks.tokens(keys)
        queue.append(lease, keys, tokens)
        lease.unhashed_keys, lease.tokens, lease.reserved_tokens = [], 0, 0
        if not self._engine_reports:
            self._unhashed.remove(lease)  # nobody will hash them in time
        self._blank_tokens += reserved
        self._allocate(0)

    def revoke(self, lease: Lease) -> None:
        """Free what a request holds; what it did not find was never computed, and is dropped.

        Not so what another request found meanwhile: that one computed it.
        """
        self._check_owner(lease)
        if lease.release_seq:
            return
        blocks = self._blocks
        held = [blocks.promoted.get(key, key) for key in lease.keys[lease.hit_keys :]]
        fresh = [key for key in held if key not in blocks.shared] + lease.unhashed_keys
        self.release(lease)
        for key in reversed(fresh):
            if blocks.stamps.get(key) == lease.release_seq:
                self._blank_tokens += self._queue.drop(key)
        self._unhashed.remove(lease)

    def _lease(self, keys: Sequence[Key], cached: int, tokens: int, reserved: int) -> PoolLease:
        lease = PoolLease(keys, cached, tokens, reserved)
        lease.pool = self._number
        return lease

    def _check_owner(self, lease: Lease) -> None:
        if own(PoolLease, lease).pool != self._number:
            raise TypeError("a lease of another cache")

    # What is heard of the engine.

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Take in blocks, consecutive ones of one chain, that the engine reports to hold.

        The first may be held already, so as to say what the others follow. Where they follow
        what a request has computed, its unhashed blocks are these. Others that are not held
        become free content, the last to be evicted, as far as there is space.
        """
        hashes, sizes = hashes_in(hashes), sizes_in(sizes)
        blocks, unhashed = self._blocks, self._unhashed
        self._engine_reports = True
        held = self.match(hashes)
        while 0 < held < len(hashes):
            lease = unhashed.after(hashes[held - 1], blocks.stamps)
            hashed = 0 if lease is None else self.assign_hashes(lease, hashes[held:], sizes[held:])
            if not hashed:
                break
            held += hashed
        self._store_reported(hashes[held:], sizes[held:])

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Drop blocks that the engine reports to have evicted.

        Those in use here are about to be computed again.
        """
        blocks, queue = self._blocks, self._queue
        for block_hash in hashes_in(hashes):
            for key in (*blocks.copies.get(block_hash, ()), block_hash):
                if not blocks.stamps.get(key):
                    continue
                if key != queue.next():
                    self._last_hole = queue.latest
                self._blank_tokens += queue.drop(key)

    # For tests.

    def check_invariants(self, held: Collection[Lease]) -> None:
        """Assert that the books balance; `held` are all leases that are not over."""
        blocks, queue = self._blocks, self._queue
        blocks.check_invariants()
        queue.check_invariants()
        keys = [key for lease in held for key in (*lease.keys, *lease.unhashed_keys)]
        used = {blocks.promoted.get(key, key) for key in keys}
        tokens = blocks.tokens(used) + sum(lease.reserved_tokens for lease in held)
        found, hashed = set(self), [key for lease in held for key in lease.keys]
        check(
            in_use_is_held=used == {key for key, at in blocks.stamps.items() if at == IN_USE},
            free=self.free == self._capacity - tokens,
            queued_fits=queue.tokens <= max(0, self._capacity - tokens),
            held_is_found=found.issuperset(
                hash_of(blocks.promoted.get(key, key)) for key in hashed
            ),
        )

    def _fill(self, lease: Lease, full: int) -> None:
        """Make unhashed blocks of a lease's blank space, up to `full` tokens from its start."""
        if full > lease.tokens and not lease.unhashed_keys and lease.keys:
            self._unhashed.add(lease, hash_of(lease.keys[-1]))
        while full > lease.tokens:
            size = self.block - lease.tokens % self.block
            lease.unhashed_keys.append(self._blocks.register_unhashed(size))
            lease.tokens += size
            lease.reserved_tokens -= size

    def _store_reported(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Put what is not held at the tail of the queue, as far as there is space."""
        names: list[BlockHash] = []
        lengths: list[int] = []
        tokens = 0
        for block_hash, size in zip(hashes, sizes, strict=False):
            if block_hash in self._blocks.stamps:
                continue
            if tokens + size > self.free:
                break
            names.append(block_hash)
            lengths.append(size)
            tokens += size
        if names:
            self._allocate(tokens)
            keys = self._blocks.register(names, lengths, IN_USE)
            lease = self._lease((), 0, 0, 0)
            first = hashes.index(names[0])
            lease.contiguous = list(hashes[first : first + len(names)]) == names
            self._queue.append(lease, keys, tokens)
            self._last_hole = self._queue.latest

    # The size of the pool, and what changed.

    def resize(self, capacity: int) -> None:
        """Change the capacity; blocks in use stay, and are owed until they are freed."""
        before, self._capacity = self._capacity, tokens_in(capacity)
        self._blank_tokens += self._capacity - before
        self._allocate(0)

    def coarsen(self, blocks: int) -> None:
        """Hold at least `blocks` fewer, at the cost of precision about those longest free.

        Adjacent ones are merged, so that a chain that parts in between finds less; where that is
        not enough, the oldest are evicted.
        """
        target = max(0, len(self) - tokens_in(blocks))
        self._queue.merge(len(self) - target)
        while len(self) > target and (oldest := self._queue.next()) is not None:
            self._blank_tokens += self._queue.evict(self._blocks.sizes[oldest] or 1)

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""
        return self._blocks.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        return self._blocks.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return the hashes that stand for more or fewer blocks since the last call: how many."""
        return self._blocks.take_merged()

    def _allocate(self, tokens: int) -> None:
        """Take tokens: blank ones, then from the head of the free queue, evicting what is there."""
        self._blank_tokens -= tokens
        if self._blank_tokens < 0:
            self._blank_tokens += self._queue.evict(-self._blank_tokens)
