"""One endpoint's cache as SGLang keeps it: RadixAttention over chains of block hashes.

Mirrors SGLang 0.5.23, `srt/mem_cache/radix_cache.py` (`checkpoint`, `inc_lock_ref`, `evict`),
`srt/mem_cache/allocation.py` and `common.py` (`release_kv_cache`):

- a prompt is let in with the path that it hit locked; space is evicted for what it did not;
- its whole pages then go into the tree, where pages that another request put there meanwhile are
  freed as duplicates, and count a hit on every node of its path;
- what it generates is its own, neither found nor evicted, until it ends; then the whole pages of
  all that it computed go into the tree, the output as a node of its own below the prompt, which
  is preferred to it by one in priority;
- everything on the path of a running request is locked; whole unlocked leaves are evicted;
- pages larger than a token are allocated with one in reserve for every request in the batch.

A prompt is in the tree from the moment it is let in, where SGLang has it once it is computed:
until then SGLang keeps back requests that share its prefix (`schedule_policy.py`, in-batch prefix
caching). Boundaries that chunked prefill leaves in the tree are not known here; output that is
named bit by bit may leave some that SGLang does not have.
"""

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate, count, takewhile

from cachetools import LRUCache

from epp.model.caches.lease import Key, Lease, own
from epp.model.caches.radix_tree import Node, RadixTree
from epp.model.caches.sglang_eviction import DEFAULT_STRATEGY, STRATEGIES
from epp.model.prompts.block_hasher import BlockHash

_OPEN = 1 << 12
"""Requests whose output an event may name; of more, the latest."""


class RadixLease(Lease):
    """What one request holds: the path to `node`, and `blank` tokens outside the tree.

    `computed` counts its tokens that were computed. `names` and `name_sizes` are known of its
    output and not yet in the tree; `unnamed` is the key of output that nobody has named, once it
    is in the tree.
    """

    __slots__ = ("computed", "name_sizes", "names", "node", "unnamed")

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, blank: int) -> None:
        super().__init__(keys, cached, tokens, blank)
        self.node: Node | None = None
        self.computed = 0
        self.names: list[BlockHash] = []
        self.name_sizes: list[int] = []
        self.unnamed: Key = 0


