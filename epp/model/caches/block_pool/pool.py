"""One pod's KV block pool: allocates, touches, frees and evicts as vLLM v1 does.

Mirrors vLLM 0.32 `vllm/v1/core/block_pool.py` and `kv_cache_manager.py`: lookup is the longest
cached run from the start; admission touches the hits, then takes new blocks from the head of the
free queue, whose old content is evicted only then, and registers all full blocks at once; a
request that does not fit holds nothing; what is generated becomes a block whenever one is full;
blocks are freed in reverse order, hashed ones to the tail of the queue, others to its head; equal
blocks are not merged; recency is the time of the last release.

The unit is a token, so that blocks may differ in size: with equal sizes, and a capacity of
`(num_gpu_blocks - 1) * block_size`, the rules are vLLM's to the letter. vLLM hashes the tokens that
it generates; the picker does not see them, so that generated blocks have no hash until
`assign_hashes` or `store` gives them one.

Where nothing is shared there is no loop over blocks: what happens to a request's blocks happens
to all of them at once. The blocks are in `blocks.py`, the order of eviction is in `free_queue.py`;
free blocks without content, which are interchangeable and taken first, are a number of tokens. The
extension, `pool.pyx`, keeps the same state in C arrays (docs/adr/0013-compiled.md).
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
"""Tokens of a block where the engine has not reported it: vLLM's default on GPUs."""

_NUMBERS = count(1)


