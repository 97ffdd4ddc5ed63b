"""One endpoint's cache where prompts are kept whole, each by itself, the oldest forgotten first.

Mirrors llama.cpp `tools/server/server-task.cpp` (`server_prompt_cache`): an entry is the state of
one prompt with its output; a prompt starts from the entry that it shares the longest prefix with,
which is thereby the newest; one that another contains is not kept beside it; when space runs out
the oldest entry goes as a whole. Nothing is shared between entries: equal prefixes are stored once
for each. Not modelled: that it passes over entries of which little would be used.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, filterfalse
from math import inf

from cachetools import LRUCache

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.lease import Lease, own
from epp.model.prompts.block_hasher import BlockHash


class Entry(Lease):
    """One prompt: its blocks `hashes`, of `tokens` in all.

    While it is under way it holds `blank` tokens of space besides; afterwards the last `unhashed`
    of its tokens are output that nobody named. `number` names it.
    """

    __slots__ = ("computed", "hashes", "number", "over", "unhashed")

    def __init__(self, hashes: Sequence[BlockHash], cached: int, tokens: int, blank: int) -> None:
        super().__init__((), cached, tokens, blank)
        self.hashes = [*hashes]
        self.computed = 0
        self.unhashed = 0
        self.number = 0
        self.over = False


def _size(entry: Entry) -> int:
    return entry.tokens + entry.unhashed


class WholePromptCache:
    """A `CacheModel`: `capacity` in tokens. It gives space out by the token; `block` is unused."""

    def __init__(self, capacity: int, block: int = 16) -> None:
        self.block = block
        self._capacity = capacity
        self._entries: LRUCache[int, Entry] = LRUCache(inf, _size)  # those that are over
        self._held = 0  # tokens of those under way
        self._holders: dict[BlockHash, dict[int, Entry]] = {}
        self._numbers = count(1)
        self._whole = True
        self._news = ContentChanges(self._holders.__contains__)

    @property
    def capacity(self) -> int:
        """All that the cache can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, by forgetting all that is not under way."""
        return self._capacity - self._held

    @property
    def closed(self) -> bool:
        """Whether each held block has all before it: as long as entries are whole prompts."""
        return self._whole or not self._holders

    @property
    def offload_tier(self) -> None:
        """None: all is in one tier."""

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
    ) -> Entry | None:
        """Let a prompt in, as `CacheModel.admit` says."""
        tokens = sum(sizes[: len(hashes)])
        if tokens + blank > self._capacity:
            entry = Entry((), 0, 0, 0)
            entry.over = True
            return entry
        if tokens + blank > self.free:
            return None
        hits = self.match(hashes[:lookup])
        if hits:
            self._use(hashes[hits - 1])
        entry = Entry(hashes, hits, tokens, blank)
        self._held += tokens + blank
        self._trim()
        self._add(entry, hashes)
        return entry

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request that has now computed `computed` tokens; see `CacheModel.grow`."""
        entry = own(Entry, lease)
        need = 0 if entry.over else max(0, computed - entry.tokens - entry.reserved_tokens)
        if need and need > self.free:
            return False
        entry.computed = max(entry.computed, computed)
        entry.reserved_tokens += need
        self._held += need
        self._trim()
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct how much of what a prompt holds its blocks are."""
        entry = own(Entry, lease)
        change = sum(sizes) - entry.tokens
        if not entry.over and len(sizes) == len(entry.hashes) and change <= entry.reserved_tokens:
            entry.tokens += change
            entry.reserved_tokens -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Name what `lease` generated; it can be found from then on."""
        entry, sizes = own(Entry, lease), sizes[: len(hashes)]
        if entry.over and entry.number not in self._entries:
            return 0
        left = entry.unhashed if entry.over else max(0, entry.computed - entry.tokens)
        named = bisect_right(list(accumulate(sizes)), left)
        tokens = sum(sizes[:named])
        entry.tokens += tokens
        entry.hashes += hashes[:named]
        self._add(entry, hashes[:named])
        if entry.over:
            entry.unhashed -= tokens
            self._merge(entry)
        else:
            entry.reserved_tokens -= tokens
        return named

    def release(self, lease: Lease) -> None:
        """The request is over: its prompt and what it generated are the newest entry."""
        entry = own(Entry, lease)
        if entry.over:
            return
        self._end(entry)
        entry.unhashed = min(entry.reserved_tokens, max(0, entry.computed - entry.tokens))
        entry.reserved_tokens = 0
        if entry.hashes or entry.unhashed:
            self._entries[entry.number] = entry
            self._merge(entry)
        self._trim()

    def revoke(self, lease: Lease) -> None:
        """The request was never computed: its prompt is forgotten."""
        entry = own(Entry, lease)
        if not entry.over:
            self._end(entry)
            self._forget(entry)
            self._trim()

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """The engine says that it holds blocks of one chain: one more entry, if it has room."""
        tokens = sum(sizes[: len(hashes)])
        if self.match(hashes) == len(hashes) or tokens > self.free:
            return
        self._whole = False
        entry = Entry(hashes, 0, tokens, 0)
        entry.over = True
        self._add(entry, hashes)
        self._entries[entry.number] = entry
        self._trim()

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """The engine says that it evicted blocks: entries that are over lose all from there on.

        What their other blocks take is not known by itself: it stays as it was until they go.
        """
        for block_hash in hashes:
            for entry in self._over(block_hash):
                self._shorten(entry, entry.hashes.index(block_hash))
                if not entry.hashes:
                    self._forget(entry)

    def resize(self, capacity: int) -> None:
        """Change the capacity; what is under way stays, and is owed until it is over."""
        self._capacity = capacity
        self._trim()

    def coarsen(self, blocks: int) -> None:
        """Forget the oldest entries until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._entries:
            self._forget(self._entries.popitem()[1])

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""
        return self._news.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        return self._news.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return nothing: blocks are never merged."""
        return ()

    def _add(self, entry: Entry, hashes: Sequence[BlockHash]) -> None:
        entry.number = entry.number or next(self._numbers)
        for block_hash in hashes:
            self._holders.setdefault(block_hash, {})[entry.number] = entry
        self._news.stored(hashes)

    def _use(self, block_hash: BlockHash) -> None:
        """Make the entry that a prompt starts from the newest; of several, the last to come."""
        numbers = [entry.number for entry in self._over(block_hash)]
        if numbers:
            self._entries.get(max(numbers))

    def _end(self, entry: Entry) -> None:
        entry.over = True
        self._held -= entry.tokens + entry.reserved_tokens

    def _merge(self, entry: Entry) -> None:
        """Keep one of two entries where one contains the other: the longer."""
        if not entry.hashes:
            return
        end = entry.hashes[-1]
        if not entry.unhashed and len(self._over(end)) > 1:
            self._forget(entry)
            self._use(end)
            return
        contained = set(entry.hashes)
        for other in self._over(entry.hashes[0]):
            if other is not entry and not other.unhashed and other.hashes[-1] in contained:
                self._forget(other)

    def _over(self, block_hash: BlockHash) -> list[Entry]:
        """Return the entries with a block that are over."""
        holders = self._holders.get(block_hash, {}).values()
        return [entry for entry in holders if entry.number in self._entries]

    def _trim(self) -> None:
        """Forget the oldest entries until the rest fits beside what is under way."""
        while self._entries and self._entries.currsize > self.free:
            self._forget(self._entries.popitem()[1])

    def _forget(self, entry: Entry) -> None:
        self._shorten(entry, 0)
        self._entries.pop(entry.number, None)

    def _shorten(self, entry: Entry, length: int) -> None:
        for block_hash in entry.hashes[length:]:
            holders = self._holders[block_hash]
            holders.pop(entry.number, None)
            if not holders:
                del self._holders[block_hash]
        self._news.evicted(entry.hashes[length:])
        del entry.hashes[length:]