class RadixCache:
    """A `CacheModel`: `capacity` in tokens, `page` the engine's `--page-size`.

    `strategy` is one of `eviction.STRATEGIES`. Blocks are whole pages, or not much is exact.
    """

    def __init__(self, capacity: int, page: int = 1, strategy: str = DEFAULT_STRATEGY) -> None:
        self._capacity = capacity
        self._page = max(1, page)
        self._tree = RadixTree(STRATEGIES[strategy])
        self._private = 0  # allocated to requests, outside the tree
        self._running = 0
        self._tails = count(1)
        self._open: LRUCache[Key, RadixLease] = LRUCache(_OPEN)  # by what their output follows

    @property
    def capacity(self) -> int:
        """All that the cache can hold, in tokens."""
        return self._capacity

    @property
    def free(self) -> int:
        """What could be allocated now, by evicting all that no request uses."""
        return self._available + self._tree.evictable

    @property
    def closed(self) -> bool:
        """Whether all held blocks hang together: leaves go first, so only events break it."""
        return not self._tree.orphans

    @property
    def block(self) -> int:
        """SGLang's `--page-size`, in tokens."""
        return self._page

    @block.setter
    def block(self, block: int) -> None:
        self._page = max(1, block)

    @property
    def offload_tier(self) -> None:
        """None: all is in one tier."""

    @property
    def _available(self) -> int:
        return self._capacity - self._tree.tokens - self._private

    def __len__(self) -> int:
        return len(self._tree.owners) - self._tree.unhashed

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found."""
        return (BlockHash(key) for key in self._tree.owners if key >= 0)

    def hashes(self) -> Sequence[BlockHash]:
        """All blocks that can be found."""
        return list(self)

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""
        return self._tree.match(hashes)

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> RadixLease | None:
        """Let a prompt in, as `CacheModel.admit` says."""
        sizes = sizes[: len(hashes)]
        total = sum(sizes) + blank
        if total > self._capacity:
            return RadixLease((), 0, 0, 0)
        hits = self.match(hashes[:lookup])
        found = sum(sizes[:hits])
        need = total - found
        if need > self.free - self._idle(hashes[:hits]):
            return None
        tree = self._tree
        path = tree.insert(tree.root, hashes[:hits], sizes[:hits], total)
        tree.lock(path)
        self._make_room(need + self._spare(1))
        lease = RadixLease(hashes, hits, total - blank, blank)
        lease.node = tree.insert(tree.root, hashes, sizes)
        tree.lock(lease.node)
        tree.unlock(path)
        self._private += blank
        self._running += 1
        if hashes:
            self._open[hashes[-1]] = lease
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request that has now computed `computed` tokens; see `CacheModel.grow`."""
        held = own(RadixLease, lease)
        if held.node is None or computed <= held.computed:
            return True
        space = -(-computed // self._page) * self._page
        need = max(0, space - held.tokens - held.reserved_tokens)
        if need and need > self.free:
            return False
        if held.computed:
            self._make_room(max(need, self._spare(self._running)))
        held.computed = computed
        held.reserved_tokens += need
        self._private += need
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of what a prompt brought, where no other request holds it."""
        held = own(RadixLease, lease)
        if held.node is None or len(sizes) != len(held.keys):
            return
        known = dict(zip(held.keys, sizes, strict=True))
        change = self._tree.remeasure(held.node, known, held.reserved_tokens)
        held.tokens += change
        held.reserved_tokens -= change
        self._private -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Name what `lease` generated; it can be found once the request is over."""
        held = own(RadixLease, lease)
        before = self._named_before(held, hashes)
        new, parts = hashes[before:], sizes[before : len(hashes)]
        if held.node is not None:
            left = self._output(held) - sum(held.name_sizes)
            named = bisect_right(list(accumulate(parts)), left)
            held.names += new[:named]
            held.name_sizes += parts[:named]
        else:
            owner = self._tree.owners.get(held.unnamed) if held.unnamed else None
            named = 0 if owner is None else self._rename(held, owner, new, parts)
        if named:
            self._open[new[named - 1]] = held
        return before + named

    def _named_before(self, lease: RadixLease, hashes: Sequence[BlockHash]) -> int:
        """Count the leading hashes that `lease` has had before: an engine's events name it too."""
        known: Container[Key] = lease.names
        if lease.node is None:
            held = hashes and hashes[0] in self._tree.owners
            owner = self._tree.owners.get(lease.unnamed) if lease.unnamed and held else None
            known = () if owner is None else self._tree.way_to(owner)
        return sum(1 for _ in takewhile(known.__contains__, hashes))

    def release(self, lease: Lease) -> None:
        """The request is over: the whole pages that it computed are the tree's."""
        held = own(RadixLease, lease)
        node = held.node
        if node is None:
            return
        tree, rest = self._tree, self._output(held) - sum(held.name_sizes)
        keys, sizes = self._with_tail(held, held.names, held.name_sizes, rest)
        self._leave(held)
        tree.insert(node, keys, sizes).proven = True
        tree.touch(node, priority=1 if keys else 0)
        tree.unlock(node)
        self._pay()

    def revoke(self, lease: Lease) -> None:
        """The request was never computed: what only such ones put into the tree is dropped."""
        held = own(RadixLease, lease)
        node = held.node
        if node is None:
            return
        self._leave(held)
        self._tree.unlock(node)
        while not (node.parent is None or node.proven or node.locks or node.children):
            above = node.parent
            self._tree.cut(node, 0)
            node = above
        self._pay()

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """The engine says that it holds blocks of one chain.

        Where they follow what a request holds they are its output. Those whose place is not
        known, because the block before them is not held, are orphans until a prompt goes there.
        """
        tree, known = self._tree, self.match(hashes)
        lease = self._open.get(hashes[known - 1]) if known else None
        if lease is not None:
            known += self.assign_hashes(lease, hashes[known:], sizes[known:])
        if known == len(hashes):
            return
        placed = known and hashes[known - 1] in tree.owners
        start = tree.ends_at(hashes[known - 1]) if placed else tree.root
        tree.lock(start)
        fit = bisect_right(list(accumulate(sizes[known : len(hashes)])), self.free)
        new, parts = hashes[known : known + fit], sizes[known : known + fit]
        self._make_room(sum(parts))
        tree.insert(start, new, parts).proven = True
        if new and not placed:
            tree.strand(new[0])
        tree.unlock(start)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """The engine says that it evicted blocks; those in use here stay."""
        for block_hash in reversed(hashes):
            owner = self._tree.owners.get(block_hash)
            if owner is not None and not owner.locks:
                self._tree.drop(block_hash)

    def resize(self, capacity: int) -> None:
        """Change the capacity; what is in use stays, and is owed until it is free."""
        self._capacity = capacity
        self._pay()

    def coarsen(self, blocks: int) -> None:
        """Evict whole leaves, the next in order first, until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._tree.evictable:
            self._tree.evict(1)

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""
        return self._tree.news.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""
        return self._tree.news.take_evicted()

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return nothing: blocks are never merged."""
        return ()

    def _idle(self, found: Sequence[BlockHash]) -> int:
        """Count the tokens of a held path that no lock protects yet."""
        tree, idle, at = self._tree, 0, 0
        while at < len(found):
            owner = tree.owners[found[at]]
            part = min(len(owner.keys), len(found) - at)
            if not owner.locks:
                idle += sum(owner.sizes[:part])
            at += part
        return idle

    def _make_room(self, need: int) -> None:
        """Evict until `need` can be allocated, or nothing is left to evict."""
        self._tree.evict(need - self._available)

    def _spare(self, requests: int) -> int:
        """Return what SGLang keeps in reserve for requests that it extends or decodes.

        `alloc_paged_token_slots_extend` and `alloc_paged_token_slots_decode`: a page for each.
        """
        return requests * self._page if self._page > 1 else 0

    def _output(self, lease: RadixLease) -> int:
        """Count the tokens in whole pages that a request computed and no hash of it names."""
        return max(0, lease.computed // self._page * self._page - lease.tokens)

    def _leave(self, lease: RadixLease) -> None:
        """Take back what a request held outside the tree."""
        self._private -= lease.reserved_tokens
        self._running -= 1
        lease.node, lease.keys, lease.tokens, lease.reserved_tokens = None, (), 0, 0

    def _pay(self) -> None:
        """Give back what was owed since the cache shrank."""
        self._tree.evict(-self._available)

    def _rename(
        self, lease: RadixLease, owner: Node, hashes: Sequence[BlockHash], sizes: Sequence[int]
    ) -> int:
        """Name the tail that a finished request left in the tree."""
        tree, size = self._tree, owner.sizes[-1]
        named = bisect_right(list(accumulate(sizes)), size)
        if not named:
            return 0
        rest = size - sum(sizes[:named])
        tree.replace_last(owner, *self._with_tail(lease, hashes[:named], sizes[:named], rest))
        return named

    def _with_tail(
        self, lease: RadixLease, hashes: Sequence[Key], sizes: Sequence[int], rest: int
    ) -> tuple[list[Key], list[int]]:
        """Put `rest` tokens that nobody can name behind those that somebody did."""
        if rest <= 0:
            lease.unnamed = 0
            return [*hashes], [*sizes]
        lease.unnamed = -next(self._tails)
        return [*hashes, lease.unnamed], [*sizes, rest]