class BlockPool:
    """A `CacheModel`: `capacity` and `block`, the engine's block size, are in tokens.

    Not thread-safe; one writer. Hashes have 64 bits, sizes and counts have bounds (`bounds.py`).
    Methods raise `TypeError` for a lease of another cache.
    """

    def __init__(self, capacity: int, block: int = BLOCK) -> None:
        self._capacity = tokens_in(capacity)
        self.block = block
        self._blank_tokens = self._capacity  # without content; below 0 after shrinking under load
        self._blocks = BlockStore()
        self._queue = FreeQueue(self._blocks)
        self._last_hole = 0  # release up to which free blocks may lack what precedes them
        self._number = next(_NUMBERS)
        self._unhashed = UnhashedBlocks()
        self._engine_reports = False  # whether KV events came: they may hash unhashed blocks

    # Size and content.

    def __len__(self) -> int:
        return len(self._blocks.stamps)

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found. The pool must not change meanwhile."""
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
        """Tokens that could be allocated now; negative after shrinking below what requests hold."""
        return self._blank_tokens + self._queue.tokens

    @property
    def closed(self) -> bool:
        """Whether no block is held without all that precede it, each under its own hash.

        The engine's rules alone keep it so: a request holds blocks from the start of the chain
        and frees them together, and they are evicted from the end. Only KV events can leave a
        hole (`store`, `discard`), and only before blocks that are free by then: until these are
        evicted, or hit again together with what precedes them.
        """
        return self._queue.oldest > self._last_hole and not self._blocks.spans

    @property
    def offload_tier(self) -> None:
        """None: the pool is the GPU's, and all is in it."""

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that can be found."""
        return list(self)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks are held."""
        return self._blocks.find(hashes_in(hashes))[0]

    # Requests.

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> Lease | None:
        """Allocate a prompt: its full blocks and `reserved` tokens of a last, partial one.

        `sizes` are in tokens, at least as many as `hashes`; only the first `lookup` blocks may
        hit. Returns None where it does not fit now: nothing has changed. A prompt larger than the
        whole pool gets an empty lease, for the engine never holds it. Raises `ValueError` for
        fewer sizes than hashes.
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
        # vLLM kv_cache_manager.py `allocate_slots`: hits that are free leave the queue when they
        # are touched, so that they are no space for others. None: the request stays in `waiting`.
        if new + reserved > self.free - unreferenced_tokens:
            return None if held + new + reserved <= self._capacity else self._lease((), 0, 0, 0)
        # vLLM: `touch` comes before `get_new_blocks`, so that no hit is evicted for its request.
        self._queue.tokens -= blocks.touch(found, unreferenced)
        self._allocate(new + reserved)
        keys: Sequence[Key] = found
        if fresh:
            if found:
                blocks.joints.add(found[-1])
            # vLLM block_pool.py `cache_full_blocks`: hashes are registered at admission, before the
            # forward pass, so that later requests of the same step hit them.
            added = blocks.register(hashes[hits:], fresh, IN_USE)
            keys = [*found, *added] if found else added
        lease = self._lease(keys, hits, held + new, reserved)
        lease.hit_keys = len(found)
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate for a request that has computed `computed` tokens of prompt and output.

        Allocates whole blocks of the engine's size; each that is full is held without a hash.
        Returns False where there is no space: nothing has changed, the engine preempts a request.
        A lease that is empty or released never grows.
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
        """Correct the sizes of a lease's hashed blocks, in tokens, once their length is known.

        The space that was allocated stays: what blocks lose is space without content, and the
        other way round. Blocks that other requests hold, or that were hit, keep their sizes.
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

        Works while the lease is held and after its release. Returns how many blocks got a hash:
        those still held, but for a last part of less than one of the engine's blocks. Their
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
        # vLLM block_pool.py `free_blocks`: those that nobody else references go to the tail.
        queue.append(lease, keys, tokens)
        lease.unhashed_keys, lease.tokens, lease.reserved_tokens = [], 0, 0
        if not self._engine_reports:
            self._unhashed.remove(lease)  # without KV events nothing hashes them in time
        # vLLM `free_blocks`: a last block without a hash goes to the head of the queue.
        self._blank_tokens += reserved
        self._allocate(0)

    def revoke(self, lease: Lease) -> None:
        """Free what a request holds; drop the blocks that it did not hit: they were never computed.

        Those that another request hit meanwhile stay: that one computed them.
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

    # Reports of the engine.

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Take in that the engine holds consecutive blocks of one chain, of `sizes` tokens.

        The first may be held already, and shows what the others follow. Where they follow what
        a request has computed, its unhashed blocks get their hashes. Others that are not held
        become free blocks, the last to be evicted, as far as there is space.
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
        """Drop blocks that the engine has evicted.

        Those that requests hold stay: they were admitted here first, and are computed again.
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
        """Assert that the parts agree; `held` are all leases that are not released."""
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
        """Turn reserved space into unhashed blocks, up to `full` tokens from the lease's start."""
        if full > lease.tokens and not lease.unhashed_keys and lease.keys:
            self._unhashed.add(lease, hash_of(lease.keys[-1]))
        while full > lease.tokens:
            size = self.block - lease.tokens % self.block
            lease.unhashed_keys.append(self._blocks.register_unhashed(size))
            lease.tokens += size
            lease.reserved_tokens -= size

    def _store_reported(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Put what is not held at the tail of the queue, as far as there is space."""
        stored: list[BlockHash] = []
        lengths: list[int] = []
        tokens = 0
        for block_hash, size in zip(hashes, sizes, strict=False):
            if block_hash in self._blocks.stamps:
                continue
            if tokens + size > self.free:
                break
            stored.append(block_hash)
            lengths.append(size)
            tokens += size
        if stored:
            self._allocate(tokens)
            keys = self._blocks.register(stored, lengths, IN_USE)
            lease = self._lease((), 0, 0, 0)
            first = hashes.index(stored[0])
            lease.contiguous = list(hashes[first : first + len(stored)]) == stored
            self._queue.append(lease, keys, tokens)
            self._last_hole = self._queue.latest

    # Capacity, memory, and changes for the index.

    def resize(self, capacity: int) -> None:
        """Change the capacity, in tokens; what requests hold stays until they release it."""
        before, self._capacity = self._capacity, tokens_in(capacity)
        self._blank_tokens += self._capacity - before
        self._allocate(0)

    def coarsen(self, blocks: int) -> None:
        """Hold at least `blocks` fewer, at the cost of precision about those longest free.

        Adjacent blocks are merged, so that a chain that parts between them hits less; where that
        is not enough, the oldest are evicted.
        """
        target = max(0, len(self) - tokens_in(blocks))
        self._queue.merge(len(self) - target)
        while len(self) > target and (oldest := self._queue.next()) is not None:
            self._blank_tokens += self._queue.evict(self._blocks.sizes[oldest] or 1)

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that can be found and could not at the last call."""
        return self._blocks.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that could be found at the last call and cannot any more."""
        return self._blocks.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return the hashes that stand for another number of blocks than before, and the number."""
        return self._blocks.take_merged()

    def _allocate(self, tokens: int) -> None:
        """Allocate `tokens`: space without content first, then by evicting."""
        # vLLM block_pool.py `get_new_blocks`: taken from the head of the free queue, where blocks
        # without content stand; `_maybe_evict_cached_block` drops the hash of a block only then.
        self._blank_tokens -= tokens
        if self._blank_tokens < 0:
            self._blank_tokens += self._queue.evict(-self._blank_tokens)
