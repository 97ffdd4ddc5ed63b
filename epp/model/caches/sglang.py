"""One endpoint's cache as SGLang keeps it: RadixAttention over chains of block hashes.

Mirrors SGLang 0.5.23, `srt/mem_cache/radix_cache.py` (`checkpoint`, `inc_lock_ref`, `evict`),
`srt/mem_cache/allocation.py` and `common.py` (`release_kv_cache`):

- a prompt is admitted with the path that it hit locked; for the rest space is evicted;
- its whole pages are then inserted into the tree, which counts a hit on every node of its path;
  pages that another request inserted meanwhile are freed as duplicates;
- until it ends its output is neither found nor evicted; then all whole pages that it computed are
  inserted, the output as a node of its own below the prompt's nodes, with a priority one higher;
- the path of a running request is locked; unlocked leaves are evicted, whole;
- if pages are larger than a token, one page is kept in reserve for each request in the batch.

A prompt is in the tree once it is admitted; in SGLang once it is computed, which until then holds
back requests that share its prefix (`schedule_policy.py`, in-batch prefix caching). Node boundaries
that chunked prefill leaves in the tree are not modelled. Output that gets its hashes bit by bit may
leave boundaries that SGLang does not have.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import count, takewhile

from cachetools import LRUCache

from epp.model.caches.contract import Key, Lease, lease_of
from epp.model.caches.radix_tree import Node, RadixTree, Strategy
from epp.model.caches.single_tier import SingleTierCache, count_fitting
from epp.model.prompts.hashing import BlockHash

_MAX_LEASES = 1 << 12
"""The number of recent requests whose output may get hashes from KV events."""
_PROTECTED_HITS = 2  # SGLang SLRUStrategy: protected_threshold

DEFAULT_STRATEGY = "lru"
STRATEGIES: Mapping[str, Strategy] = {
    "lru": lambda node: (node.last_access_time,),
    "lfu": lambda node: (node.hit_count, node.last_access_time),
    "fifo": lambda node: (node.creation_time,),
    "mru": lambda node: (-node.last_access_time,),
    "filo": lambda node: (-node.creation_time,),
    "priority": lambda node: (node.priority, node.last_access_time),
    "slru": lambda node: (node.hit_count >= _PROTECTED_HITS, node.last_access_time),
}
"""The rank of a node, of which the lowest is evicted first, by `--radix-eviction-policy`.

