"""One pod's KV block pool: allocates, touches, frees and evicts as vLLM v1 does.

The package's docstring has the rules. The unit is a token, so that blocks may differ in size: with
equal sizes, and a capacity of `(num_gpu_blocks - 1) * block_size`, the rules are exactly vLLM's.
vLLM hashes the tokens that it generates; the picker does not see them, so generated blocks have no
hash until `assign_hashes` or `store` gives them one.
"""

from collections.abc import Sequence
from operator import index

from epp.model.caches.block_pool.blocks import (
    LARGEST,
    Blocks,
    hashes_in,
    sizes_in,
    still_held,
    tokens_in,
    tokens_of,
)
from epp.model.caches.block_pool.free_queue import KVCacheBlock
from epp.model.caches.contract import Lease, lease_of
from epp.model.caches.single_tier import SingleTierCache
from epp.model.prompts.hashing import BlockHash

_MAX_GENERATING = 1 << 10
"""Leases whose generated blocks KV events can hash: an event comes within a step or so."""


class PoolLease(Lease):
    """The blocks of one request in the pool whose mark is `pool`.

    `blocks` have hashes, of which the first `cached` were hits; `unhashed_blocks`, generated after
    them, have none. After its release `blocks` is empty, and some of `unhashed_blocks` may still
    be free in the pool.
    """

    __slots__ = ("blocks", "pool", "released", "unhashed_blocks")

    def __init__(self, pool: object, cached: int = 0, tokens: int = 0, reserved: int = 0) -> None:
        super().__init__(cached, tokens, reserved)
        self.pool = pool
        self.blocks: list[KVCacheBlock] = []
        self.unhashed_blocks: list[KVCacheBlock] = []
        self.released = False


