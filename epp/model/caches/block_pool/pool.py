"""One pod's KV block pool: allocates, touches, frees and evicts as vLLM v1 does.

Mirrors vLLM 0.32 `vllm/v1/core/block_pool.py` and `kv_cache_manager.py`: lookup is the longest
cached run from the start; admission touches the hits, then takes new blocks from the head of the
free queue, whose old content is evicted only then, and registers all full blocks at once; a
request that does not fit holds nothing; what is generated becomes a block whenever one is full;
blocks are freed in reverse order, hashed ones to the tail of the queue, others to its head; equal
blocks are not merged; recency is the time of the last release.

The unit is a token, so that blocks may differ in size: with equal sizes, and a capacity of
`(num_gpu_blocks - 1) * block_size`, the rules are vLLM's to the letter. The engine names what it
generates; here such blocks have no name until `name` or `store` gives them one.

Where nothing is shared there is no loop over blocks: what happens to a request's blocks happens
to all of them at once. The space itself is in `epp.model.caches.block_pool.space`.
"""

from collections.abc import Collection, Sequence
from itertools import count
from operator import index

from epp.model.caches.block_pool.blocks import IN_USE, hash_of
from epp.model.caches.block_pool.bounds import names_in, sizes_in, tokens_in
from epp.model.caches.block_pool.space import PoolSpace
from epp.model.caches.block_pool.unhashed import UnhashedBlocks
from epp.model.caches.lease import Key, Lease, PoolLease, own
from epp.model.invariants import check
from epp.model.prompts.hashing import BlockHash

BLOCK = 16

_NUMBERS = count(1)


