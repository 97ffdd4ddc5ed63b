"""A radix tree over chains of block hashes: splits, locks, evicts whole leaves.

Mirrors the tree of SGLang 0.5.23 (`srt/mem_cache/radix_cache.py`; its default cache,
`unified_radix_cache.py`, has the same rules for full attention): a walk refreshes every node on
its way; a node where paths part is split, its upper half a new node; a lock on a node holds it
and all above it; only an unlocked leaf can be evicted, always the whole of it, and then its parent
may be next. SGLang ranks all leaves anew at each eviction; here a leaf is ranked when it changes.

A hash names a block and all that stands before it, so a path needs no search: the next node is
the owner of the next hash. A node whose parent is not known (the engine told of blocks in the
middle of a chain) hangs below the root as an orphan until a walk comes by.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, filterfalse

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.lease import Key
from epp.model.caches.sglang_eviction import Rank, Strategy
from epp.model.prompts.block_hasher import BlockHash

_SLACK = 64


class Node:
    """A run of blocks that only ever occur together: `keys` of `sizes`, `tokens` in all.

    `locks` counts the requests that hold it or something below it; `proven` says that one of them
    was computed. `ticket` is its valid place in the eviction order, None while it has none.
    """

    __slots__ = (
        "accessed",
        "children",
        "created",
        "hits",
        "keys",
        "locks",
        "orphan",
        "parent",
        "priority",
        "proven",
        "sizes",
        "ticket",
        "tokens",
    )

    def __init__(
        self, parent: "Node | None", keys: Sequence[Key], sizes: Sequence[int], now: int
    ) -> None:
        self.parent = parent
        self.keys = list(keys)
        self.sizes = list(sizes)
        self.tokens = sum(sizes)
        self.accessed = self.created = now
        self.hits = self.locks = self.priority = 0
        self.children: set[Node] = set()
        self.orphan = self.proven = False
        self.ticket: Ticket | None = None


Ticket = tuple[Rank, int, Node]


class RadixTree:
    """Nodes by what they hold. Negative keys are content that nobody can ask for.

    `tokens` is all that it holds, `evictable` what no lock protects; `news` is told of changes.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.owners: dict[Key, Node] = {}
        self.root = Node(None, (), (), 0)
        self.tokens = 0
        self.evictable = 0
        self.orphans = 0
        self.unhashed = 0
        self.news = ContentChanges(self.owners.__contains__)
        self._strategy = strategy
        self._clock = count(1)
        self._tickets = count()
        self._order: list[Ticket] = []

    def match(self, keys: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held; nothing is refreshed."""
        missing = next(filterfalse(self.owners.__contains__, keys), None)
        return len(keys) if missing is None else keys.index(missing)

    def insert(
        self, start: Node, keys: Sequence[Key], sizes: Sequence[int], counted: int = 0
    ) -> Node:
        """Walk from `start` along `keys`, adding what is not there; return where it ends.

        A hit is counted on each node that ends beyond the first `counted` tokens of the walk.
        """
        keys, node, at, end, now = list(keys), start, 0, 0, next(self._clock)
        while at < len(keys):
            owner = self.owners.get(keys[at])
            if owner is None:
                known = next(filter(self.owners.__contains__, keys[at:]), None)
                stop = len(keys) if known is None else keys.index(known, at)
                node = self._add(node, keys[at:stop], sizes[at:stop])
            else:
                node = self._enter(node, owner, keys[at : at + len(owner.keys)], now)
            at += len(node.keys)
            end += node.tokens
            node.hits += end > counted
            self._enrol(node)
        return node

    def ends_at(self, key: Key) -> Node:
        """Return the node that ends with a held key, splitting the one that goes on."""
        owner = self.owners[key]
        if owner.keys[-1] == key:
            return owner
        return self._split(owner, owner.keys.index(key) + 1, owner.accessed)

    def append(self, node: Node, keys: Sequence[Key], sizes: Sequence[int]) -> None:
        """Put more blocks at the end of a node; the caller knows that none is held."""
        node.keys += keys
        node.sizes += sizes
        self._own(node, keys, sum(sizes))

    def cut(self, node: Node, length: int) -> None:
        """Take from a node all blocks after the first `length`; nothing may stand below it."""
        keys, tokens = node.keys[length:], sum(node.sizes[length:])
        del node.keys[length:], node.sizes[length:]
        node.tokens -= tokens
        self.tokens -= tokens
        if not node.locks:
            self.evictable -= tokens
        for key in keys:
            del self.owners[key]
        named = [BlockHash(key) for key in keys if key >= 0]
        self.unhashed -= len(keys) - len(named)
        self.news.evicted(named)
        if not node.keys:
            self._detach(node)

    def drop(self, key: Key) -> None:
        """Take one unlocked block out; what stood behind it stays, as orphans."""
        node = self.ends_at(key)
        for child in list(node.children):
            self._move(child, self.root, orphan=True)
        self.cut(node, len(node.keys) - 1)
        self._enrol(node)

    def replace_last(self, node: Node, keys: Sequence[Key], sizes: Sequence[int]) -> None:
        """Give the last block of an unlocked leaf, whose key is negative, to other keys.

        As many tokens as it had. Where some are held elsewhere, this copy of them is freed.
        """
        if self.owners.keys().isdisjoint(keys):
            last, size = len(node.keys) - 1, node.sizes[-1]
            self.append(node, keys, sizes)
            del self.owners[node.keys.pop(last)], node.sizes[last]
            node.tokens -= size
            self.tokens -= size
            self.evictable -= size
            self.unhashed -= 1
            return
        above = node.parent
        self.cut(node, len(node.keys) - 1)
        self.insert(node if node.keys or above is None else above, keys, sizes).proven = True

    def remeasure(self, node: Node, known: Mapping[Key, int], most: int) -> int:
        """Correct sizes on the way up, as far as only one request holds it.

        Returns how many tokens that made more in all, never above `most`.
        """
        change = 0
        while node.parent is not None and node.locks == 1:
            for at, key in enumerate(node.keys):
                more = known.get(key, node.sizes[at]) - node.sizes[at]
                if change + more <= most:
                    node.sizes[at] += more
                    node.tokens += more
                    change += more
            node = node.parent
        self.tokens += change
        return change

    def way_to(self, node: Node) -> set[Key]:
        """Return the keys on the way from the root to the end of a node."""
        keys: set[Key] = set()
        each: Node | None = node
        while each is not None:
            keys.update(each.keys)
            each = each.parent
        return keys

    def strand(self, key: Key) -> None:
        """Say that it is not known what stands before a block at the top of the tree."""
        node = self.owners[key]
        self.orphans += not node.orphan
        node.orphan = True

    def lock(self, node: Node) -> None:
        """Protect a node, and all above it."""
        self._add_locks(node, 1)

    def unlock(self, node: Node) -> None:
        """Take back one lock."""
        self._add_locks(node, -1)

    def touch(self, node: Node, priority: int) -> None:
        """Refresh a node and all above it, which were computed, and raise their priority."""
        each, now = node, next(self._clock)
        while each.parent is not None:
            each.accessed, each.priority = now, max(each.priority, priority)
            each.proven = True
            self._enrol(each)
            each = each.parent

    def evict(self, tokens: int) -> None:
        """Evict unlocked leaves, the first of the order each time, until `tokens` are gone."""
        while tokens > 0 and self._order:
            ticket = heappop(self._order)
            node = ticket[-1]
            if node.ticket is ticket:
                tokens -= node.tokens
                self.cut(node, 0)

    def _enter(self, parent: Node, owner: Node, keys: Sequence[Key], now: int) -> Node:
        """Step into a node as far as `keys` go along with it."""
        if owner.keys[0] != keys[0]:
            self._split(owner, owner.keys.index(keys[0]), owner.accessed)
        if owner.orphan or owner.parent is not parent:
            self._move(owner, parent, orphan=False)
        owner.accessed = max(owner.accessed, now)
        shared = len(owner.keys)
        if owner.keys != keys:
            # Hashes are chained: as far as they agree in one place, they agree before it.
            pairs = zip(owner.keys, keys, strict=False)
            shared = sum(1 for mine, theirs in pairs if mine == theirs)
        return owner if shared == len(owner.keys) else self._split(owner, shared, now)

    def _split(self, node: Node, length: int, now: int) -> Node:
        """Give the first blocks of a node to a new parent of it; return that."""
        upper = Node(node.parent, node.keys[:length], node.sizes[:length], now)
        upper.created, upper.hits, upper.priority = node.created, node.hits, node.priority
        upper.locks, upper.proven = node.locks, node.proven
        upper.orphan, node.orphan = node.orphan, False
        upper.children.add(node)
        if node.parent is not None:
            node.parent.children.remove(node)
            node.parent.children.add(upper)
        node.parent = upper
        del node.keys[:length], node.sizes[:length]
        node.tokens -= upper.tokens
        self.owners.update(dict.fromkeys(upper.keys, upper))
        self._enrol(node)
        return upper

    def _add(self, parent: Node, keys: Sequence[Key], sizes: Sequence[int]) -> Node:
        node = Node(parent, keys, sizes, next(self._clock))
        parent.children.add(node)
        parent.ticket = None
        node.tokens = 0
        self._own(node, keys, sum(sizes))
        return node

    def _own(self, node: Node, keys: Sequence[Key], tokens: int) -> None:
        self.owners.update(dict.fromkeys(keys, node))
        node.tokens += tokens
        self.tokens += tokens
        if not node.locks:
            self.evictable += tokens
        named = [BlockHash(key) for key in keys if key >= 0]
        self.unhashed += len(keys) - len(named)
        self.news.stored(named)

    def _detach(self, node: Node) -> None:
        """Take an empty node out of the tree."""
        node.ticket = None
        self.orphans -= node.orphan
        if node.parent is not None:
            node.parent.children.discard(node)
            self._enrol(node.parent)

    def _move(self, node: Node, parent: Node, *, orphan: bool) -> None:
        """Hang a node below another parent, with the locks that it passes on."""
        if node.parent is not None:
            self._add_locks(node.parent, -node.locks)
            node.parent.children.discard(node)
            self._enrol(node.parent)
        node.parent = parent
        parent.children.add(node)
        parent.ticket = None
        self._add_locks(parent, node.locks)
        self.orphans += orphan - node.orphan
        node.orphan = orphan

    def _add_locks(self, node: Node, locks: int) -> None:
        each = node
        while each.parent is not None:
            was, each.locks = each.locks, each.locks + locks
            self.evictable += each.tokens * ((not each.locks) - (not was))
            self._enrol(each)
            each = each.parent

    def _enrol(self, node: Node) -> None:
        """Rank a node if it is an unlocked leaf; else it has no place in the order."""
        node.ticket = None
        if node.locks or node.children or node.parent is None or not node.keys:
            return
        node.ticket = (self._strategy(node), next(self._tickets), node)
        heappush(self._order, node.ticket)
        if len(self._order) > 2 * len(self.owners) + _SLACK:
            self._order = [each for each in self._order if each[-1].ticket is each]
            heapify(self._order)
