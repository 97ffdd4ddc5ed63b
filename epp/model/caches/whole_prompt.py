"""One endpoint's cache if prompts are kept whole, each by itself, as llama.cpp keeps them.

Mirrors llama.cpp `tools/server/server-task.cpp` (`server_prompt_cache`): an entry is the state of
one prompt with its output; a prompt starts from the entry with the longest shared prefix, which
becomes the most recently used; an entry that another contains is dropped; when space runs out the
least recently used entry is evicted as a whole. Entries share nothing: equal prefixes are stored
once for each. Not modelled: llama.cpp skips entries of which little would be used.
"""

from collections.abc import Sequence
from itertools import count
from math import inf

from cachetools import LRUCache

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import Lease, lease_of
from epp.model.caches.single_tier import SingleTierCache, count_fitting
from epp.model.prompts.hashing import BlockHash


class Entry(Lease):
    """One prompt: its blocks `hashes`, of `tokens` in all, and the lease of its request.

    While the request runs it holds `reserved_tokens` beside them, of which those up to
    `computed` are output. Once it is `finished`, `unhashed` tokens are output without hashes.
    `number` is the entry's key.
    """

    __slots__ = ("computed", "finished", "hashes", "number", "unhashed")

    def __init__(
        self, hashes: Sequence[BlockHash], cached: int, tokens: int, reserved: int
    ) -> None:
        super().__init__(cached, tokens, reserved)
        self.hashes = [*hashes]
        self.computed = 0
        self.unhashed = 0
        self.number = 0
        self.finished = False


def _size(entry: Entry) -> int:
    return entry.tokens + entry.unhashed


