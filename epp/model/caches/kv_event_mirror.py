"""Follows what one engine says of its KV cache, and keeps the model of that cache in step.

The engine names blocks by hashes of its own; here they get the picker's, from the parent and the
token ids that come with them, so that neither side need know how the other hashes. Blocks of both
sides may differ in size: one of the engine's may hold several of ours, or be a part of one.

The engine keeps several copies of a block where it computed it several times (vLLM does not merge
equal blocks) and tells of the loss of each: a block is lost with its last copy. In hybrid models
each group of layers has copies of its own, and a hit needs one in every group whose layers see
the whole sequence; other groups are not followed. A block whose parent was never heard of (it was
stored before anybody listened) has no place in any chain and is left out.
"""

from collections.abc import Sequence
from itertools import chain, islice, repeat

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.caches.contract import CacheModel, Tier
from epp.model.kv_changes import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Change,
    Cleared,
    EngineHash,
    Medium,
)
from epp.model.prompts.block_hasher import BlockHash, BlockHasher
from epp.model.request import TOKEN_BYTES

MOST_BLOCKS = 1 << 20
"""Blocks of one engine that are followed; the oldest are given up beyond that."""

_AT_ONCE = 16
"""The share of the blocks, one in so many, that is given up together."""

Group = tuple[Medium, int | None]
_Copies = dict[EngineHash, int]


class Tally(msgspec.Struct):
    """Blocks of the engine's, counted since the start.

    `lost` could not be placed: their parent is unknown, or the engine gave no tokens. `skipped`
    are in groups or media that are not followed. `unknown` went without ever having been placed.
    `renamed` had another content under the same hash before. `dropped` were given up for want of
    room.
    """

    stored: int = 0
    removed: int = 0
    lost: int = 0
    skipped: int = 0
    unknown: int = 0
    renamed: int = 0
    dropped: int = 0