class BlockPool(PoolSpace):
    """`capacity` is in tokens, and so is `block`, the engine's block size.

    A `CacheModel`. Not thread-safe; one writer.
    Names have 64 bits, sizes and other counts have bounds (`bounds.py`). A lease of
    another cache is a `TypeError`.
    """

    def __init__(self, capacity: int, block: int = BLOCK) -> None:
        super().__init__(capacity, block)
        self._number = next(_NUMBERS)
        self._unhashed = UnhashedBlocks()
        self._hears = False  # of the engine's blocks, and so perhaps names of unhashed ones

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
        reserved, contents = tokens_in(reserved), self._contents
        hashes, sizes = names_in(hashes), sizes_in(sizes)
        if len(sizes) < len(hashes):
            raise ValueError("fewer sizes than blocks")
        hits, found = contents.find(hashes[: index(lookup)])
        fresh = sizes[hits : len(hashes)]
        idle = contents.idle(found)
        held, new = contents.tokens(found), sum(fresh)
        idle_tokens = held if idle is found else contents.tokens(idle)
        if new + reserved > self.free - idle_tokens:
            return None if held + new + reserved <= self._capacity else self._lease((), 0, 0, 0)
        self._queue.tokens -= contents.touch(found, idle)
        self._take(new + reserved)
        keys: Sequence[Key] = found
        if fresh:
            if found:
                contents.joints.add(found[-1])
            added = contents.register(hashes[hits:], fresh, IN_USE)
            keys = [*found, *added] if found else added
        lease = self._lease(keys, hits, held + new, reserved)
        lease.hit_keys = len(found)
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request that has computed `computed` tokens of prompt and output.

        Space is given out in blocks of the engine's; each that is full is kept without a name.
        False: there is no space, nothing changed; the engine would preempt a request. A lease
        that is empty or was given back never grows.
        """
        self._know(lease)
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
            self._take(need)
            lease.reserved_tokens += need
        self._fill(lease, full)
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of a lease's named blocks, now that it is known how long they are.

        The space that was allocated stays: what blocks lose is blank, and the other way round.
        Blocks that others hold too, or that were found, keep theirs.
        """
        self._know(lease)
        sizes = sizes_in(sizes)
        contents, last = self._contents, len(sizes) - lease.cached + lease.hit_keys
        if lease.release_seq or last != len(lease.keys):
            return
        own, new = lease.keys[lease.hit_keys :], sizes[lease.cached :]
        change = contents.correct(own, new, lease.reserved_tokens)
        lease.tokens += change
        lease.reserved_tokens -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Name what `lease` generated, from its first unhashed token on, as blocks of a chain.

        Works while the lease is held and after it was given back; returns how many blocks got
        a name: those that are still held, less than a block of the engine's excepted. Their
        places in the free queue are those of what they name.
        """
        self._know(lease)
        hashes, sizes = names_in(hashes), sizes_in(sizes)
        unhashed = self._unhashed.of(lease, self._contents.stamps)
        named, rest = self._contents.rename(unhashed, hashes, sizes, self.block)
        if not named:
            return 0
        self._unhashed.forget(lease)
        if lease.release_seq:
            self._queue.replace(
                lease, [*lease.keys[: lease.evictable - len(unhashed)], *named, *rest]
            )
        else:
            lease.keys, lease.tail = [*lease.keys, *named], rest
        if rest:
            self._unhashed.add(lease, hashes[len(named) - 1])
        return len(named)

    def release(self, lease: Lease) -> None:
        """Free what a request holds, last block first; a second time changes nothing."""
        self._know(lease)
        if lease.release_seq:
            return
        contents, queue = self._contents, self._queue
        keys: Sequence[Key] = [*lease.keys, *lease.tail] if lease.tail else lease.keys
        tokens, reserved = lease.tokens, lease.reserved_tokens
        if contents.promoted or not contents.shared.keys().isdisjoint(keys):
            keys, lease.contiguous = contents.unshare(keys)
            tokens = contents.tokens(keys)
        queue.append(lease, keys, tokens)
        lease.tail, lease.tokens, lease.reserved_tokens = [], 0, 0
        if not self._hears:
            self._unhashed.forget(lease)  # nobody will name them in time
        self._blank += reserved
        self._take(0)

    def revoke(self, lease: Lease) -> None:
        """Free what a request holds; what it did not find was never computed, and is dropped.

        Not so what another request found meanwhile: that one computed it.
        """
        self._know(lease)
        if lease.release_seq:
            return
        contents = self._contents
        held = [contents.promoted.get(key, key) for key in lease.keys[lease.hit_keys :]]
        fresh = [key for key in held if key not in contents.shared] + lease.tail
        self.release(lease)
        for key in reversed(fresh):
            if contents.stamps.get(key) == lease.release_seq:
                self._blank += self._queue.drop(key)
        self._unhashed.forget(lease)

    def _lease(self, keys: Sequence[Key], cached: int, tokens: int, reserved: int) -> PoolLease:
        lease = PoolLease(keys, cached, tokens, reserved)
        lease.pool = self._number
        return lease

    def _know(self, lease: Lease) -> None:
        if own(PoolLease, lease).pool != self._number:
            raise TypeError("a lease of another cache")

    # What is heard of the engine.

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """The engine says that it holds blocks, consecutive ones of one chain: believe it.

        The first may be held already, so as to say what the others follow. Where they follow
        what a request has computed, its unhashed blocks are these. Others that are not held
        become free content, the last to be evicted, as far as there is space.
        """
        hashes, sizes = names_in(hashes), sizes_in(sizes)
        contents, unhashed = self._contents, self._unhashed
        self._hears = True
        held = self.match(hashes)
        while 0 < held < len(hashes):
            lease = unhashed.after(hashes[held - 1], contents.stamps)
            named = 0 if lease is None else self.assign_hashes(lease, hashes[held:], sizes[held:])
            if not named:
                break
            held += named
        self._believe(hashes[held:], sizes[held:])

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """The engine says that it evicted blocks; those in use here are about to be computed."""
        contents, queue = self._contents, self._queue
        for block_hash in names_in(hashes):
            for key in (*contents.copies.get(block_hash, ()), block_hash):
                if not contents.stamps.get(key):
                    continue
                if key != queue.next():
                    self._holed = queue.latest
                self._blank += queue.drop(key)

    # For tests.

    def check_invariants(self, held: Collection[Lease]) -> None:
        """Assert that the books balance; `held` are all leases that are not over."""
        contents, queue = self._contents, self._queue
        contents.check_invariants()
        queue.check_invariants()
        keys = [key for lease in held for key in (*lease.keys, *lease.tail)]
        used = {contents.promoted.get(key, key) for key in keys}
        tokens = contents.tokens(used) + sum(lease.reserved_tokens for lease in held)
        found, hashed = set(self), [key for lease in held for key in lease.keys]
        check(
            in_use_is_held=used == {key for key, at in contents.stamps.items() if at == IN_USE},
            free=self.free == self._capacity - tokens,
            queued_fits=queue.tokens <= max(0, self._capacity - tokens),
            held_is_found=found.issuperset(
                hash_of(contents.promoted.get(key, key)) for key in hashed
            ),
        )

    def _fill(self, lease: Lease, full: int) -> None:
        """Make unhashed blocks of a lease's blank space, up to `full` tokens from its start."""
        if full > lease.tokens and not lease.tail and lease.keys:
            self._unhashed.add(lease, hash_of(lease.keys[-1]))
        while full > lease.tokens:
            size = self.block - lease.tokens % self.block
            lease.tail.append(self._contents.register_unhashed(size))
            lease.tokens += size
            lease.reserved_tokens -= size

    def _believe(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Put what is not held at the tail of the queue, as far as there is space."""
        names: list[BlockHash] = []
        lengths: list[int] = []
        tokens = 0
        for block_hash, size in zip(hashes, sizes, strict=False):
            if block_hash in self._contents.stamps:
                continue
            if tokens + size > self.free:
                break
            names.append(block_hash)
            lengths.append(size)
            tokens += size
        if names:
            self._take(tokens)
            keys = self._contents.register(names, lengths, IN_USE)
            lease = self._lease((), 0, 0, 0)
            first = hashes.index(names[0])
            lease.contiguous = list(hashes[first : first + len(names)]) == names
            self._queue.append(lease, keys, tokens)
            self._holed = self._queue.latest
