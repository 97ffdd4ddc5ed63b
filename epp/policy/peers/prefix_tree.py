"""A radix tree of prompts that remembers which endpoints each prefix was sent to.

Follows the tree of sglang-router 0.3.2 (`policies/tree.rs`), which smg and vllm-router have too:

- a prompt is inserted for one endpoint, which then has every node on its way (`insert`);
- a prompt matches as far as any endpoint has it. The match names one endpoint: the one that its
  last node was created for, or where that has lost the node any other that has it
  (`prefix_match_with_counts`, `last_tenant`), and not the least loaded of those that have it;
- what an endpoint has is evicted from the leaves up: the prompts that were inserted least recently
  first, and with the last one below it a node that no prompt ends at (`evict_tenant_by_size`).

There an edge is text, here it is blocks of a `Chain`: prompts share what their blocks share, so a
last, partial block matches nothing. There a match refreshes one time in eight what it found; here
only an insertion does.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from epp.model.endpoint import EndpointId
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.policy.peers.memory.sendings import Sendings
from epp.policy.plugins import PluginContext


class PrefixFound(NamedTuple):
    """The longest prefix that is known: its length, the endpoint that it names, all that have it.

    Without any prefix there is no endpoint.
    """

    length: int
    endpoint: EndpointId | None
    endpoints: Collection[EndpointId]


class PrefixNode:
    """A run of blocks, with the length of a prompt at the end of each; the root has none.

    `endpoints` that have it come with the number of its children that they have. `first` is the
    one that it was created for.
    """

    __slots__ = ("above", "children", "endpoints", "ends", "first", "hashes")

    def __init__(
        self,
        above: "PrefixNode | None",
        hashes: Sequence[BlockHash],
        ends: Sequence[int],
        first: EndpointId,
    ) -> None:
        self.above = above or self
        self.hashes = hashes
        self.ends = ends
        self.first = first
        self.endpoints: dict[EndpointId, int] = {}
        self.children: dict[BlockHash, PrefixNode] = {}

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
        self._root = PrefixNode(None, (), (), EndpointId(""))
        self._lengths: dict[EndpointId, int] = {}
        # The nodes that prompts end at, the least recently inserted first, all leaves among them.
        self._recent: dict[EndpointId, OrderedDict[PrefixNode, None]] = {}

    def __len__(self) -> int:
        waiting, count = [self._root], -1
        while waiting:
            waiting += waiting.pop().children.values()
            count += 1
        return count

    def length(self, endpoint: EndpointId) -> int:
        """Return the length of all that an endpoint has, what prompts share counted once."""
        return self._lengths.get(endpoint, 0)

    def match(self, hashes: Sequence[BlockHash]) -> PrefixFound:
        """Return the longest prefix of a prompt that any endpoint has."""
        node, at, length = self._root, 0, 0
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None:
                break
            node, common = child, child.common(hashes, at)
            at += common
            length = child.ends[common - 1]
            if common < len(child.hashes):
                break
        if node is self._root:
            return PrefixFound(0, None, ())
        first = node.first if node.first in node.endpoints else next(iter(node.endpoints))
        return PrefixFound(length, first, node.endpoints.keys())

    def blocks(self, hashes: Sequence[BlockHash], endpoint: EndpointId) -> int:
        """Return how many leading blocks of a prompt an endpoint has."""
        node, at = self._root, 0
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None or endpoint not in child.endpoints:
                break
            at += child.common(hashes, at)
            node = child
        return at

    def insert(
        self, hashes: Sequence[BlockHash], ends: Sequence[int], endpoint: EndpointId
    ) -> PrefixNode:
        """Note that a prompt was sent to an endpoint; return the node that it ends at."""
        node, at = self._root, 0
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None:
                child = PrefixNode(node, hashes[at:], ends[at:], endpoint)
                node.children[hashes[at]] = child
            elif (common := child.common(hashes, at)) < len(child.hashes):
                child = _split(child, common)
            if endpoint not in child.endpoints:
                child.endpoints[endpoint] = 0
                self._lengths[endpoint] = self._lengths.get(endpoint, 0) + child.length
                if node is not self._root:
                    node.endpoints[endpoint] += 1
            node, at = child, at + len(child.hashes)
        if node is not self._root:
            recent = self._recent.setdefault(endpoint, OrderedDict())
            recent[node] = None
            recent.move_to_end(node)
        return node

    def evict(self, endpoint: EndpointId, most: int) -> None:
        """Forget what was sent to an endpoint least recently, until `most` is left of it."""
        recent = self._recent.get(endpoint)
        while recent and self._lengths[endpoint] > most:
            node, _ = recent.popitem(last=False)
            self._prune(node, endpoint, most)

    def forget(self, node: PrefixNode, endpoint: EndpointId) -> None:
        """Forget the prompts that end at a node, as sent to an endpoint."""
        recent = self._recent.get(endpoint)
        if recent is not None and node in recent:
            del recent[node]
            self._prune(node, endpoint, -1)

    def _prune(self, node: PrefixNode, endpoint: EndpointId, most: int) -> None:
        """Take leaves that no prompt ends at from an endpoint, until `most` is left of it."""
        recent = self._recent[endpoint]
        while node is not self._root and node not in recent and not node.endpoints[endpoint]:
            if self._lengths[endpoint] <= most:
                recent[node] = None
                recent.move_to_end(node, last=False)
            else:
                node = self._cut(node, endpoint)

    def _cut(self, node: PrefixNode, endpoint: EndpointId) -> PrefixNode:
        """Take a leaf of an endpoint's from it; return the node above."""
        above = node.above
        self._lengths[endpoint] -= node.length
        del node.endpoints[endpoint]
        if above is not self._root:
            above.endpoints[endpoint] -= 1
        if not node.endpoints:
            del above.children[node.hashes[0]]
        return above

    def remove(self, endpoint: EndpointId) -> None:
        """Forget an endpoint."""
        self.evict(endpoint, -1)
        self._recent.pop(endpoint, None)
        self._lengths.pop(endpoint, None)


def _split(node: PrefixNode, length: int) -> PrefixNode:
    """Put the first `length` blocks of a node into one of their own above it; return that."""
    above = node.above
    upper = PrefixNode(above, node.hashes[:length], node.ends[:length], node.first)
    upper.endpoints = dict.fromkeys(node.endpoints, 1)
    above.children[node.hashes[0]] = upper
    node.above, node.hashes, node.ends = upper, node.hashes[length:], node.ends[length:]
    upper.children[node.hashes[0]] = node
    return upper


class SentPrompts:
    """A tree of what was sent to the endpoints of a fleet.

    Every `interval` seconds, and at once where it is twice as long, what an endpoint has is cut
    back to `most`, where that is `shared` to its part of it. Lengths are in the unit of `Chain`:
    bytes of text, or tokens of prompts that came as such.
    """

    def __init__(
        self, context: PluginContext, most: int, interval: float, *, shared: bool = False
    ) -> None:
        self.tree = PrefixTree()
        self._most = most
        self._interval = interval
        self._shared = shared
        self._due = interval
        self._sendings = Sendings(context, self._insert, self.tree.remove)

    @property
    def _allowed(self) -> int:
        return self._most // len(self._sendings) if self._shared else self._most

    def _insert(self, chain: Chain, endpoint: EndpointId, now: float) -> None:
        self.tree.insert(chain.hashes, chain.ends, endpoint)
        if self.tree.length(endpoint) > 2 * self._allowed:
            self.tree.evict(endpoint, self._allowed)
        if now >= self._due:
            self._due = now + self._interval
            for each in self._sendings:
                self.tree.evict(each, self._allowed)
