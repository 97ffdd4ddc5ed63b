"""A radix tree over chains of block hashes that splits, locks and evicts nodes as SGLang's does.

Mirrors the tree of SGLang 0.5.23, `srt/mem_cache/radix_cache.py`; its default cache,
`unified_radix_cache.py`, has the same rules for full attention. Node fields have SGLang's names:

- a walk refreshes every node on its way (`_match_prefix_helper`, `_insert_helper`);
- at a fork a node is split, and its upper half becomes the new node (`_split_node`);
- a lock on a node holds it and all above it (`inc_lock_ref`);
- only unlocked leaves are evicted, whole; then the parent may be a leaf (`evict`). SGLang ranks
  all leaves at each eviction, here a leaf is ranked when it changes.

A hash stands for a block and all before it, so a path needs no search: the next node is the
owner of the next hash. A node whose parent is unknown, because KV events reported blocks in the
middle of a chain, hangs below the root as an orphan until a walk passes it.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import Key
from epp.model.prompts.hashing import BlockHash

_SLACK = 64
"""Stale heap entries, beside one for each block held, before the heap is rebuilt."""


class Node:
    """A run of blocks that only ever occur together; times are ticks of the tree's clock."""

    __slots__ = (
        "children",
        "computed",
        "creation_time",
        "heap_entry",
        "hit_count",
        "keys",
        "last_access_time",
        "lock_ref",
        "orphan",
        "parent",
        "priority",
        "sizes",
        "tokens",
    )

    def __init__(
        self, parent: "Node | None", keys: Sequence[Key], sizes: Sequence[int], now: int
    ) -> None:
        self.parent = parent
        self.keys = list(keys)
        """Its blocks."""
        self.sizes = list(sizes)
        """Their tokens."""
        self.tokens = sum(sizes)
        self.last_access_time = now
        """When a request's path last passed it."""
        self.creation_time = now
        """When its content was inserted; both parts of a split node keep it."""
        self.hit_count = 0
        """How many requests inserted or found it."""
        self.lock_ref = 0
        """How many requests hold it or something below it."""
        self.priority = 0
        """The highest priority of a request that used it."""
        self.children: set[Node] = set()
        self.orphan = False
        """Whether it hangs below the root because its predecessors were evicted."""
        self.computed = False
        """Whether a request that inserted or found it was computed."""
        self.heap_entry: HeapEntry | None = None
        """Its valid entry in the order of eviction, None while it has none."""


Rank = tuple[int, ...]
Strategy = Callable[[Node], Rank]
HeapEntry = tuple[Rank, int, Node]


