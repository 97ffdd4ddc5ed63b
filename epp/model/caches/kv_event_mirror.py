"""A mirror of one engine's KV cache, fed by its KV events, that corrects the model of that cache.

The engine knows blocks by hashes of its own. Here they get the picker's, computed from the parent
and the token ids in the event, so that neither side need know how the other hashes. Block sizes
may differ: one of the engine's blocks may hold several of ours, or be a part of one.

vLLM does not merge equal blocks: a block computed twice has two copies, and each copy that is
evicted gives a BlockRemoved. A block is lost with its last copy. In hybrid models each KV cache
group has copies of its own, and a hit needs one in every group whose layers attend to the whole
sequence; other groups are not followed. A block whose parent is unknown, because it was stored
before the subscription, has no place in any chain and is left out. What the model makes of blocks
while prompts come as text is in `reported_blocks`.
"""

from collections.abc import Sequence
from itertools import chain, islice, repeat

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.caches.contract import CacheModel, Tier
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.kv_changes import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Change,
    Cleared,
    EngineHash,
    Medium,
)
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.hashing import BlockHash
from epp.model.request import TOKEN_BYTES

MOST_BLOCKS = 1 << 20
"""Blocks of one engine that are followed at most; beyond that the oldest are dropped."""

_DROPPED_PART = 16
"""The part of the blocks, one in this many, that is dropped at a time."""

_MOST_GROUPS = 16
"""KV cache groups, by medium, that are followed at most; a model has few of full attention."""

Group = tuple[Medium, int | None]
_Copies = dict[EngineHash, int]