Mirrors SGLang `srt/mem_cache/evict_policy.py`, but for `tlru`: no endpoint reports its thresholds.
"""


class RadixLease(Lease):
    """The space of one request: `keys`, the path to `node`, and `reserved_tokens` outside the tree.

    `computed` is how many of its tokens were computed. `output_hashes` and `output_sizes`
    (tokens) are the blocks of output that have hashes and are not yet in the tree. Once it is
    over, `node` is None, and `unhashed_key` the tree's key of output without hashes, 0 for none.
    """

    __slots__ = ("computed", "keys", "node", "output_hashes", "output_sizes", "unhashed_key")

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, reserved: int) -> None:
        super().__init__(cached, tokens, reserved)
        self.keys = keys
        self.node: Node | None = None
        self.computed = 0
        self.output_hashes: list[BlockHash] = []
        self.output_sizes: list[int] = []
        self.unhashed_key: Key = 0


class RadixCache(SingleTierCache):
    """A `CacheModel`. `capacity` and `page`, SGLang's `--page-size`, are in tokens.

    `strategy` is one of `STRATEGIES`. Exact if blocks are whole pages.
    """

    def __init__(self, capacity: int, page: int = 1, strategy: str = DEFAULT_STRATEGY) -> None:
        self.capacity = capacity
        """All that the cache can hold, in tokens."""
        self._page = max(1, page)
        self._tree = RadixTree(STRATEGIES[strategy])
        super().__init__(self._tree.owners, self._tree.changes)
        self._private = 0  # tokens allocated to requests, outside the tree
        self._running = 0  # requests
        self._unhashed_keys = count(1)
        # By the block that their output follows.
        self._by_last_block: LRUCache[Key, RadixLease] = LRUCache(_MAX_LEASES)

    @property
    def free(self) -> int:
        """Tokens that could be allocated, by evicting all that is not locked."""
        return self.blank + self._tree.evictable_size

    @property
    def blank(self) -> int:
        """Tokens that can be allocated without evicting anything."""
        return self.capacity - self._tree.tokens - self._private

    @property
    def closed(self) -> bool:
        """Whether no block is an orphan. Leaves are evicted first, so only KV events make any."""
        return not self._tree.orphans

    @property
    def block(self) -> int:
        """SGLang's `--page-size`, in tokens."""
        return self._page

    @block.setter
    def block(self, block: int) -> None:
        self._page = max(1, block)

    def __len__(self) -> int:
        return len(self._tree.owners) - self._tree.unhashed

    def allocate(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> RadixLease | None:
        """Allocate a prompt, and insert its blocks into the tree."""
        sizes = sizes[: len(hashes)]
        total = sum(sizes) + reserved
        if total > self.capacity:
            return RadixLease((), 0, 0, 0)
        hits = self.match(hashes[:lookup])
        found = sum(sizes[:hits])
        need = total - found
        if need > self.free - self._unlocked(hashes[:hits]):
            return None
        tree = self._tree
        # SGLang `match_prefix`: the hit is refreshed, split where it ends, and not counted. It
        # is locked before space is evicted.
        path = tree.insert(tree.root, hashes[:hits], sizes[:hits], total)
        tree.inc_lock_ref(path)
        self._make_room(need + self._reserve(1))
        lease = RadixLease(hashes, hits, total - reserved, reserved)
        # SGLang `cache_unfinished_req`: the prompt is inserted, and locked to its end.
        lease.node = tree.insert(tree.root, hashes, sizes)
        tree.inc_lock_ref(lease.node)
        tree.dec_lock_ref(path)
        self._private += reserved
        self._running += 1
        if hashes:
            self._by_last_block[hashes[-1]] = lease
        return lease

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate pages for output, outside the tree."""
        held = lease_of(RadixLease, lease)
        if held.node is None or computed <= held.computed:
            return True
        space = -(-computed // self._page) * self._page
        need = max(0, space - held.tokens - held.reserved_tokens)
        if need and need > self.free:
            return False
        decoding = self._running if held.computed else 0
        self._make_room(max(need, self._reserve(decoding)))
        held.computed = computed
        held.reserved_tokens += need
        self._private += need
        return True

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of a prompt's blocks that no other request holds."""
        held = lease_of(RadixLease, lease)
        if held.node is None or len(sizes) != len(held.keys):
            return
        known = dict(zip(held.keys, sizes, strict=True))
        change = self._tree.correct_sizes(held.node, known, held.reserved_tokens)
        held.tokens += change
        held.reserved_tokens -= change
        self._private -= change

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to output; it can be found once the request is over."""
        held = lease_of(RadixLease, lease)
        before = self._assigned_before(held, hashes)
        new, parts = hashes[before:], sizes[before : len(hashes)]
        if held.node is not None:
            left = self._output(held) - sum(held.output_sizes)
            hashed = count_fitting(parts, left)
            held.output_hashes += new[:hashed]
            held.output_sizes += parts[:hashed]
        else:
            owner = self._unhashed_output(held)
            hashed = 0 if owner is None else self._hash_output(held, owner, new, parts)
        if hashed:
            self._by_last_block[new[hashed - 1]] = held
        return before + hashed

    def _assigned_before(self, lease: RadixLease, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading hashes output of `lease` has: KV events may have given them."""
        known: Container[Key] = lease.output_hashes
        if lease.node is None:
            if not hashes or hashes[0] not in self._tree.owners:
                return 0
            owner = self._unhashed_output(lease)
            known = () if owner is None else self._tree.keys_up_to(owner)
        return sum(1 for _ in takewhile(known.__contains__, hashes))

    def _unhashed_output(self, lease: RadixLease) -> Node | None:
        """Return the node that ends with the output of a finished request, without hashes."""
        return self._tree.owners.get(lease.unhashed_key) if lease.unhashed_key else None

    def release(self, lease: Lease) -> None:
        """End a request: insert the whole pages that it computed, and unlock its path."""
        held = lease_of(RadixLease, lease)
        node = held.node
        if node is None:
            return
        tree, rest = self._tree, self._output(held) - sum(held.output_sizes)
        keys, sizes = self._with_output(held, held.output_hashes, held.output_sizes, rest)
        self._free_private(held)
        # SGLang `cache_finished_req`: whole pages are inserted, the rest is freed.
        tree.insert(node, keys, sizes).computed = True
        tree.touch(node, priority=1 if keys else 0)
        tree.dec_lock_ref(node)
        self._make_room(0)

    def revoke(self, lease: Lease) -> None:
        """End a request that was never computed: remove nodes that only such ones inserted."""
        held = lease_of(RadixLease, lease)
        node = held.node
        if node is None:
            return
        self._free_private(held)
        self._tree.dec_lock_ref(node)
        while not (node.parent is None or node.computed or node.lock_ref or node.children):
            above = node.parent
            self._tree.truncate(node, 0)
            node = above
        self._make_room(0)

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine holds blocks of one chain, as far as there is space.

        If they follow the blocks of a request they are its output. If the block before them is not
        held they are orphans, until a prompt's walk passes them.
        """
        tree, known = self._tree, self.match(hashes)
        lease = self._by_last_block.get(hashes[known - 1]) if known else None
        if lease is not None:
            known += self.assign_hashes(lease, hashes[known:], sizes[known:])
        if known == len(hashes):
            return
        placed = known and hashes[known - 1] in tree.owners
        start = tree.node_ending_at(hashes[known - 1]) if placed else tree.root
        tree.inc_lock_ref(start)
        fit = count_fitting(sizes[known : len(hashes)], self.free)
        new, parts = hashes[known : known + fit], sizes[known : known + fit]
        self._make_room(sum(parts))
        tree.insert(start, new, parts).computed = True
        if new and not placed:
            tree.mark_orphan(new[0])
        tree.dec_lock_ref(start)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Record that the engine evicted blocks; those that requests hold stay."""
        for block_hash in reversed(hashes):
            owner = self._tree.owners.get(block_hash)
            if owner is not None and not owner.lock_ref:
                self._tree.remove_block(block_hash)

    def resize(self, capacity: int) -> None:
        """Change the capacity, in tokens; what requests hold stays until they release it."""
        self.capacity = capacity
        self._make_room(0)

    def coarsen(self, blocks: int) -> None:
        """Evict leaves, lowest rank first, until `blocks` fewer are held."""
        target = len(self) - blocks
        while len(self) > target and self._tree.evictable_size:
            self._tree.evict(1)

    def _unlocked(self, found: Sequence[BlockHash]) -> int:
        """Return the tokens of a held path that no lock protects."""
        tree, unlocked, at = self._tree, 0, 0
        while at < len(found):
            owner = tree.owners[found[at]]
            part = min(len(owner.keys), len(found) - at)
            if not owner.lock_ref:
                unlocked += sum(owner.sizes[:part])
            at += part
        return unlocked

    def _make_room(self, need: int) -> None:
        """Evict until `need` tokens can be allocated, or nothing is left to evict."""
        self._tree.evict(need - self.blank)

    def _reserve(self, requests: int) -> int:
        """Return the tokens kept in reserve for `requests` that are extended or decoded."""
        # SGLang `alloc_paged_token_slots_extend`, `alloc_paged_token_slots_decode`: a page each.
        return requests * self._page if self._page > 1 else 0

    def _output(self, lease: RadixLease) -> int:
        """Return the tokens of output in whole pages that a request computed."""
        return max(0, lease.computed // self._page * self._page - lease.tokens)

    def _free_private(self, lease: RadixLease) -> None:
        """Free a request's blocks outside the tree, and end its lease."""
        self._private -= lease.reserved_tokens
        self._running -= 1
        lease.node, lease.keys, lease.tokens, lease.reserved_tokens = None, (), 0, 0

    def _hash_output(
        self, lease: RadixLease, owner: Node, hashes: Sequence[BlockHash], sizes: Sequence[int]
    ) -> int:
        """Give hashes to the output that a finished request left in the tree."""
        tree, size = self._tree, owner.sizes[-1]
        hashed = count_fitting(sizes, size)
        if not hashed:
            return 0
        rest = size - sum(sizes[:hashed])
        tree.replace_last(owner, *self._with_output(lease, hashes[:hashed], sizes[:hashed], rest))
        return hashed

    def _with_output(
        self, lease: RadixLease, hashes: Sequence[Key], sizes: Sequence[int], rest: int
    ) -> tuple[list[Key], list[int]]:
        """Return hashed blocks, with `rest` tokens of output without hashes after them."""
        if rest <= 0:
            lease.unhashed_key = 0
            return [*hashes], [*sizes]
        lease.unhashed_key = -next(self._unhashed_keys)
        return [*hashes, lease.unhashed_key], [*sizes, rest]