class Mirror:
    """What one engine is known to hold. `model` names blocks that came without a model's name."""

    def __init__(self, hasher: BlockHasher, model: str, most_blocks: int = MOST_BLOCKS) -> None:
        self.tally = Tally()
        self._hasher = hasher
        self._model = model
        self._most_blocks = most_blocks
        self._copies: dict[Group, _Copies] = {}
        self._unfollowed: set[Group] = set()
        self._stale: list[BlockHash] = []
        # By engine block: the hash that seeds what comes after it; the tokens since that, where
        # a block of ours is not full yet; our blocks that it filled, where sizes differ.
        self._seeds: dict[EngineHash, int] = {}
        self._open: dict[EngineHash, bytes] = {}
        self._filled: dict[EngineHash, Sequence[BlockHash]] = {}
        # Where the engine's blocks are not ours one by one, several may begin with one of ours.
        self._homes: dict[BlockHash, set[EngineHash]] = {}

    def __len__(self) -> int:
        return len(self._seeds)

    @property
    def lost(self) -> int:
        """Blocks that could not be placed so far."""
        return self.tally.lost

    def hashes(self) -> list[BlockHash]:
        """Our names of all blocks that are followed."""
        return list(chain.from_iterable(map(self._ours, self._seeds)))

    def apply(self, change: Change, pool: CacheModel) -> None:
        """Take in one change; of the host's memory where the cache has an `offload_tier`."""
        lower = pool.offload_tier
        match change:
            case BlocksStored():
                tier = self._tier(change.medium, pool, lower)
                if tier is not None and change.full:
                    self._store(change, tier)
                else:
                    self._unfollowed.add((change.medium, change.group))
                    self.tally.skipped += len(change.hashes)
            case BlocksRemoved():
                self._remove(change, self._tier(change.medium, pool, lower))
            case BlocksCleared():
                self._clear(change.reason, [pool] if lower is None else [pool, lower])

    @staticmethod
    def _tier(medium: Medium, pool: CacheModel, lower: Tier | None) -> Tier | None:
        return {Medium.GPU: pool, Medium.CPU: lower}.get(medium)

    def _store(self, change: BlocksStored, tier: Tier) -> None:
        placed = self._place(change)
        if self._stale:
            tier.discard(self._stale)
            self._stale = []
        self.tally.lost += len(change.hashes) - len(placed)
        if not placed:
            return
        self.tally.stored += len(placed)
        copies = self._copies.setdefault((change.medium, change.group), {})
        if copies.keys().isdisjoint(placed):
            copies.update(dict.fromkeys(placed, 1))
        else:
            for name in placed:
                copies[name] = copies.get(name, 0) + 1
        ours = self._all_of(placed)
        if change.medium is Medium.GPU and change.parent is not None:
            ours = [*self._before(change.parent, change.group), *ours]
        tier.store(ours, [self._hasher.token_block] * len(ours))
        if len(self._seeds) > self._most_blocks:
            self._shed(tier)

    def _before(self, parent: EngineHash, group: int | None) -> Sequence[BlockHash]:
        """Return our block that ends where the engine's does: what comes next continues it."""
        if parent in self._open or parent not in self._copies.get((Medium.GPU, group), {}):
            return ()
        return (BlockHash(self._seeds[parent]),)

    def _place(self, change: BlocksStored) -> Sequence[EngineHash]:
        """Name the blocks; return those that have a name now."""
        names, parent = change.hashes, change.parent
        if not change.tokens:
            return [name for name in names if name in self._seeds]
        if parent is None:
            seed = self._hasher.root(change.model or self._model, change.salt, exact=True)
        elif parent in self._seeds:
            seed = self._seeds[parent]
        else:
            return ()
        begun = b"" if parent is None else self._open.get(parent, b"")
        if begun or change.content or change.size != self._hasher.token_block:
            self._place_each(change, seed, begun)
        else:
            self._rename(names, self._extend(seed, change.tokens))
        return names

    def _extend(self, seed: int, tokens: bytes) -> Sequence[BlockHash]:
        """Name the full blocks of ours that `tokens` hold."""
        block = self._hasher.token_block
        ends = range(block, len(tokens) // TOKEN_BYTES + 1, block)
        return self._hasher.extend(seed, tokens, ends, TOKEN_BYTES)

    def _rename(self, names: Sequence[EngineHash], ours: Sequence[BlockHash]) -> None:
        """Give each block of the engine's one of ours."""
        seeds = self._seeds
        if not seeds.keys().isdisjoint(names):
            for name, own in zip(names, ours, strict=True):
                if seeds.get(name, own) != own:
                    self.tally.renamed += 1
                    self._stale += self._ours(name)
                    self._forget([name])
        seeds.update(zip(names, ours, strict=True))

    def _place_each(self, change: BlocksStored, seed: int, begun: bytes) -> None:
        """Name blocks of another size than ours, or with other content than tokens."""
        width = change.size * TOKEN_BYTES
        content = change.content or repeat(b"")
        for number, (name, extra) in enumerate(zip(change.hashes, content, strict=False)):
            if extra:  # never what a prompt of tokens alone is named
                seed = xxh3_64_intdigest(extra, seed)
            begun += change.tokens[number * width : (number + 1) * width]
            ours = self._extend(seed, begun)
            if ours:
                seed = ours[-1]
                begun = begun[len(ours) * self._hasher.token_block * TOKEN_BYTES :]
            self._rename([name], [BlockHash(seed)])
            self._note(name, ours, begun)

    def _note(self, name: EngineHash, ours: Sequence[BlockHash], begun: bytes) -> None:
        self._filled[name] = ours
        for own in ours:
            self._homes.setdefault(own, set()).add(name)
        if begun:
            self._open[name] = begun

    def _ours(self, name: EngineHash) -> Sequence[BlockHash]:
        """Our blocks that one of the engine's filled."""
        filled = self._filled.get(name)
        return (BlockHash(self._seeds[name]),) if filled is None else filled

    def _all_of(self, names: Sequence[EngineHash]) -> Sequence[BlockHash]:
        if self._filled:
            return list(chain.from_iterable(map(self._ours, names)))
        return [BlockHash(self._seeds[name]) for name in names]

    def _remove(self, change: BlocksRemoved, tier: Tier | None) -> None:
        group = (change.medium, change.group)
        if group in self._unfollowed:
            self.tally.skipped += len(change.hashes)
            return
        copies = self._copies.get(group, {})
        gone: list[EngineHash] = []
        for name in change.hashes:
            number = copies.get(name, 0)
            if number > 1:
                copies[name] = number - 1
            elif number:
                del copies[name]
                gone.append(name)
            else:
                self.tally.unknown += 1
        self.tally.removed += len(gone)
        if tier is not None and gone:
            tier.discard(self._homeless(gone, copies))
        self._forget([name for name in gone if not self._held(name)])

    def _homeless(self, gone: Sequence[EngineHash], copies: _Copies) -> Sequence[BlockHash]:
        """Return our blocks that went with these of the engine's, of which `copies` are left."""
        ours = self._all_of(gone)
        if not self._homes:
            return ours
        return [own for own in ours if copies.keys().isdisjoint(self._homes.get(own, ()))]

    def _held(self, name: EngineHash) -> bool:
        return any(name in copies for copies in self._copies.values())

    def _forget(self, names: Sequence[EngineHash]) -> None:
        for name in names:
            del self._seeds[name]
            self._open.pop(name, None)
            for own in self._filled.pop(name, ()):
                homes = self._homes.get(own, set())
                homes.discard(name)
                if not homes:
                    self._homes.pop(own, None)

    def _shed(self, tier: Tier) -> None:
        """Give up the blocks that were named first."""
        oldest = list(islice(self._seeds, max(1, self._most_blocks // _AT_ONCE)))
        self.tally.dropped += len(oldest)
        for copies in self._copies.values():
            for name in oldest:
                copies.pop(name, None)
        tier.discard(self._homeless(oldest, {}))
        self._forget(oldest)

    def _clear(self, reason: Cleared, tiers: Sequence[Tier]) -> None:
        """Forget everything; after a gap only what was told is taken back."""
        told = self.hashes() if reason is Cleared.GAP else ()
        for tier in tiers:
            tier.discard(told if reason is Cleared.GAP else tier.hashes())
        for known in (self._copies, self._seeds, self._open, self._filled, self._homes):
            known.clear()
        self._unfollowed.clear()