class WholePromptCache(SingleTierCache):
    """A `CacheModel`: `capacity` in tokens. It gives space out by the token; `block` is unused."""

    def __init__(self, capacity: int, block: int = 16) -> None:
        self.block = block
        self.capacity = capacity
        """All that the cache can hold, in tokens."""
        self._entries: LRUCache[int, Entry] = LRUCache(inf, _size)  # the finished
        self._running_tokens = 0  # of entries that are not finished
        self._holders: dict[BlockHash, dict[int, Entry]] = {}
        self._numbers = count(1)
        self._prefix_closed = True
        super().__init__(self._holders, ContentChanges(self._holders.__contains__))

    @property
    def free(self) -> int:
        """Tokens that could be allocated, by evicting all finished entries."""
        return self.capacity - self._running_tokens

    @property
    def blank(self) -> int:
        """Tokens that can be allocated without evicting anything."""
        return int(self.free - self._entries.currsize)

    @property
    def closed(self) -> bool:
        """Whether each block has all before it: true while all entries are whole prompts."""
        return self._prefix_closed or not self._holders

    def __len__(self) -> int:
        return len(self._holders)

    def allocate(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> Entry | None:
        """Make an entry for a prompt, and touch the one that it starts from."""
        tokens = sum(sizes[: len(hashes)])
        if tokens + reserved > self.capacity:
            entry = Entry((), 0, 0, 0)
            entry.finished = True
            return entry
        if tokens + reserved > self.free:
            return None
        hits = self.match(hashes[:lookup])
        if hits:  # llama.cpp `server_prompt_cache::load`: the longest common prefix
            self._touch(hashes[hits - 1])
        entry = Entry(hashes, hits, tokens, reserved)
        self._running_tokens += tokens + reserved
        self._evict_oldest()
        self._add(entry, hashes)
        return entry

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate space for output."""
        entry = lease_of(Entry, lease)
        need = 0 if entry.finished else max(0, computed - entry.tokens - entry.reserved_tokens)
        if need and need > self.free:
            return False
        entry.computed = max(entry.computed, computed)
        entry.reserved_tokens += need
        self._running_tokens += need
        self._evict_oldest()
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the tokens of a prompt's blocks, all together."""
        entry = lease_of(Entry, lease)
        change = sum(sizes) - entry.tokens
        if (
            not entry.finished
            and len(sizes) == len(entry.hashes)
            and change <= entry.reserved_tokens
        ):
            entry.tokens += change
            entry.reserved_tokens -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to output; it can be found from then on."""
        entry, sizes = lease_of(Entry, lease), sizes[: len(hashes)]
        if entry.finished and entry.number not in self._entries:
            return 0
        left = entry.unhashed if entry.finished else max(0, entry.computed - entry.tokens)
        hashed = count_fitting(sizes, left)
        tokens = sum(sizes[:hashed])
        entry.tokens += tokens
        entry.hashes += hashes[:hashed]
        self._add(entry, hashes[:hashed])
        if entry.finished:
            entry.unhashed -= tokens
            self._drop_contained(entry)
        else:
            entry.reserved_tokens -= tokens
        return hashed

    def release(self, lease: Lease) -> None:
        """End a request: its prompt and output are the most recently used entry."""
        entry = lease_of(Entry, lease)
        if entry.finished:
            return
        self._finish(entry)
        entry.unhashed = min(entry.reserved_tokens, max(0, entry.computed - entry.tokens))
        entry.reserved_tokens = 0
        if entry.hashes or entry.unhashed:
            self._entries[entry.number] = entry
            self._drop_contained(entry)
        self._evict_oldest()

    def revoke(self, lease: Lease) -> None:
        """End a request that was never computed: drop its entry."""
        entry = lease_of(Entry, lease)
        if not entry.finished:
            self._finish(entry)
            self._remove(entry)
            self._evict_oldest()

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine holds blocks of one chain: one more entry, if it fits."""
        tokens = sum(sizes[: len(hashes)])
        if self.match(hashes) == len(hashes) or tokens > self.free:
            return
        self._prefix_closed = False
        entry = Entry(hashes, 0, tokens, 0)
        entry.finished = True
        self._add(entry, hashes)
        self._entries[entry.number] = entry
        self._evict_oldest()

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Record that the engine evicted blocks: finished entries lose all from there on.

        The tokens of an entry are known as a sum only: it counts in full until it goes.
        """
        for block_hash in hashes:
            for entry in self._finished_with(block_hash):
                self._truncate(entry, entry.hashes.index(block_hash))
                if not entry.hashes:
                    self._remove(entry)

    def resize(self, capacity: int) -> None:
        """Change the capacity, in tokens; what requests hold stays until they release it."""
        self.capacity = capacity
        self._evict_oldest()

    def coarsen(self, blocks: int) -> None:
        """Evict the least recently used entries until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._entries:
            self._remove(self._entries.popitem()[1])

    def _add(self, entry: Entry, hashes: Sequence[BlockHash]) -> None:
        entry.number = entry.number or next(self._numbers)
        for block_hash in hashes:
            self._holders.setdefault(block_hash, {})[entry.number] = entry
        self._changes.record_stored(hashes)

    def _touch(self, block_hash: BlockHash) -> None:
        """Make the latest of the entries that have a block the most recently used."""
        numbers = [entry.number for entry in self._finished_with(block_hash)]
        if numbers:
            self._entries.get(max(numbers))

    def _finish(self, entry: Entry) -> None:
        entry.finished = True
        self._running_tokens -= entry.tokens + entry.reserved_tokens

    def _drop_contained(self, entry: Entry) -> None:
        """Drop the shorter of two entries if one contains the other."""
        if not entry.hashes:
            return
        end = entry.hashes[-1]
        # llama.cpp `server_prompt_cache::alloc`: a prompt that an entry contains is not saved,
        # and entries that it contains are removed.
        if not entry.unhashed and len(self._finished_with(end)) > 1:
            self._remove(entry)
            self._touch(end)
            return
        contained = set(entry.hashes)
        for other in self._finished_with(entry.hashes[0]):
            if other is not entry and not other.unhashed and other.hashes[-1] in contained:
                self._remove(other)

    def _finished_with(self, block_hash: BlockHash) -> list[Entry]:
        """Return the finished entries that have a block."""
        holders = self._holders.get(block_hash, {}).values()
        return [entry for entry in holders if entry.number in self._entries]

    def _evict_oldest(self) -> None:
        """Evict the least recently used entries until the rest fits beside those of requests."""
        # llama.cpp `server_prompt_cache::update`: `states.pop_front()` while over the limit.
        while self._entries and self._entries.currsize > self.free:
            self._remove(self._entries.popitem()[1])

    def _remove(self, entry: Entry) -> None:
        self._truncate(entry, 0)
        self._entries.pop(entry.number, None)

    def _truncate(self, entry: Entry, length: int) -> None:
        for block_hash in entry.hashes[length:]:
            holders = self._holders[block_hash]
            holders.pop(entry.number, None)
            if not holders:
                del self._holders[block_hash]
        self._changes.record_evicted(entry.hashes[length:])
        del entry.hashes[length:]