class BlockPool(SingleTierCache):
    """A `CacheModel`: `capacity` and `block`, the engine's block size, are in tokens.

    Not thread-safe; one writer. Hashes have 64 bits, sizes and counts have bounds (`blocks.py`).
    Methods raise `TypeError` for a lease of another cache.
    """

    def __init__(self, capacity: int, block: int) -> None:
        self.capacity = tokens_in(capacity)
        """All that the pool can hold, in tokens."""
        self._blocks = Blocks(self.capacity)
        super().__init__(self._blocks.cached, self._blocks.changes)
        self.block = block
        self._mark = object()
        self._last_hole = 0  # release up to which free blocks may lack what precedes them
        self._generating: dict[PoolLease, BlockHash] = {}  # and the block before its unhashed ones
        self._engine_reports = False  # whether KV events came: they may hash unhashed blocks

    def __len__(self) -> int:
        return self._blocks.count

    @property
    def block(self) -> int:
        """The engine's block size, in tokens."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        self._block = max(1, tokens_in(block, LARGEST))

    @property
    def free(self) -> int:
        """Tokens that could be allocated now; negative after shrinking below what requests hold."""
        return self._blocks.free_tokens

    @property
    def blank(self) -> int:
        """Tokens that can be allocated without evicting anything."""
        return self._blocks.blank_tokens

    @property
    def closed(self) -> bool:
        """Whether each block is held together with all its predecessors.

        The engine's rules guarantee it: a request holds blocks from the start of the chain and
        frees them together, and they are evicted from the end. Only KV events can leave a hole
        (`store`, `discard`, and `revoke` of what a stored block follows), and only before free
        blocks, until these are evicted, or hit again together with their predecessors.
        """
        head = self._blocks.queue.head
        return head is None or head.freed > self._last_hole

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks are held."""
        return super().match(hashes_in(hashes))

    # Requests.

    def allocate(
        self,
        hashes: Sequence[BlockHash],
        sizes: Sequence[int],
        reserved: int,
        lookup: int,
        later: int = 0,
    ) -> PoolLease | None:
        """Allocate a prompt: its full blocks and `reserved` tokens of a last, partial one.

        `later` tokens, which are not allocated yet, must fit too. Raises `ValueError` for fewer
        sizes than hashes.
        """
        reserved, later, lookup = tokens_in(reserved), tokens_in(later), index(lookup)
        hashes, sizes = hashes_in(hashes), sizes_in(sizes)
        if len(sizes) < len(hashes):
            raise ValueError("fewer sizes than blocks")
        found = hashes[: super().match(hashes[:lookup])]
        hits = [self._blocks.cached[each][0] for each in found]
        fresh = list(zip(hashes, sizes, strict=False))[len(hits) :]
        held, new = tokens_of(hits), sum(size for _, size in fresh) + reserved
        # vLLM kv_cache_manager.py `allocate_slots`: hits that are free leave the queue when they
        # are touched, so that others cannot take their space. None: the request stays in `waiting`.
        if new + later > self.free - sum(each.size for each in hits if not each.ref_cnt):
            fits = held + new + later <= self.capacity
            return None if fits else PoolLease(self._mark)
        self._blocks.touch(hits)  # before anything is evicted for the rest
        self._blocks.allocate(new)
        lease = PoolLease(self._mark, len(hits), held + new - reserved, reserved)
        lease.blocks = hits + self._blocks.cache_full_blocks(fresh)
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate whole blocks of the engine's size; each that is full is held without a hash."""
        held, computed = self._own(lease), tokens_in(computed)
        full, space = computed - computed % self._block, held.tokens + held.reserved_tokens
        need = (full if full == computed else full + self._block) - space
        if held.released or not space:
            return True
        if need > max(0, self.free):
            return False
        if need > 0:
            self._blocks.allocate(need)
            held.reserved_tokens += need
        if full > held.tokens and held.blocks and not held.unhashed_blocks:
            self._expect_hashes(held, held.blocks[-1].block_hash)
        while full > held.tokens:
            size = self._block - held.tokens % self._block
            held.unhashed_blocks.append(self._blocks.add(None, size))
            held.tokens += size
            held.reserved_tokens -= size
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of a prompt's blocks, unless they were hit or others hold them."""
        held, sizes = self._own(lease), sizes_in(sizes)
        if held.released or len(sizes) != len(held.blocks):
            return
        own_blocks = list(zip(held.blocks, sizes, strict=True))[held.cached :]
        grown = sum(size - block.size for block, size in own_blocks)
        shared = any(block.shared for block, _ in own_blocks)
        at_once = grown <= held.reserved_tokens and not shared
        for block, size in own_blocks:
            change = size - block.size
            if at_once or (change <= held.reserved_tokens and not block.shared):
                block.size = size
                held.tokens += change
                held.reserved_tokens -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to what `lease` generated; a last part of an engine's block stays without.

        The places of the blocks in the free queue stay.
        """
        held, hashes, sizes = self._own(lease), hashes_in(hashes), sizes_in(sizes)
        unhashed = still_held(held.unhashed_blocks)
        left, lengths = tokens_of(unhashed), list[int]()
        for size in sizes[: len(hashes)]:
            if not left or size - left >= self._block:
                break
            lengths.append(min(size, left))
            left -= lengths[-1]
        for block_hash, length in zip(hashes, lengths, strict=False):
            (block,) = self._blocks.cache_full_blocks([(block_hash, length)])
            if held.released:
                self._blocks.put_behind(block, unhashed[0])
            else:
                held.blocks.append(block)
            self._blocks.shorten(unhashed, length)
        if lengths:
            self._generating.pop(held, None)
            held.unhashed_blocks = unhashed
            if unhashed:
                self._expect_hashes(held, hashes[len(lengths) - 1])
        return len(lengths)

    def release(self, lease: Lease) -> None:
        """Free a request's blocks, the last one first; a second call changes nothing."""
        held = self._own(lease)
        if not held.released:
            self._free(held, computed=True)

    def _free(self, held: PoolLease, *, computed: bool) -> None:
        self._blocks.free([*held.blocks, *held.unhashed_blocks], computed=computed)
        # vLLM `free_blocks`: a last block without a hash goes to the head of the queue.
        self._blocks.blank_tokens += held.reserved_tokens
        held.blocks, held.tokens, held.reserved_tokens = [], 0, 0
        held.released = True
        if not self._engine_reports:
            self._generating.pop(held, None)  # without KV events nothing hashes them in time
        self._blocks.allocate(0)

    def revoke(self, lease: Lease) -> None:
        """Free a request's blocks, and drop those that no request has computed.

        These may include its hits, if the request that it hit was revoked too. Blocks that another
        request holds stay, as that one computes them.
        """
        held = self._own(lease)
        if held.released:
            return
        blocks = [*held.blocks, *held.unhashed_blocks]
        self._free(held, computed=False)
        dropped = False
        for block in reversed(blocks):  # one that a chain has twice is out of the queue after once
            if block.queued and not block.computed:
                self._blocks.evict(block)
                dropped = True
        if dropped and self._engine_reports:  # what follows them may be reported, and stays
            self._last_hole = self._blocks.releases
        held.unhashed_blocks = []
        self._generating.pop(held, None)

    def _own(self, lease: Lease) -> PoolLease:
        held = lease_of(PoolLease, lease)
        if held.pool is not self._mark:
            raise TypeError("a lease of another cache")
        return held

    # Reports of the engine.

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine holds consecutive blocks of one chain.

        If they follow the blocks that a request has computed, its unhashed blocks get their hashes.
        Others that are not held become free blocks, the last to be evicted, as far as they fit.
        """
        hashes, sizes = hashes_in(hashes), sizes_in(sizes)
        self._engine_reports = True
        held = named = self.match(hashes)
        while named and held < len(hashes):
            lease = self._generated_after(hashes[held - 1])
            named = 0 if lease is None else self.assign_hashes(lease, hashes[held:], sizes[held:])
            held += named
        new, space = [], self.free
        for block_hash, size in zip(hashes[held:], sizes[held:], strict=False):
            if block_hash not in self._blocks.cached:
                space -= size
                if space < 0:
                    break
                new.append((block_hash, size))
        if new:
            self._blocks.allocate(sum(size for _, size in new))
            self._blocks.free(self._blocks.cache_full_blocks(new))
            self._last_hole = self._blocks.releases

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Drop blocks that the engine has evicted, but none that requests hold."""
        for block_hash in hashes_in(hashes):
            first, *copies = self._blocks.cached.get(block_hash) or (None,)
            for block in (*copies, first):
                if block is None or block.ref_cnt:
                    continue
                if block is not self._blocks.queue.head:
                    self._last_hole = self._blocks.releases
                self._blocks.evict(block)

    # Copies of other replicas.

    def contents(self) -> tuple[Sequence[BlockHash], Sequence[int]]:
        """Return the blocks that requests hold, then free ones, the last to be evicted first.

        Blocks without a hash, and all but one of those with the same, are left out.
        """
        found = [copies[0] for copies in self._blocks.cached.values()]
        first, queued = set(found), reversed(list(self._blocks.queue))
        blocks = [each for each in found if each.ref_cnt] + [
            each for each in queued if each in first
        ]
        named = [each.block_hash for each in blocks if each.block_hash is not None]
        return named, [each.size for each in blocks]

    def restore(self, hashes: Sequence[BlockHash], sizes: Sequence[int], *, closed: bool) -> None:
        """Take blocks into the free queue in the order in which `contents` gave them."""
        empty, reports = not self._blocks.count, self._engine_reports
        self.store(hashes, sizes)
        self._engine_reports = reports
        if empty and closed:
            self._last_hole = 0

    # Capacity and memory.

    def resize(self, capacity: int) -> None:
        """Change the capacity, in tokens; what requests hold stays until they release it."""
        before, self.capacity = self.capacity, tokens_in(capacity)
        self._blocks.blank_tokens += self.capacity - before
        self._blocks.allocate(0)

    def coarsen(self, blocks: int) -> None:
        """Hold at least `blocks` fewer: evict those that are next."""
        target = self._blocks.count - tokens_in(blocks)
        while self._blocks.count > target and (head := self._blocks.queue.head) is not None:
            self._blocks.evict(head)

    # Generated blocks.

    def _expect_hashes(self, lease: PoolLease, follows: BlockHash | None) -> None:
        """Let KV events that go on after a hashed block find the lease."""
        if follows is None:
            return
        if len(self._generating) >= _MAX_GENERATING:
            del self._generating[next(iter(self._generating))]
        self._generating[lease] = follows

    def _generated_after(self, block_hash: BlockHash) -> PoolLease | None:
        """Return the lease, the first of several, whose unhashed blocks follow a block."""
        for lease, follows in self._generating.items():
            if follows == block_hash and still_held(lease.unhashed_blocks):
                return lease
        return None

    # For tests.

    def free_blocks(self) -> list[BlockHash | None]:
        """Return the hashes of the free blocks with content, the next to be evicted first.

        None stands for a block without a hash (vLLM `get_all_free_blocks`).
        """
        return [block.block_hash for block in self._blocks.queue]