class RadixTree:
    """Nodes, in `owners` by the blocks they hold. Negative keys are output without hashes.

    `tokens` is all that it holds and `evictable_size` what no lock protects, in tokens; `orphans`
    counts nodes and `unhashed` blocks. Hashed blocks that come and go are recorded in `changes`.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.owners: dict[Key, Node] = {}
        self.root = Node(None, (), (), 0)
        self.tokens = 0
        self.evictable_size = 0
        self.orphans = 0
        self.unhashed = 0
        self.changes = ContentChanges(self.owners.__contains__)
        self._strategy = strategy
        self._clock = count(1)
        self._entry_numbers = count()
        self._heap: list[HeapEntry] = []

    def insert(
        self, start: Node, keys: Sequence[Key], sizes: Sequence[int], counted: int = 0
    ) -> Node:
        """Walk from `start` along `keys` and add what is missing; return the node it ends at.

        Counts a hit (SGLang `hit_count`) on each node that ends after the first `counted` tokens.
        """
        keys, node, at, end, now = list(keys), start, 0, 0, next(self._clock)
        while at < len(keys):
            owner = self.owners.get(keys[at])
            if owner is None:
                known = next(filter(self.owners.__contains__, keys[at:]), None)
                stop = len(keys) if known is None else keys.index(known, at)
                node = self._add(node, keys[at:stop], sizes[at:stop])
            else:
                node = self._step_into(node, owner, keys[at : at + len(owner.keys)], now)
            at += len(node.keys)
            end += node.tokens
            node.hit_count += end > counted
            self._rank(node)
        return node

    def node_ending_at(self, key: Key) -> Node:
        """Return the node that ends with a held key; splits one that goes on after it."""
        owner = self.owners[key]
        if owner.keys[-1] == key:
            return owner
        return self._split(owner, owner.keys.index(key) + 1, owner.last_access_time)

    def truncate(self, node: Node, length: int) -> None:
        """Remove a leaf's blocks after the first `length`; without any the leaf goes too."""
        keys, tokens = node.keys[length:], sum(node.sizes[length:])
        del node.keys[length:], node.sizes[length:]
        node.tokens -= tokens
        self.tokens -= tokens
        if not node.lock_ref:
            self.evictable_size -= tokens
        for key in keys:
            del self.owners[key]
        hashed = [BlockHash(key) for key in keys if key >= 0]
        self.unhashed -= len(keys) - len(hashed)
        self.changes.record_evicted(hashed)
        if not node.keys:
            self._detach(node)

    def remove_block(self, key: Key) -> None:
        """Remove one unlocked block; those after it stay, as orphans."""
        node = self.node_ending_at(key)
        for child in list(node.children):
            self._reparent(child, self.root, orphan=True)
        self.truncate(node, len(node.keys) - 1)
        self._rank(node)

    def replace_last(self, node: Node, keys: Sequence[Key], sizes: Sequence[int]) -> None:
        """Replace the last block of an unlocked leaf, whose key is negative, by hashed ones.

        They have as many tokens as it. If the tree holds them elsewhere, this copy is freed.
        """
        if self.owners.keys().isdisjoint(keys):
            last, size = len(node.keys) - 1, node.sizes[-1]
            node.keys += keys
            node.sizes += sizes
            self._attach_keys(node, keys, sum(sizes))
            del self.owners[node.keys.pop(last)], node.sizes[last]
            node.tokens -= size
            self.tokens -= size
            self.evictable_size -= size
            self.unhashed -= 1
            return
        above = node.parent
        self.truncate(node, len(node.keys) - 1)
        self.insert(node if node.keys or above is None else above, keys, sizes).computed = True

    def correct_sizes(self, node: Node, known: Mapping[Key, int], most: int) -> int:
        """Correct the sizes of blocks from `node` up, as far as only one request holds them.

        `known` are the true sizes, in tokens. Returns the sum of changes, at most `most` tokens.
        """
        change = 0
        while node.parent is not None and node.lock_ref == 1:
            for at, key in enumerate(node.keys):
                more = known.get(key, node.sizes[at]) - node.sizes[at]
                if change + more <= most:
                    node.sizes[at] += more
                    node.tokens += more
                    change += more
            node = node.parent
        self.tokens += change
        return change

    def keys_up_to(self, node: Node) -> set[Key]:
        """Return the keys of a node and of all above it."""
        keys: set[Key] = set()
        each: Node | None = node
        while each is not None:
            keys.update(each.keys)
            each = each.parent
        return keys

    def mark_orphan(self, key: Key) -> None:
        """Mark the node below the root that begins with `key`: what precedes it is unknown."""
        node = self.owners[key]
        self.orphans += not node.orphan
        node.orphan = True

    def inc_lock_ref(self, node: Node) -> None:
        """Protect a node and all above it from eviction."""
        self._add_locks(node, 1)

    def dec_lock_ref(self, node: Node) -> None:
        """Remove one lock from a node and all above it."""
        self._add_locks(node, -1)

    def touch(self, node: Node, priority: int) -> None:
        """Refresh a node and all above it, which were computed; raise their priority to this."""
        each, now = node, next(self._clock)
        while each.parent is not None:
            each.last_access_time, each.priority = now, max(each.priority, priority)
            each.computed = True
            self._rank(each)
            each = each.parent

    def evict(self, tokens: int) -> None:
        """Evict unlocked leaves, lowest rank first, until `tokens` are gone or none is left."""
        while tokens > 0 and self._heap:
            entry = heappop(self._heap)
            node = entry[-1]
            if node.heap_entry is entry:  # else it is stale
                tokens -= node.tokens
                self.truncate(node, 0)  # SGLang `_delete_leaf`: whole, though fewer would do

    def _step_into(self, parent: Node, owner: Node, keys: Sequence[Key], now: int) -> Node:
        """Return the part of `owner` that `keys` share; splits what they do not."""
        if owner.keys[0] != keys[0]:
            self._split(owner, owner.keys.index(keys[0]), owner.last_access_time)
        if owner.orphan or owner.parent is not parent:
            self._reparent(owner, parent, orphan=False)
        owner.last_access_time = max(owner.last_access_time, now)
        shared = len(owner.keys)
        if owner.keys != keys:
            # Hashes are chained: as far as they agree in one place, they agree before it.
            pairs = zip(owner.keys, keys, strict=False)
            shared = sum(1 for mine, theirs in pairs if mine == theirs)
        return owner if shared == len(owner.keys) else self._split(owner, shared, now)

    def _split(self, node: Node, length: int, now: int) -> Node:
        """Move the first `length` blocks of a node to another above it; return that.

        SGLang `_split_node`: the upper node inherits hits, priority, locks and creation time.
        """
        upper = Node(node.parent, node.keys[:length], node.sizes[:length], now)
        upper.creation_time, upper.hit_count, upper.priority = (
            node.creation_time,
            node.hit_count,
            node.priority,
        )
        upper.lock_ref, upper.computed = node.lock_ref, node.computed
        upper.orphan, node.orphan = node.orphan, False
        upper.children.add(node)
        if node.parent is not None:
            node.parent.children.remove(node)
            node.parent.children.add(upper)
        node.parent = upper
        del node.keys[:length], node.sizes[:length]
        node.tokens -= upper.tokens
        self.owners.update(dict.fromkeys(upper.keys, upper))
        self._rank(node)
        return upper

    def _add(self, parent: Node, keys: Sequence[Key], sizes: Sequence[int]) -> Node:
        node = Node(parent, keys, sizes, next(self._clock))
        parent.children.add(node)
        parent.heap_entry = None
        node.tokens = 0
        self._attach_keys(node, keys, sum(sizes))
        return node

    def _attach_keys(self, node: Node, keys: Sequence[Key], tokens: int) -> None:
        self.owners.update(dict.fromkeys(keys, node))
        node.tokens += tokens
        self.tokens += tokens
        if not node.lock_ref:
            self.evictable_size += tokens
        hashed = [BlockHash(key) for key in keys if key >= 0]
        self.unhashed += len(keys) - len(hashed)
        self.changes.record_stored(hashed)

    def _detach(self, node: Node) -> None:
        """Remove an empty node from the tree."""
        node.heap_entry = None
        self.orphans -= node.orphan
        if node.parent is not None:
            node.parent.children.discard(node)
            self._rank(node.parent)

    def _reparent(self, node: Node, parent: Node, *, orphan: bool) -> None:
        """Move a node below another parent; its locks count there and no longer above before."""
        if node.parent is not None:
            self._add_locks(node.parent, -node.lock_ref)
            node.parent.children.discard(node)
            self._rank(node.parent)
        node.parent = parent
        parent.children.add(node)
        parent.heap_entry = None
        self._add_locks(parent, node.lock_ref)
        self.orphans += orphan - node.orphan
        node.orphan = orphan

    def _add_locks(self, node: Node, locks: int) -> None:
        each = node
        while each.parent is not None:
            was, each.lock_ref = each.lock_ref, each.lock_ref + locks
            self.evictable_size += each.tokens * ((not each.lock_ref) - (not was))
            self._rank(each)
            each = each.parent

    def _rank(self, node: Node) -> None:
        """Enter a node in the eviction order if it is an unlocked leaf, else withdraw it."""
        node.heap_entry = None
        if node.lock_ref or node.children or node.parent is None or not node.keys:
            return
        node.heap_entry = (self._strategy(node), next(self._entry_numbers), node)
        heappush(self._heap, node.heap_entry)
        if len(self._heap) > 2 * len(self.owners) + _SLACK:
            self._heap = [each for each in self._heap if each[-1].heap_entry is each]
            heapify(self._heap)
