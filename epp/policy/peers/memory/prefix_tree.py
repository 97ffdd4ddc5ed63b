"""A radix tree of prompts that remembers which endpoints each prefix was sent to.

Follows the tree of sglang-router 0.3.2 (`policies/tree.rs`), which smg and vllm-router have too:

- a prompt is inserted for one endpoint, which then has every node on its way (`insert`);
- a prompt matches as far as any endpoint has it. The match names one endpoint: of those that have
  its last node the one that has had it for the longest, which is the one that it was created for
  as long as that has it (`prefix_match_with_counts`, `last_tenant`), and not the least loaded;
- an endpoint's nodes are evicted from the leaves up: the least recently inserted prompts first; a
  node where no prompt ends goes with the last prompt below it (`evict_tenant_by_size`).

There an edge is text; here it is blocks of a `Chain`, so prompts share whole blocks only, and a
last, partial block never matches. There one match in eight refreshes what it found; here only an
insertion does. An endpoint that is removed no longer matches at once, and its nodes are removed a
few with every insertion.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from epp.model.endpoint import EndpointId
from epp.model.prompts.hashing import BlockHash


class PrefixFound(NamedTuple):
    """The longest known prefix: its length, and the endpoints that have it.

    The first one is the one that it names. Without a prefix there is none.
    """

    length: int
    endpoints: Sequence[EndpointId]


_SWEPT = 16
"""Prompts of endpoints that are gone which an insertion forgets."""


class Tenant(msgspec.Struct, eq=False):
    """An endpoint in the tree; `endpoint` is None once it is removed.

    `length` is the total of its nodes. `recent` are the nodes that its prompts end at, the least
    recently inserted first; they include all its leaves.
    """

    endpoint: EndpointId | None
    length: int = 0
    recent: "OrderedDict[PrefixNode, None]" = msgspec.field(default_factory=OrderedDict)


class PrefixNode:
    """A run of blocks, with the length of a prompt at the end of each; the root has none.

    `tenants` are the endpoints that have it, in the order in which they got it, each with the
    number of its children that they have too.
    """

    __slots__ = ("above", "children", "ends", "hashes", "tenants")

    def __init__(
        self, above: "PrefixNode | None", hashes: Sequence[BlockHash], ends: Sequence[int]
    ) -> None:
        self.above = above or self
        self.hashes = hashes
        self.ends = ends
        self.tenants: dict[Tenant, int] = {}
        self.children: dict[BlockHash, PrefixNode] = {}

    @property
    def endpoints(self) -> list[EndpointId]:
        """The endpoints that have it."""
        return [each.endpoint for each in self.tenants if each.endpoint is not None]

    @property
    def length(self) -> int:
        """The length of its run."""
        return self.ends[-1] - (self.above.ends[-1] if self.above.ends else 0)

    def common(self, hashes: Sequence[BlockHash], at: int) -> int:
        """Return how many of its blocks a prompt has from its block `at` on; it has the first.

        A hash stands for all that precedes its block too: after unequal ones none are equal.
        """
        own, most = self.hashes, min(len(self.hashes), len(hashes) - at)
        if own[most - 1] == hashes[at + most - 1]:
            return most
        return bisect_left(range(most), 1, key=lambda each: own[each] != hashes[at + each])


class PrefixTree:
    """Prompts by endpoint, as the hashes of their blocks and where each ends."""

    def __init__(self) -> None:
        self._root = PrefixNode(None, (), ())
        self._tenants: dict[EndpointId, Tenant] = {}
        self._gone: deque[Tenant] = deque()

    def tenant(self, endpoint: EndpointId) -> Tenant:
        """Return an endpoint as it is in the tree."""
        found = self._tenants.get(endpoint)
        if found is None:
            found = self._tenants[endpoint] = Tenant(endpoint)
        return found

    def length(self, endpoint: EndpointId) -> int:
        """Return the length of an endpoint's prompts, counting shared prefixes once."""
        tenant = self._tenants.get(endpoint)
        return 0 if tenant is None else tenant.length

    def match(self, hashes: Sequence[BlockHash]) -> PrefixFound:
        """Return the longest prefix of a prompt that any endpoint has."""
        node, at, length = self._root, 0, 0
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None or (self._gone and not child.endpoints):
                break
            node, common = child, child.common(hashes, at)
            at += common
            length = child.ends[common - 1]
        return PrefixFound(length, node.endpoints)

    def blocks(self, hashes: Sequence[BlockHash], endpoint: EndpointId) -> int:
        """Return how many leading blocks of a prompt an endpoint has."""
        node, at, tenant = self._root, 0, self._tenants.get(endpoint)
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None or tenant not in child.tenants:
                break
            at += child.common(hashes, at)
            node = child
        return at

    def insert(
        self, hashes: Sequence[BlockHash], ends: Sequence[int], endpoint: EndpointId
    ) -> PrefixNode:
        """Note that a prompt was sent to an endpoint; return the node that it ends at."""
        node, at, tenant = self._root, 0, self.tenant(endpoint)
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None:
                child = PrefixNode(node, hashes[at:], ends[at:])
                node.children[hashes[at]] = child
            elif (common := child.common(hashes, at)) < len(child.hashes):
                child = _split(child, common)
            if tenant not in child.tenants:
                child.tenants[tenant] = 0
                tenant.length += child.length
                if node is not self._root:
                    node.tenants[tenant] += 1
            node, at = child, at + len(child.hashes)
        if node is not self._root:
            tenant.recent[node] = None
            tenant.recent.move_to_end(node)
        self._sweep()
        return node

    def evict(self, endpoint: EndpointId, most: int) -> None:
        """Forget the least recent prompts of an endpoint until at most `most` is left."""
        tenant = self._tenants.get(endpoint)
        while tenant is not None and tenant.recent and tenant.length > most:
            node, _ = tenant.recent.popitem(last=False)
            self._prune(node, tenant, most)

    def forget(self, node: PrefixNode, tenant: Tenant) -> None:
        """Forget the prompts that end at a node, as sent to an endpoint."""
        if node in tenant.recent:
            del tenant.recent[node]
            self._prune(node, tenant, -1)

    def _prune(self, node: PrefixNode, tenant: Tenant, most: int) -> None:
        """Remove an endpoint's leaves that no prompt ends at until at most `most` is left."""
        recent = tenant.recent
        while node is not self._root and node not in recent and not node.tenants[tenant]:
            if tenant.length <= most:
                recent[node] = None
                recent.move_to_end(node, last=False)
            else:
                node = self._cut(node, tenant)

    def _cut(self, node: PrefixNode, tenant: Tenant) -> PrefixNode:
        """Take a leaf of an endpoint's from it; return the node above."""
        above = node.above
        tenant.length -= node.length
        del node.tenants[tenant]
        if above is not self._root:
            above.tenants[tenant] -= 1
        if not node.tenants:
            del above.children[node.hashes[0]]
        return above

    def remove(self, endpoint: EndpointId) -> None:
        """Forget an endpoint."""
        tenant = self._tenants.pop(endpoint, None)
        if tenant is not None:
            tenant.endpoint = None
            self._gone.append(tenant)

    def _sweep(self) -> None:
        """Forget some of the prompts of endpoints that are gone."""
        for _ in range(_SWEPT if self._gone else 0):
            if not self._gone[0].recent:
                self._gone.popleft()
                return
            node, _ = self._gone[0].recent.popitem(last=False)
            self._prune(node, self._gone[0], -1)


def _split(node: PrefixNode, length: int) -> PrefixNode:
    """Put the first `length` blocks of a node into one of their own above it; return that."""
    above = node.above
    upper = PrefixNode(above, node.hashes[:length], node.ends[:length])
    upper.tenants = dict.fromkeys(node.tenants, 1)
    above.children[node.hashes[0]] = upper
    node.above, node.hashes, node.ends = upper, node.hashes[length:], node.ends[length:]
    upper.children[node.hashes[0]] = node
    return upper
