"""A mirror of one engine's KV cache, fed by its KV events, that corrects the model of that cache.

The engine has its own hashes of blocks. Here blocks get the picker's hashes, computed from the
parent and the token ids in the event, so that neither side has to know the other's hash function.
Block sizes may differ: one of the engine's blocks may hold several of ours, or be a part of one.
`EngineBlocks` is the table of what the engine holds. What changes in it is passed on to the model
of the cache, by way of `ReportedBlocks`, which keeps aside what the model has no space for.

vLLM does not merge equal blocks: a block computed twice has two copies, and each evicted copy
causes a BlockRemoved. A block is lost with its last copy. In hybrid models each KV cache group has
its own copies, and a hit needs one in every group whose layers attend to the whole sequence; other
groups are not followed. A block with an unknown parent, because that was stored before the
subscription, has no place in any chain and is ignored. `reported_blocks` describes what happens
while prompts come as text.

No change takes long, however many blocks are followed: after a clear, the model of the cache loses
a part of its blocks with each later change (`purge`).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from epp.model.caches.contract import CacheModel, Tier
from epp.model.caches.engine_blocks.blocks import MAX_GROUPS, EngineBlocks
from epp.model.caches.engine_blocks.steps import in_steps
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.kv_changes import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Change,
    Cleared,
    Medium,
)
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.hashing import BlockHash

MAX_BLOCKS = 1 << 20
"""Blocks of one engine that are followed at most; beyond that the oldest are dropped."""

_ROOMS = 2
"""How many caches' worth of blocks are followed, as the size of the cache may be understated."""
_MIN_ROOM = 1 << 16
"""Tokens in blocks that are followed however small the cache is."""
_PURGED = 1 << 11
"""Blocks that are purged with one change: a few milliseconds."""
_MIN_PURGED = 1 << 5
"""Blocks that one step counts as at least: it frees memory even if it takes out none."""

Group = tuple[Medium, int | None]
"""A KV cache group, by medium; `MAX_GROUPS` are followed, a model has few of full attention."""


class KvEventCounts(msgspec.Struct):
    """Counts of engines' blocks since the start.

    `stored` and `removed` were followed. `lost` could not be hashed: their parent is unknown, or
    the event had no token ids. `skipped` are in groups or media that are not followed. `unknown`
    were removed without having been stored. `renamed` had other content under the same hash
    before. `dropped` exceeded the bound on blocks that are followed.
    """

    stored: int = 0
    removed: int = 0
    lost: int = 0
    skipped: int = 0
    unknown: int = 0
    renamed: int = 0
    dropped: int = 0


