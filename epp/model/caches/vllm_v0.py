"""One endpoint's cache as vLLM's first engine (v0, until 0.10) keeps it.

Mirrors vLLM `vllm/core/block_manager_v1.py` (0.4-0.6: `CachedBlockAllocator`, `can_allocate`,
`_promote_last_block`), and the same rules in `vllm/core/block/prefix_caching_block.py` (0.6-0.10):

- blocks are named by content, and equal blocks are one: a second request takes one more
  reference, and a generated block that is full gives way to one that is there already;
- a prompt is let in where as many blocks as it has in all, those that it would hit included, are
  free, and 1 % of all blocks remain (`watermark`);
- a block without references is the evictor's (`vllm_v0_evictor.py`). All blocks of a running
  request are accessed in every step, so a block's last access is the last release of it.

Until 0.6 a request's last full block counts as computed once there is one more; here at once.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, filterfalse

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.lease import Key, Lease, own
from epp.model.caches.vllm_v0_evictor import LruEvictor
from epp.model.prompts.block_hasher import BlockHash

WATERMARK = 0.01  # what of all blocks stays free when a prompt is let in (`BlockSpaceManager`)


class CachedLease(Lease):
    """What one request holds: the blocks `keys`, of `tokens` in all, and `blank` space.

    `named` adds what it generated; `full` counts the tokens of full blocks of these that nobody
    named, `ends` all before them. In the end they are the block `rest`, last accessed at `stamp`.
    """

    __slots__ = ("ends", "full", "named", "rest")

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, blank: int) -> None:
        super().__init__(keys, cached, tokens, blank)
        self.named: list[Key] = [*keys]
        self.full = 0
        self.ends = tokens
        self.rest: Key = 0


class VllmV0Cache:
    """A `CacheModel`: `capacity` in tokens, `block` the engine's block size."""

    def __init__(self, capacity: int, block: int = 16) -> None:
        self._capacity = capacity
        self._block = max(1, block)
        self._blank = capacity  # free and without content; below 0 after shrinking under load
        self._references: dict[Key, int] = {}
        self._unproven: set[Key] = set()  # used by requests of which none was computed yet
        self._sizes: dict[Key, int] = {}
        self._ends: dict[Key, int] = {}
        self._evictor = LruEvictor()  # has those without references
        self._idle = 0  # tokens of these
        self._unhashed = 0
        self._steps = count(1)
        self._whole = True
        self._told = False
        self._news = ContentChanges(self._sizes.__contains__)

    @property
    def capacity(self) -> int:
        """All that the cache can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, by evicting all that no request uses."""
        return self._blank + self._idle

    @property
    def closed(self) -> bool:
        """Whether each held block has all before it: so until events come, and after a flush."""
        return self._whole or not self._sizes

    @property
    def block(self) -> int:
        """The engine's block size, in tokens."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        self._block = max(1, block)

    @property
    def offload_tier(self) -> None:
        """None: all is in one tier."""

    def __len__(self) -> int:
        return len(self._sizes) - self._unhashed

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found."""
        return (BlockHash(key) for key in self._sizes if key >= 0)

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return list(self)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        missing = next(filterfalse(self._sizes.__contains__, hashes), None)
        return len(hashes) if missing is None else hashes.index(missing)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> CachedLease | None:
        """Let a prompt in, as `CacheModel.admit` says."""
        sizes = sizes[: len(hashes)]
        total = sum(sizes) + blank
        spare = int(self._capacity // self._block * WATERMARK) * self._block
        if total > self._capacity - spare:
            return CachedLease((), 0, 0, 0)
        if total > self.free - spare:
            return None
        lease = CachedLease(hashes, min(self.match(hashes), lookup), total - blank, blank)
        end = 0
        for key, size in zip(hashes, sizes, strict=True):
            end += size
            self._allocate(lease, key, size, end)
        self._take(blank)
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request that has now computed `computed` tokens; see `CacheModel.grow`."""
        held = own(CachedLease, lease)
        if held.release_seq or not held.tokens + held.reserved_tokens:
            return True
        full = computed // self._block * self._block
        space = -(-computed // self._block) * self._block
        need = max(0, space - held.tokens - held.reserved_tokens)
        if need and need > self.free:
            return False
        self._take(need)
        more = max(0, full - held.tokens)
        held.full += more
        held.tokens += more
        held.reserved_tokens += need - more
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of what a prompt brought, where no other request holds it."""
        held, end = own(CachedLease, lease), 0
        if held.release_seq or not held.keys or len(sizes) != len(held.keys):
            return
        held.ends -= self._ends[held.keys[-1]]
        for key, size in zip(held.keys, sizes, strict=True):
            more = size - self._sizes[key]
            end += size
            self._ends[key] = end
            if (
                key in self._unproven
                and self._references[key] == 1
                and more <= held.reserved_tokens
            ):
                self._sizes[key] = size
                held.tokens += more
                held.reserved_tokens -= more
        held.ends += end

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Name what `lease` generated: each block from then on is one with its equals."""
        held = own(CachedLease, lease)
        sizes = sizes[: len(hashes)]
        left = self._sizes.get(held.rest, 0) if held.release_seq else held.full
        named = bisect_right(list(accumulate(sizes)), left)
        if not named:
            return 0
        if held.release_seq:
            self._shrink(held.rest, sum(sizes[:named]))
        for key, size in zip(hashes[:named], sizes, strict=False):
            held.ends += size
            if held.release_seq:
                self._rest_at(key, size, held.ends, held.release_seq)
            else:
                held.full -= size
                self._blank += size
                self._allocate(held, key, size, held.ends)
                held.named.append(key)
        return named

    def release(self, lease: Lease) -> None:
        """The request is over: what nobody else uses may be evicted, deepest first."""
        held = own(CachedLease, lease)
        if not held.release_seq:
            self._unproven.difference_update(held.named)
            self._release(held)

    def revoke(self, lease: Lease) -> None:
        """The request was never computed: what only such ones used is dropped."""
        held = own(CachedLease, lease)
        if not held.release_seq:
            self._whole = self._whole and not self._told  # what was told may stand on what goes
            self._blank += held.full
            held.full = 0
            self._release(held)

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """The engine says that it holds blocks of one chain; as many as there is room for."""
        step, known = next(self._steps), self.match(hashes)
        resting = [key for key in hashes[:known] if key in self._evictor]
        for key in resting:
            self._place(key, step)
        end = self._ends[hashes[known - 1]] if known else 0
        idle = sum([self._sizes[key] for key in resting])
        fit = bisect_right(list(accumulate(sizes[known : len(hashes)])), self.free - idle)
        rooted = known > 0 and self._ends[hashes[0]] == self._sizes[hashes[0]]
        self._whole = self._whole and (rooted or not (known or fit))
        self._told = self._told or fit > 0
        for key, size in zip(hashes[known:], sizes[known : known + fit], strict=False):
            end += size
            self._take(size)
            self._blank += size  # what rests there takes it
            self._rest_at(key, size, end, step)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """The engine says that it evicted blocks; those in use here stay."""
        for key in hashes:
            if key in self._evictor:
                self._whole = False
                self._drop(key)

    def resize(self, capacity: int) -> None:
        """Change the capacity; what is in use stays, and is owed until it is free."""
        self._capacity, more = capacity, capacity - self._capacity
        self._take(-more)

    def coarsen(self, blocks: int) -> None:
        """Evict, in the evictor's order, until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and len(self._evictor):
            self._drop(self._evictor.first()[0])

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""
        return self._news.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        return self._news.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return nothing: blocks are never merged."""
        return ()

    def _allocate(self, lease: CachedLease, key: Key, size: int, end: int) -> None:
        """Give a request a block: the one of that name, or another in place of the evicted."""
        if key in self._evictor:
            self._idle -= self._sizes[key]
            self._evictor.remove(key)
        elif key not in self._sizes:
            self._take(size)
            self._sizes[key], self._ends[key] = size, end
            self._news.stored((BlockHash(key),))
            self._unproven.add(key)
        self._references[key] = self._references.get(key, 0) + 1

    def _release(self, lease: CachedLease) -> None:
        lease.release_seq = step = next(self._steps)
        for key in lease.named:
            self._references[key] -= 1
            if self._references[key]:
                continue
            del self._references[key]
            self._place(key, step)
            if key in self._unproven:
                self._drop(key)
        if lease.full:
            lease.rest = -next(self._steps)
            self._unhashed += 1
            self._blank += lease.full
            self._rest_at(lease.rest, lease.full, lease.ends + lease.full, step)
        self._blank += lease.reserved_tokens
        lease.keys, lease.tokens, lease.reserved_tokens, lease.full = (), 0, 0, 0
        self._take(0)

    def _rest_at(self, key: Key, size: int, end: int, step: int) -> None:
        """Make blank space a block without references; a second of its name is not kept."""
        if key in self._sizes:
            self._unproven.discard(key)
            if key in self._evictor:
                self._place(key, step)
            return
        self._sizes[key], self._ends[key] = size, end
        self._blank -= size
        if key >= 0:
            self._news.stored((BlockHash(key),))
        self._place(key, step)

    def _place(self, key: Key, step: int) -> None:
        """Give a block without references its place among those to be evicted."""
        if key not in self._evictor:
            self._idle += self._sizes[key]
        self._evictor.add(key, step, self._ends[key])

    def _take(self, tokens: int) -> None:
        """Take blank space, evicting for it what comes first."""
        self._blank -= tokens
        while self._blank < 0 and len(self._evictor):
            key, step = self._evictor.first()
            if key < 0 and self._sizes[key] > self._block:
                self._shrink(key, self._block)
                self._ends[key] -= self._block
                self._place(key, step)
            else:
                self._drop(key)

    def _shrink(self, key: Key, tokens: int) -> None:
        """Make a part of what has no name blank."""
        self._sizes[key] -= tokens
        self._idle -= tokens
        self._blank += tokens
        if not self._sizes[key]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """Make a block without references blank."""
        size = self._sizes.pop(key)
        del self._ends[key]
        self._unproven.discard(key)
        self._evictor.remove(key)
        self._idle -= size
        self._blank += size
        if key < 0:
            self._unhashed -= 1
        else:
            self._news.evicted((BlockHash(key),))