class KvEventCounts(msgspec.Struct):
    """Counts of the engine's blocks since the start.

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

    `model` is hashed into blocks whose event has no model. At most about `most_blocks` are
    followed.
    """

    def __init__(self, hasher: BlockHasher, model: str, most_blocks: int = MOST_BLOCKS) -> None:
        self.counts = KvEventCounts()
        self._hasher = hasher
        self._model = model
        self._most_blocks = most_blocks
        self._copies: dict[Group, _Copies] = {}
        self._unfollowed: set[Group] = set()
        self._outdated: list[BlockHash] = []
        # By engine block: the hash that seeds what follows it; the token ids since that, where a
        # block of ours is not full yet; our blocks that it filled, where sizes differ.
        self._seeds: dict[EngineHash, int] = {}
        self._partial: dict[EngineHash, bytes] = {}
        self._filled: dict[EngineHash, Sequence[BlockHash]] = {}
        # By group and block of ours, where sizes differ: the engine's blocks there that fill it.
        self._fillers: dict[Group, dict[BlockHash, set[EngineHash]]] = {}

    def __len__(self) -> int:
        return len(self._seeds)

    def hashes(self) -> list[BlockHash]:
        """Return our hashes of all blocks that are followed."""
        return list(chain.from_iterable(map(self._our_blocks, self._seeds)))

    def apply(self, change: Change, pool: CacheModel | ReportedBlocks) -> None:
        """Apply one change to the model of the cache, or to its `offload_tier` if it is there."""
        lower = pool.offload_tier
        match change:
            case BlocksStored():
                tier, group = self._tier(change.medium, pool, lower), (change.medium, change.group)
                known = group in self._copies or len(self._copies) < _MOST_GROUPS
                if tier is not None and change.full and known:
                    self._store(change, tier)
                else:
                    self._unfollowed.add(group)
                    self.counts.skipped += len(change.hashes)
            case BlocksRemoved():
                self._remove(change, self._tier(change.medium, pool, lower))
            case BlocksCleared():
                self._clear(change.reason, [pool] if lower is None else [pool, lower])

    @staticmethod
    def _tier(medium: Medium, pool: Tier, lower: Tier | None) -> Tier | None:
        return {Medium.GPU: pool, Medium.CPU: lower}.get(medium)

    def _store(self, change: BlocksStored, tier: Tier) -> None:
        hashed = self._hash(change)
        if self._outdated:
            tier.discard(self._outdated)
            self._outdated = []
        self.counts.lost += len(change.hashes) - len(hashed)
        if not hashed:
            return
        self.counts.stored += len(hashed)
        group = (change.medium, change.group)
        copies = self._copies.setdefault(group, {})
        if copies.keys().isdisjoint(hashed):
            copies.update(dict.fromkeys(hashed, 1))
        else:
            for engine_hash in hashed:
                copies[engine_hash] = copies.get(engine_hash, 0) + 1
        self._record_fillers(hashed, group)
        ours = self._blocks_of(hashed)
        if change.medium is Medium.GPU and change.parent is not None:
            ours = [*self._before(change.parent, change.group), *ours]
        tier.store(ours, [self._hasher.token_block] * len(ours))
        if len(self._seeds) > self._most_blocks:
            self._drop_oldest(tier)

    def _before(self, parent: EngineHash, group: int | None) -> Sequence[BlockHash]:
        """Return our block that ends where `parent` does, so that the model knows what follows."""
        if parent in self._partial or parent not in self._copies.get((Medium.GPU, group), {}):
            return ()
        return (BlockHash(self._seeds[parent]),)

    def _hash(self, change: BlocksStored) -> Sequence[EngineHash]:
        """Hash the event's blocks; return those that have a hash of ours."""
        engine_hashes, parent = change.hashes, change.parent
        if not change.tokens:
            return [engine_hash for engine_hash in engine_hashes if engine_hash in self._seeds]
        if parent is None:
            seed = self._hasher.root(change.model or self._model, change.salt, exact=True)
        elif parent in self._seeds:
            seed = self._seeds[parent]
        else:
            return ()
        partial = b"" if parent is None else self._partial.get(parent, b"")
        if partial or change.content or change.size != self._hasher.token_block:
            self._hash_each(change, seed, partial)
        else:
            self._seed(engine_hashes, self._extend(seed, change.tokens))
        return engine_hashes

    def _extend(self, seed: int, tokens: bytes) -> Sequence[BlockHash]:
        """Return the hashes of the full blocks of ours in `tokens`, which follow `seed`."""
        block = self._hasher.token_block
        ends = range(block, len(tokens) // TOKEN_BYTES + 1, block)
        return self._hasher.extend(seed, tokens, ends, TOKEN_BYTES)

    def _seed(self, engine_hashes: Sequence[EngineHash], ours: Sequence[BlockHash]) -> None:
        """Set the hash that seeds what follows each of the engine's blocks."""
        seeds = self._seeds
        if not seeds.keys().isdisjoint(engine_hashes):
            for engine_hash, own in zip(engine_hashes, ours, strict=True):
                if seeds.get(engine_hash, own) != own:
                    self.counts.renamed += 1
                    self._outdated += self._our_blocks(engine_hash)
                    self._forget_fillers([engine_hash])
                    self._remove_blocks([engine_hash])
        seeds.update(zip(engine_hashes, ours, strict=True))

    def _hash_each(self, change: BlocksStored, seed: int, partial: bytes) -> None:
        """Hash blocks of another size than ours, or with content beside token ids."""
        width = change.size * TOKEN_BYTES
        content = change.content or repeat(b"")
        for number, (engine_hash, extra) in enumerate(zip(change.hashes, content, strict=False)):
            if extra:  # no prompt of token ids alone has this hash
                seed = xxh3_64_intdigest(extra, seed)
            partial += change.tokens[number * width : (number + 1) * width]
            ours = self._extend(seed, partial)
            if ours:
                seed = ours[-1]
                partial = partial[len(ours) * self._hasher.token_block * TOKEN_BYTES :]
            self._seed([engine_hash], [BlockHash(seed)])
            self._filled[engine_hash] = ours
            if partial:
                self._partial[engine_hash] = partial

    def _record_fillers(self, engine_hashes: Sequence[EngineHash], group: Group) -> None:
        if not self._filled:
            return
        fillers = self._fillers.setdefault(group, {})
        for engine_hash in engine_hashes:
            for own in self._filled.get(engine_hash, ()):
                fillers.setdefault(own, set()).add(engine_hash)

    def _forget_fillers(self, engine_hashes: Sequence[EngineHash]) -> None:
        for group in self._fillers:
            self._drop_fillers(engine_hashes, group)

    def _drop_fillers(self, engine_hashes: Sequence[EngineHash], group: Group) -> None:
        fillers = self._fillers.get(group, {})
        for engine_hash in engine_hashes if fillers else ():
            for own in self._filled.get(engine_hash, ()):
                others = fillers.get(own)
                if others is not None:
                    others.discard(engine_hash)
                    if not others:
                        del fillers[own]

    def _our_blocks(self, engine_hash: EngineHash) -> Sequence[BlockHash]:
        """Return our blocks that one of the engine's filled."""
        filled = self._filled.get(engine_hash)
        return (BlockHash(self._seeds[engine_hash]),) if filled is None else filled

    def _blocks_of(self, engine_hashes: Sequence[EngineHash]) -> Sequence[BlockHash]:
        if self._filled:
            return list(chain.from_iterable(map(self._our_blocks, engine_hashes)))
        return [BlockHash(self._seeds[engine_hash]) for engine_hash in engine_hashes]

    def _remove(self, change: BlocksRemoved, tier: Tier | None) -> None:
        group = (change.medium, change.group)
        if group in self._unfollowed:
            self.counts.skipped += len(change.hashes)
            return
        copies = self._copies.get(group, {})
        gone: list[EngineHash] = []
        for engine_hash in change.hashes:
            number = copies.get(engine_hash, 0)
            if number > 1:
                copies[engine_hash] = number - 1
            elif number:
                del copies[engine_hash]
                gone.append(engine_hash)
            else:
                self.counts.unknown += 1
        self.counts.removed += len(gone)
        self._drop_fillers(gone, group)
        if tier is not None and gone:
            fillers = self._fillers.get(group, {})
            tier.discard([own for own in self._blocks_of(gone) if own not in fillers])
        self._remove_blocks([engine_hash for engine_hash in gone if not self._held(engine_hash)])

    def _held(self, engine_hash: EngineHash) -> bool:
        return any(engine_hash in copies for copies in self._copies.values())

    def _remove_blocks(self, engine_hashes: Sequence[EngineHash]) -> None:
        for engine_hash in engine_hashes:
            del self._seeds[engine_hash]
            self._partial.pop(engine_hash, None)
            self._filled.pop(engine_hash, None)

    def _drop_oldest(self, tier: Tier) -> None:
        """Drop the blocks that were stored first."""
        oldest = list(islice(self._seeds, max(1, self._most_blocks // _DROPPED_PART)))
        self.counts.dropped += len(oldest)
        for copies in self._copies.values():
            for engine_hash in oldest:
                copies.pop(engine_hash, None)
        tier.discard(self._blocks_of(oldest))
        self._forget_fillers(oldest)
        self._remove_blocks(oldest)

    def _clear(self, reason: Cleared, tiers: Sequence[Tier]) -> None:
        """Empty the tiers; after a gap in the events, of what was mirrored only.

        What the model holds for other reasons may well be true after a gap.
        """
        mirrored = self.hashes() if reason is Cleared.GAP else ()
        for tier in tiers:
            tier.discard(mirrored if reason is Cleared.GAP else tier.hashes())
        for known in (self._copies, self._seeds, self._partial, self._filled, self._fillers):
            known.clear()
        self._unfollowed.clear()
