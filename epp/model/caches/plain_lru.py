"""One endpoint's cache as llm-d-router's default picker imagines it, to compare with.

Mirrors its `approx-prefix-cache-producer`, whose indexer has one `golang-lru` for each endpoint,
in its units and with its errors: an entry stands for 64 tokens and counts as one, so that a
capacity taken from `num_gpu_blocks` of 16 tokens is four times too large; a prompt is written
when it is sent, from its head on, so that its head is evicted first; output is never written;
the size is fixed once a prompt is written; no event and no response corrects it.

A last, partial entry takes a place too, and no longer prompt finds it. Not modelled: the
incumbent credits an endpoint with blocks after a gap, where `match` is a prefix.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from cachetools import Cache, LRUCache

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.lease import Lease
from epp.model.caches.single_tier import SingleTierCache
from epp.model.invariants import check
from epp.model.prompts.hashing import BlockHash

ENTRY_TOKENS = 64
"""The incumbent's `blockSizeTokens` is never less, whatever the engine's blocks are."""

_EntryKey = tuple[BlockHash, bool]
"""The hash of an entry's last block, and whether the entry is partial."""


class _Entries(LRUCache[_EntryKey, Sequence[BlockHash]]):
    """The blocks of each entry. An evicted entry is counted off `holders`, entries by block."""

    def __init__(self, maxsize: int, holders: Counter[BlockHash], changes: ContentChanges) -> None:
        super().__init__(maxsize)
        self._holders = holders
        self._changes = changes

    def peek(self) -> Iterator[Sequence[BlockHash]]:
        """Go through the entries without making them recently used."""
        return (Cache.__getitem__(self, key) for key in self)

    def popitem(self) -> tuple[_EntryKey, Sequence[BlockHash]]:
        key, blocks = super().popitem()
        for block_hash in blocks:
            self._holders[block_hash] -= 1
            if not self._holders[block_hash]:
                del self._holders[block_hash]
        self._changes.record_evicted(blocks)
        return key, blocks


class PlainLru(SingleTierCache):
    """A `CacheModel` that holds nothing for requests under way, and always has room.

    `capacity` is in tokens and `block` the engine's block size: as many entries as blocks.
    """

    def __init__(self, capacity: int, block: int = 16) -> None:
        self._block = max(1, block)
        self._holders: Counter[BlockHash] = Counter()
        super().__init__(self._holders, ContentChanges(self._holders.__contains__))
        self._entries = self._sized(capacity)

    @property
    def capacity(self) -> int:
        """Tokens that all entries stand for."""
        return int(self._entries.maxsize) * max(ENTRY_TOKENS, self._block)

    @property
    def free(self) -> int:
        """The capacity: requests hold nothing."""
        return self.capacity

    @property
    def closed(self) -> bool:
        """False: the head of a prompt is evicted before its tail."""
        return False

    @property
    def block(self) -> int:
        """The engine's block size in tokens, by which the number of entries is taken."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        if not self._entries:
            self._block = max(1, block)

    def __len__(self) -> int:
        return len(self._holders)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> Lease | None:
        """Write a prompt, and return an empty lease with its hit.

        One that is larger than the cache evicts its own head, and hits nothing.
        """
        lease = Lease((), self.match(hashes[:lookup]), 0, 0)
        start = tokens = 0
        for end, size in enumerate(sizes[: len(hashes)], 1):
            tokens += size
            if tokens >= ENTRY_TOKENS:
                self._write(hashes[start:end], partial=False)
                start, tokens = end, 0
        if hashes[start:] or reserved:
            self._write(hashes[start:] or hashes[-1:], partial=True)
        if sum(sizes[: len(hashes)]) + reserved > self.capacity:
            lease.cached = 0
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Do nothing: output takes no space."""
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Do nothing: sizes count only when a prompt is written."""

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Do nothing: output is never written."""
        return 0

    def release(self, lease: Lease) -> None:
        """Do nothing: requests hold nothing."""

    def revoke(self, lease: Lease) -> None:
        """Do nothing: a prompt is written when it is sent, computed or not."""

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Do nothing: the incumbent's index without KV events knows its own traffic only."""

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Do nothing: the incumbent's index without KV events knows its own traffic only."""

    def resize(self, capacity: int) -> None:
        """Set the capacity, in tokens, while nothing is written; do nothing afterwards."""
        if not self._entries:
            self._entries = self._sized(capacity)

    def coarsen(self, blocks: int) -> None:
        """Evict the least recently used entries until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._entries:
            self._entries.popitem()

    def check_invariants(self, held: Collection[Lease]) -> None:
        """Assert that blocks are counted by entry; leases hold nothing. For tests."""
        check(
            counted_by_entry=self._holders == Counter(chain.from_iterable(self._entries.peek())),
            leases_hold_nothing=not any(lease.tokens or lease.reserved_tokens for lease in held),
        )

    def _sized(self, capacity: int) -> _Entries:
        return _Entries(max(1, capacity // self._block), self._holders, self._changes)

    def _write(self, blocks: Sequence[BlockHash], *, partial: bool) -> None:
        """Make an entry the most recently used; a partial one is found by no prompt."""
        if not blocks:
            return
        found: Sequence[BlockHash] = () if partial else tuple(blocks)
        key = blocks[-1], partial
        if key in self._entries:
            self._entries.get(key)
            return
        self._entries[key] = found
        self._holders.update(found)
        self._changes.record_stored(found)
