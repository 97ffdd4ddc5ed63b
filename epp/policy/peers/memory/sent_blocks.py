"""An index of blocks that remembers which endpoints each was sent to.

It replaces the hash tables and the hash trie of AIBrix and production-stack: as a block's hash
covers all that precedes it, a table of blocks is a tree of prompts.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection
from itertools import count
from math import inf

from epp.model.endpoint import EndpointId
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.policy.peers.memory.admitted_prompts import AdmittedPrompts
from epp.policy.plugins import PluginContext

_Holders = frozenset[int]
"""Endpoints by number; a number is never given to another one."""


class SentBlocks:
    """The blocks of each request's first prompt, by the endpoints that they were sent to.

    At most `most` are kept: the least recently sent are dropped, with `heads_last` the end of a
    prompt before its beginning. A block that was not sent for `seconds` is dropped too. An endpoint
    that is gone no longer matches; blocks that it alone had are dropped in their turn.
    """

    def __init__(
        self, context: PluginContext, most: int, seconds: float = inf, *, heads_last: bool = False
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._heads_last = heads_last
        self._blocks: OrderedDict[BlockHash, tuple[_Holders, float]] = OrderedDict()
        # A number is never given again, also after its endpoint is gone.
        self._numbers: defaultdict[EndpointId, int] = defaultdict(count().__next__)
        self._admitted = AdmittedPrompts(context, self._insert, self._forget)

    def __len__(self) -> int:
        return len(self._blocks)

    def match(
        self, chain: Chain, among: Collection[EndpointId], now: float
    ) -> dict[EndpointId, int]:
        """Return how many leading blocks of a prompt each of some endpoints has; none: left out."""
        self._expire(now)
        known = self._numbers
        names = {known[each]: each for each in among if each in known}
        left, matched = frozenset(names), dict[int, int]()
        seen: _Holders | None = None
        for depth, block in enumerate(chain.hashes):
            holders, _ = self._blocks.get(block, _NOWHERE)
            if holders is not seen:
                seen, before, left = holders, left, left & holders
                if depth and len(left) < len(before):
                    matched |= dict.fromkeys(before - left, depth)
                if not left:
                    break
        else:
            matched |= dict.fromkeys(left if chain.hashes else (), len(chain.hashes))
        return {names[number]: depth for number, depth in matched.items()}

    def _insert(self, chain: Chain, endpoint: EndpointId, now: float) -> None:
        self._expire(now)
        blocks, number = self._blocks, self._numbers[endpoint]
        there = self._numbers.values()
        # Neighbours mostly have the same holders, and share one set of them.
        before: _Holders | None = None
        after: _Holders = frozenset((number,))
        for block in reversed(chain.hashes) if self._heads_last else chain.hashes:
            holders, _ = blocks.get(block, _NOWHERE)
            if holders is not before:
                before, after = holders, holders
                if number not in holders:
                    after = holders.intersection(there) | {number}
            blocks[block] = after, now
            blocks.move_to_end(block)
        while len(blocks) > self._most:
            blocks.popitem(last=False)

    def _expire(self, now: float) -> None:
        blocks, last = self._blocks, now - self._seconds
        while blocks and next(iter(blocks.values()))[1] < last:
            blocks.popitem(last=False)

    def _forget(self, endpoint: EndpointId) -> None:
        self._numbers.pop(endpoint, None)


_NOWHERE: tuple[_Holders, float] = frozenset(), 0.0
