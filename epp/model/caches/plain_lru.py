"""One endpoint's cache as llm-d-router's default picker models it, for comparison.

Mirrors its `approx-prefix-cache-producer`, whose indexer has one `golang-lru` for each endpoint,
in its units and with its errors: an entry stands for 64 tokens and counts as one, so that a
capacity taken from `num_gpu_blocks` of 16 tokens is four times too large; a prompt is written
when it is sent, from its head on, so that its head is evicted first; output is never written;
the size is fixed once a prompt is written; no event and no response corrects it.

A last, partial entry takes a place too, and longer prompts do not find it. Not modelled:
llm-d-router credits an endpoint with blocks after a gap, while `match` counts only a prefix.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import Lease
from epp.model.caches.single_tier import SingleTierCache
from epp.model.prompts.hashing import BlockHash

ENTRY_TOKENS = 64
"""llm-d-router's `blockSizeTokens` is never less, whatever the engine's blocks are."""

_EntryKey = tuple[BlockHash, bool]
"""The hash of an entry's last block, and whether the entry is partial."""


class PlainLru(SingleTierCache):
    """A `CacheModel` that holds nothing for requests under way, and always has room.

    `capacity` is in tokens and `block` the engine's block size: as many entries as blocks.
    """

    def __init__(self, capacity: int, block: int = 16) -> None:
        self._block = max(1, block)
        self._most = max(1, capacity // self._block)
        self._entries: OrderedDict[_EntryKey, Sequence[BlockHash]] = OrderedDict()
        self._holders: Counter[BlockHash] = Counter()  # the entries that hold a block
        super().__init__(self._holders, ContentChanges(self._holders.__contains__))

    @property
    def capacity(self) -> int:
        """Tokens that all entries stand for."""
        return self._most * max(ENTRY_TOKENS, self._block)

    @property
    def free(self) -> int:
        """The capacity: requests hold nothing."""
        return self.capacity

    @property
    def blank(self) -> int:
        """Tokens that can be allocated without evicting anything."""
        return (self._most - len(self._entries)) * max(ENTRY_TOKENS, self._block)

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

    def allocate(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> Lease | None:
        """Write a prompt, and return an empty lease with its hit.

        A prompt larger than the cache evicts its own head, and hits nothing.
        """
        lease = Lease(self.match(hashes[:lookup]), 0, 0)
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
        """Do nothing: llm-d-router's index without KV events knows its own traffic only."""

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Do nothing: llm-d-router's index without KV events knows its own traffic only."""

    def resize(self, capacity: int) -> None:
        """Set the capacity, in tokens, while nothing is written; do nothing afterwards."""
        if not self._entries:
            self._most = max(1, capacity // self._block)

    def coarsen(self, blocks: int) -> None:
        """Evict the least recently used entries until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._entries:
            self._evict()

    def _write(self, blocks: Sequence[BlockHash], *, partial: bool) -> None:
        """Make an entry the most recently used; a partial one is found by no prompt."""
        if not blocks:
            return
        key = blocks[-1], partial
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        if len(self._entries) >= self._most:
            self._evict()
        found = self._entries[key] = () if partial else tuple(blocks)
        for block_hash in found:
            self._holders[block_hash] += 1
        self._changes.record_stored(found)

    def _evict(self) -> None:
        """Drop the least recently used entry; its blocks are gone if no other holds them."""
        _, blocks = self._entries.popitem(last=False)
        for block_hash in blocks:
            self._holders[block_hash] -= 1
            if not self._holders[block_hash]:
                del self._holders[block_hash]
        self._changes.record_evicted(blocks)
