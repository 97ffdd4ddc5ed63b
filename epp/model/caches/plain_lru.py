"""One endpoint's cache as the incumbent picker imagines it, for comparison.

Mirrors llm-d-router's `approx-prefix-cache-producer` (its indexer: one `golang-lru` for each
endpoint), in its units and with its errors: entries stand for 64 tokens and are counted, not
weighed, so that a capacity taken from `num_gpu_blocks` of 16 tokens is four times too large; a
prompt is written when it is sent, from its head on, so that its head is the first to go; what it
generates never is; the size is fixed by the first prompt; no event and no answer corrects it.

Its last, partial entry takes a place too, and is found by nothing that goes on. Not kept is that
the incumbent credits an endpoint with blocks behind a gap: `match` is a prefix.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import filterfalse

from cachetools import LRUCache

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.lease import Lease
from epp.model.prompts.block_hasher import BlockHash

ENTRY_TOKENS = 64
"""The incumbent's `blockSizeTokens` is never less, whatever the engine's blocks are."""

_End = tuple[BlockHash, bool]
"""What names an entry: the hash of its last block, and whether it is only part of one."""


class _Entries(LRUCache[_End, Sequence[BlockHash]]):
    """Blocks by the last of them; what is pushed out is counted off `holders`."""

    def __init__(self, maxsize: int, holders: Counter[BlockHash], news: ContentChanges) -> None:
        super().__init__(maxsize)
        self._holders = holders
        self._news = news

    def popitem(self) -> tuple[_End, Sequence[BlockHash]]:
        name, blocks = super().popitem()
        for block_hash in blocks:
            self._holders[block_hash] -= 1
            if not self._holders[block_hash]:
                del self._holders[block_hash]
        self._news.evicted(blocks)
        return name, blocks


class PlainLru:
    """A `CacheModel` that holds nothing for requests under way, and always has room.

    `capacity` is in tokens and `block` the engine's block size: as many entries as blocks.
    """

    def __init__(self, capacity: int, block: int = 16) -> None:
        self._block = max(1, block)
        self._holders: Counter[BlockHash] = Counter()
        self._news = ContentChanges(self._holders.__contains__)
        self._entries = self._sized(capacity)

    @property
    def capacity(self) -> int:
        """All that the cache is believed to hold, in tokens."""
        return int(self._entries.maxsize) * max(ENTRY_TOKENS, self._block)

    @property
    def free(self) -> int:
        """All of it: nothing is in use."""
        return self.capacity

    @property
    def closed(self) -> bool:
        """False: heads of prompts go before their ends."""
        return False

    @property
    def block(self) -> int:
        """The engine's block size in tokens, which only the number of entries goes by."""
        return self._block

    @block.setter
    def block(self, block: int) -> None:
        if not self._entries:
            self._block = max(1, block)

    @property
    def offload_tier(self) -> None:
        """None: the incumbent knows one tier."""

    def __len__(self) -> int:
        return len(self._holders)

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found."""
        return iter(self._holders)

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return list(self._holders)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        missing = next(filterfalse(self._holders.__contains__, hashes), None)
        return len(hashes) if missing is None else hashes.index(missing)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> Lease | None:
        """Write a prompt, whatever becomes of it; one larger than the cache pushes out itself."""
        lease = Lease((), self.match(hashes[:lookup]), 0, 0)
        start = tokens = 0
        for end, size in enumerate(sizes[: len(hashes)], 1):
            tokens += size
            if tokens >= ENTRY_TOKENS:
                self._write(hashes[start:end], partial=False)
                start, tokens = end, 0
        if hashes[start:] or blank:
            self._write(hashes[start:] or hashes[-1:], partial=True)
        if sum(sizes[: len(hashes)]) + blank > self.capacity:
            lease.cached = 0
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Take no notice of what is generated."""
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Take no notice of how long a prompt was."""

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Take no notice of what is generated."""
        return 0

    def release(self, lease: Lease) -> None:
        """Take no notice of the end of a request."""

    def revoke(self, lease: Lease) -> None:
        """Take no notice of a request that was never computed: it was written when it was sent."""

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Take no notice of what the engine says."""

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Take no notice of what the engine says."""

    def resize(self, capacity: int) -> None:
        """Take the capacity while nothing has been written, and never after."""
        if not self._entries:
            self._entries = self._sized(capacity)

    def coarsen(self, blocks: int) -> None:
        """Drop the oldest entries until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._entries:
            self._entries.popitem()

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""
        return self._news.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        return self._news.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return nothing: blocks are never merged."""
        return ()

    def _sized(self, capacity: int) -> _Entries:
        return _Entries(max(1, capacity // self._block), self._holders, self._news)

    def _write(self, blocks: Sequence[BlockHash], *, partial: bool) -> None:
        """Make an entry the newest; a partial one serves nobody."""
        if not blocks:
            return
        found: Sequence[BlockHash] = () if partial else tuple(blocks)
        name = blocks[-1], partial
        if name in self._entries:
            self._entries.get(name)
            return
        self._entries[name] = found
        self._holders.update(found)
        self._news.stored(found)