class KvEventMirror:
    """The blocks that one engine is known to hold.

    At most about `most_blocks` are followed, and twice as many as a cache of `room` tokens holds.
    `counts` may be those of several mirrors.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        most_blocks: int = MAX_BLOCKS,
        counts: KvEventCounts | None = None,
    ) -> None:
        self.counts = counts or KvEventCounts()
        self._hasher = hasher
        self._most_blocks = most_blocks
        self._leaving: deque[_Leaving] = deque()
        self._stored_again: dict[Medium, set[BlockHash]] = {}  # since the last clear
        self._begin()
        self.room = most_blocks * self._block

    def _begin(self) -> None:
        """Follow no blocks yet."""
        self._groups: dict[Group, int] = {}
        self._unfollowed: set[Group] = set()
        self._block = self._hasher.token_block  # which may be another by the next beginning
        # Keyed, so that no engine can choose hashes that fall side by side.
        secret = self._hasher.root("", "", exact=True)
        self._blocks = EngineBlocks(self._block, secret)

    def apply(self, change: Change, pool: ReportedBlocks) -> None:
        """Apply one change to the model of the cache, or to its `offload_tier` if it is there."""
        self.purge(pool)
        match change:
            case BlocksStored():
                tier, group = _tier(change.medium, pool), (change.medium, change.group)
                known = group in self._groups or len(self._groups) < MAX_GROUPS
                if tier is not None and change.full and known:
                    self._store(change, tier)
                else:
                    self._unfollowed.add(group)
                    self.counts.skipped += len(change.hashes)
            case BlocksRemoved():
                self._remove(change, _tier(change.medium, pool))
            case BlocksCleared():
                self._clear(change.reason, pool)

    def _store(self, change: BlocksStored, tier: Tier) -> None:
        group = self._groups.setdefault((change.medium, change.group), len(self._groups))
        stored, ours = self._add(change, group, tier)
        self.counts.lost += len(change.hashes) - stored
        if not stored:
            return
        self.counts.stored += stored
        if self._leaving:
            self._stored_again.setdefault(change.medium, set()).update(ours)
        if change.medium is Medium.GPU and change.parent is not None:
            # Includes our block that ends where they begin, so that the model knows their place.
            ours = [*self._blocks.ours_at(change.parent, group), *ours]
        tier.store(ours, [self._block] * len(ours))
        self._drop_oldest(change, tier)

    def _add(self, change: BlocksStored, group: int, tier: Tier) -> tuple[int, Sequence[BlockHash]]:
        """Return how many of the event's blocks could be hashed, and our blocks in them."""
        if not change.tokens:
            return self._blocks.copy(change.hashes, group)
        root = 0
        if change.parent is None:
            root = self._hasher.root(change.model, change.salt, exact=True)
        added = self._blocks.store(change, root, group)
        if added is None:
            return 0, ()
        ours, outdated, renamed = added
        self.counts.renamed += renamed
        if outdated:
            tier.discard(outdated)
        return len(change.hashes), ours

    def _remove(self, change: BlocksRemoved, tier: Tier | None) -> None:
        group = (change.medium, change.group)
        if group in self._unfollowed:
            self.counts.skipped += len(change.hashes)
            return
        if group not in self._groups:
            self.counts.unknown += len(change.hashes)
            return
        gone, unknown, ours = self._blocks.remove(change.hashes, self._groups[group])
        self.counts.removed += gone
        self.counts.unknown += unknown
        if tier is not None and ours:
            tier.discard(ours)

    def _drop_oldest(self, change: BlocksStored, tier: Tier) -> None:
        """Drop the oldest blocks if there are too many, but none of those just stored."""
        room = max(_ROOMS * self.room, _MIN_ROOM)
        most = min(self._most_blocks, room // (change.size or self._block))
        dropped, ours = self._blocks.drop_oldest(change.hashes, most)
        self.counts.dropped += dropped
        if ours:
            tier.discard(ours)

    def _clear(self, reason: Cleared, pool: ReportedBlocks) -> None:
        """Empty the tiers; after a gap in the events, only of mirrored blocks.

        Blocks that the model holds for other reasons may still be there after a gap.
        """
        self._stored_again = {}
        if reason is Cleared.GAP:
            self._leaving.append(_Leaving(self._blocks.drain(), (Medium.GPU, Medium.CPU)))
        else:
            held = chain(in_steps(pool.cache.hashes()), pool.held_blocks())
            self._leaving.append(_Leaving(held, (Medium.GPU,)))
            if (lower := pool.offload_tier) is not None:
                self._leaving.append(_Leaving(in_steps(lower.hashes()), (Medium.CPU,)))
            self._leaving.append(_Leaving(self._blocks.drain(), ()))
        self._begin()
        self.purge(pool)

    def forget(self, held: Iterable[Sequence[BlockHash]] = ()) -> None:
        """Forget all followed blocks; `purge` frees their memory, and that of `held`."""
        self._leaving.append(_Leaving(chain(self._blocks.drain(), held), ()))
        self._begin()

    def drain(self) -> Iterator[BlockHash]:
        """Remove all blocks, with their memory, as they are taken; yields among others our hashes.

        Nothing else may be called from then on.
        """
        return chain.from_iterable(self._blocks.drain())

    @property
    def follows(self) -> bool:
        """Whether blocks were stored since the beginning, or since the last clear."""
        return bool(self._groups)

    @property
    def is_leaving(self) -> bool:
        """Whether anything is left for `purge`."""
        return bool(self._leaving)

    def purge(self, pool: CacheModel | ReportedBlocks) -> None:
        """Take some of the blocks out that were cleared."""
        blocks = _PURGED
        while self._leaving and blocks > 0:
            leaving = self._leaving[0]
            some = next(leaving.blocks, None)
            if some is None:
                self._leaving.popleft()
                continue
            for medium in leaving.media:
                tier = _tier(medium, pool)
                again = self._stored_again.get(medium, ())
                if tier is not None:
                    tier.discard([each for each in some if each not in again])
            blocks -= max(len(some), _MIN_PURGED)


class _Leaving(NamedTuple):
    """Blocks that leave the tiers of `media`, some at a time; of none: memory that is freed."""

    blocks: Iterator[Sequence[BlockHash]]
    media: Sequence[Medium]


def _tier(medium: Medium, pool: CacheModel | ReportedBlocks) -> Tier | None:
    return {Medium.GPU: pool, Medium.CPU: pool.offload_tier}.get(medium)
