"""A block pool's free blocks that have content, in the order in which they are evicted.

Mirrors vLLM 0.32 v1/core/kv_cache_utils.py `FreeKVCacheBlockQueue`: a request's blocks are
freed last one first, to the tail; eviction is at the head. The queue is made of leases, for the
blocks that one release freed stand together; of their keys only those count that still have the
release's stamp. Blocks without content are not here: they are interchangeable and always ahead of
these, so that they are a number (`pool.py`).
"""

from collections import deque
from collections.abc import Sequence
from itertools import count

from epp.model.caches.block_pool.blocks import BlockStore
from epp.model.caches.lease import Key, Lease
from epp.model.invariants import check

_SLACK = 1024
"""Stale keys, beside four for each block held, before the queue is swept."""


class FreeQueue:
    """The free blocks of `blocks`, oldest release first: `tokens` in all."""

    def __init__(self, blocks: BlockStore) -> None:
        self.tokens = 0
        self.latest = 0  # the number of the last release
        self._blocks = blocks
        self._leases: deque[Lease] = deque()
        self._entries = 0
        self._stamps = count(1)

    @property
    def oldest(self) -> int:
        """The number of the release of the block at the head; the next one where there is none."""
        return self.latest + 1 if self.next() is None else self._leases[0].release_seq

    def append(self, lease: Lease, keys: Sequence[Key], tokens: int) -> None:
        """Append the blocks that a lease frees, in the order of the chain: `tokens` in all."""
        self.latest = lease.release_seq = next(self._stamps)
        lease.keys, lease.evictable = keys, len(keys)
        if not keys:
            return
        self._blocks.stamps.update(dict.fromkeys(keys, lease.release_seq))
        self.tokens += tokens
        self._leases.append(lease)
        self._entries += len(keys)
        if self._entries > 4 * len(self._blocks.stamps) + _SLACK:
            self._sweep()

    def replace(self, lease: Lease, keys: Sequence[Key]) -> None:
        """Replace what is left of a lease's blocks by others with the same stamp."""
        self._entries += len(keys) - lease.evictable
        lease.keys, lease.evictable = keys, len(keys)

    def evict(self, tokens: int) -> int:
        """Evict at the head until `tokens` are free or none is left; return how many are."""
        freed = 0
        while freed < tokens and self._leases:
            lease = self._leases[0]
            self._entries -= lease.evictable
            freed += self._evict(lease, tokens - freed)
            self._entries += lease.evictable
            if not lease.evictable:
                self._pop()
        return freed

    def _pop(self) -> None:
        self._leases.popleft().keys = ()

    def _evict(self, lease: Lease, tokens: int) -> int:
        """Evict the blocks of a lease, last one first, until `tokens` are free."""
        # vLLM kv_cache_manager.py `free`: blocks are freed in reverse order, so that the end of a
        # chain is evicted before its start.
        keys, left, stamp, blocks = lease.keys, lease.evictable, lease.release_seq, self._blocks
        stamps, sizes, evicted = blocks.stamps, blocks.sizes, blocks.evicted
        plain = not (blocks.copies or blocks.promoted or blocks.spans)
        freed = 0
        while left and freed < tokens:
            left -= 1
            key = keys[left] if plain else blocks.own(keys[left])
            if stamps.get(key) != stamp:
                continue
            if plain and key >= 0:
                del stamps[key]
                freed += sizes.pop(key)
                blocks.joints.discard(key)
                evicted.append(key)
            else:
                freed += blocks.drop(key)
        lease.evictable = left
        self.tokens -= freed
        return freed

    def next(self) -> Key | None:
        """Return the key of the block that is evicted next; None without any."""
        blocks = self._blocks
        while self._leases:
            lease = self._leases[0]
            while lease.evictable:
                key = lease.keys[lease.evictable - 1]
                key = blocks.promoted.get(key, key)
                if blocks.stamps.get(key) == lease.release_seq:
                    return key
                lease.evictable -= 1
                self._entries -= 1
            self._pop()
        return None

    def drop(self, key: Key) -> int:
        """Remove a free block wherever it stands; return its tokens."""
        size = self._blocks.drop(key)
        self.tokens -= size
        return size

    def merge(self, blocks: int) -> int:
        """Merge adjacent blocks, those freed first before others, until `blocks` fewer are held.

        Returns how many fewer are held. The blocks of a release are merged in pairs.
        """
        fewer = 0
        for lease in self._leases:
            if fewer >= blocks:
                break
            while lease.contiguous and fewer < blocks:
                saved = self._halve(lease)
                fewer += saved
                lease.contiguous = saved > 0  # else there is nothing to look for here again
        return fewer

    def _halve(self, lease: Lease) -> int:
        blocks, stamp = self._blocks, lease.release_seq
        if blocks.promoted:
            keys: Sequence[Key] = list(map(blocks.own, lease.keys[: lease.evictable]))
        else:
            keys = lease.keys[: lease.evictable]
        kept: list[Key] = []
        waiting: Key | None = None  # a block that the next one could stand for
        for key in keys:
            counts = blocks.stamps.get(key) == stamp
            if waiting is not None and counts and blocks.may_merge(waiting, key):
                kept.pop()
                blocks.merge(waiting, key)
                waiting = None
            else:
                waiting = key if counts else None
            kept.append(key)
        self.replace(lease, kept)
        return len(keys) - len(kept)

    def check_invariants(self) -> None:
        """Assert that the queue has the free blocks, and little else. For tests.

        After `drop` it may have more than that, until the next release.
        """
        blocks = self._blocks
        free = [key for key, stamp in blocks.stamps.items() if stamp]
        check(
            tokens=self.tokens == blocks.tokens(free),
            entries=self._entries == sum(lease.evictable for lease in self._leases),
            few_stale_entries=self._entries <= 4 * len(blocks.stamps) + _SLACK,
            no_empty_lease=all(lease.keys for lease in self._leases),
        )

    def _sweep(self) -> None:
        """Remove stale keys from the queue."""
        blocks = self._blocks
        kept: deque[Lease] = deque()
        for lease in self._leases:
            own = list(map(blocks.own, lease.keys[: lease.evictable]))
            keys = [key for key in own if blocks.stamps.get(key) == lease.release_seq]
            lease.contiguous = lease.contiguous and _is_run(keys, own)
            lease.keys, lease.evictable = keys, len(keys)
            if keys:
                kept.append(lease)
        self._leases = kept
        self._entries = sum([lease.evictable for lease in kept])


def _is_run(part: Sequence[Key], whole: Sequence[Key]) -> bool:
    """Return whether `part` stands in `whole` without anything in between."""
    if not part:
        return True
    start = whole.index(part[0])
    return list(whole[start : start + len(part)]) == list(part)
