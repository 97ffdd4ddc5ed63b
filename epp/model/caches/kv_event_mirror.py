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

No change takes long, however many blocks are followed: what is cleared leaves the model of the
cache a part at a time, with the changes that follow (`purge`).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

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
from epp.model.shards import SHARDS, STEP, Shards, emptied, freed, in_steps

MOST_BLOCKS = 1 << 20
"""Blocks of one engine that are followed at most; beyond that the oldest are dropped."""

_ROOMS = 2
"""How many times what the cache has room for is followed: its size may be understated."""
_LEAST_ROOM = 1 << 16
"""Tokens in blocks that are followed however small the cache is."""
_MOST_DROPPED = 16
"""Blocks that are dropped for one that is stored: many may be too many once their size grows."""
_PURGED = 1 << 11
"""Blocks that are purged with one change: a few milliseconds."""

_MOST_GROUPS = 16
"""KV cache groups, by medium, that are followed at most; a model has few of full attention."""

Group = tuple[Medium, int | None]
_Copies = Shards[EngineHash, int]
_Fillers = EngineHash | set[EngineHash]
"""One stands alone: a long block fills thousands of ours."""


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
    followed, and no more than a cache holds twice of `room` tokens.
    """

    def __init__(self, hasher: BlockHasher, model: str, most_blocks: int = MOST_BLOCKS) -> None:
        self.counts = KvEventCounts()
        self._hasher = hasher
        self._model = model
        self.room = most_blocks * hasher.token_block
        self._most_blocks = most_blocks
        self._most_of_shard = 1
        self._unfollowed: set[Group] = set()
        self._outdated: list[BlockHash] = []
        self._leaving: deque[_Leaving] = deque()
        self._stored_again: dict[Medium, set[BlockHash]] = {}  # since the last clear
        self._begin()

    def _begin(self) -> None:
        self._copies: dict[Group, _Copies] = {}
        # By engine block: the hash that seeds what follows it; the token ids since that, where a
        # block of ours is not full yet; our blocks that it filled, where sizes differ.
        self._seeds: Shards[EngineHash, int] = Shards()
        self._partial: Shards[EngineHash, bytes] = Shards()
        self._filled: Shards[EngineHash, Sequence[BlockHash]] = Shards()
        # By group and block of ours, where sizes differ: the engine's blocks there that fill it.
        self._fillers: dict[Group, Shards[BlockHash, _Fillers]] = {}
        self._sizes_differ = False

    def __len__(self) -> int:
        return len(self._seeds)

    def hashes(self) -> list[BlockHash]:
        """Return our hashes of all blocks that are followed."""
        return list(chain.from_iterable(map(self._our_blocks, self._seeds)))

    def apply(self, change: Change, pool: CacheModel | ReportedBlocks) -> None:
        """Apply one change to the model of the cache, or to its `offload_tier` if it is there."""
        self.purge(pool)
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
                self._clear(change.reason, pool)

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
        copies = self._copies.setdefault(group, Shards())
        for engine_hash in hashed:
            shard = copies.of(engine_hash)
            shard[engine_hash] = shard.get(engine_hash, 0) + 1
        self._record_fillers(hashed, group)
        ours = self._blocks_of(hashed)
        if self._leaving:
            self._stored_again.setdefault(change.medium, set()).update(ours)
        if change.medium is Medium.GPU and change.parent is not None:
            ours = [*self._before(change.parent, change.group), *ours]
        tier.store(ours, [self._hasher.token_block] * len(ours))
        self._drop_oldest(change, tier)

    def _before(self, parent: EngineHash, group: int | None) -> Sequence[BlockHash]:
        """Return our block that ends where `parent` does, so that the model knows what follows."""
        copies = self._copies.get((Medium.GPU, group))
        if copies is None or parent not in copies.of(parent) or parent in self._partial.of(parent):
            return ()
        return (BlockHash(self._seeds.of(parent)[parent]),)

    def _hash(self, change: BlocksStored) -> Sequence[EngineHash]:
        """Hash the event's blocks; return those that have a hash of ours."""
        engine_hashes, parent = change.hashes, change.parent
        if not change.tokens:
            return [each for each in engine_hashes if each in self._seeds.of(each)]
        if parent is None:
            seed = self._hasher.root(change.model or self._model, change.salt, exact=True)
        elif parent in self._seeds.of(parent):
            seed = self._seeds.of(parent)[parent]
        else:
            return ()
        partial = b"" if parent is None else self._partial.of(parent).get(parent, b"")
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
        for engine_hash, own in zip(engine_hashes, ours, strict=True):
            seeds = self._seeds.of(engine_hash)
            if seeds.get(engine_hash, own) != own:
                self.counts.renamed += 1
                self._outdated += self._our_blocks(engine_hash)
                self._forget_fillers([engine_hash])
                self._remove_blocks([engine_hash])
            seeds[engine_hash] = own

    def _hash_each(self, change: BlocksStored, seed: int, partial: bytes) -> None:
        """Hash blocks of another size than ours, or with content beside token ids."""
        self._sizes_differ = True
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
            self._filled.of(engine_hash)[engine_hash] = tuple(ours)  # most are one and the same ()
            if partial:
                self._partial.of(engine_hash)[engine_hash] = partial

    def _record_fillers(self, engine_hashes: Sequence[EngineHash], group: Group) -> None:
        if not self._sizes_differ:
            return
        fillers = self._fillers.setdefault(group, Shards())
        for engine_hash in engine_hashes:
            for own in self._filled.of(engine_hash).get(engine_hash, ()):
                shard = fillers.of(own)
                before = shard.setdefault(own, engine_hash)
                if isinstance(before, set):
                    before.add(engine_hash)
                elif before != engine_hash:
                    shard[own] = {before, engine_hash}

    def _forget_fillers(self, engine_hashes: Sequence[EngineHash]) -> None:
        for group in self._fillers:
            self._drop_fillers(engine_hashes, group)

    def _drop_fillers(self, engine_hashes: Sequence[EngineHash], group: Group) -> None:
        fillers = self._fillers.get(group)
        if fillers is None:
            return
        for engine_hash in engine_hashes:
            for own in self._filled.of(engine_hash).get(engine_hash, ()):
                shard = fillers.of(own)
                others = shard.get(own)
                if isinstance(others, set):
                    others.discard(engine_hash)
                if others in (engine_hash, _NOBODY):
                    del shard[own]

    def _our_blocks(self, engine_hash: EngineHash) -> Sequence[BlockHash]:
        """Return our blocks that one of the engine's filled."""
        filled = self._filled.of(engine_hash).get(engine_hash)
        seed = self._seeds.of(engine_hash)[engine_hash]
        return (BlockHash(seed),) if filled is None else filled

    def _blocks_of(self, engine_hashes: Sequence[EngineHash]) -> Sequence[BlockHash]:
        if self._sizes_differ:
            return list(chain.from_iterable(map(self._our_blocks, engine_hashes)))
        return [BlockHash(self._seeds.of(each)[each]) for each in engine_hashes]

    def _remove(self, change: BlocksRemoved, tier: Tier | None) -> None:
        group = (change.medium, change.group)
        if group in self._unfollowed:
            self.counts.skipped += len(change.hashes)
            return
        copies = self._copies.get(group, _NO_COPIES)
        gone: list[EngineHash] = []
        for engine_hash in change.hashes:
            shard = copies.of(engine_hash)
            number = shard.get(engine_hash, 0)
            if number > 1:
                shard[engine_hash] = number - 1
            elif number:
                del shard[engine_hash]
                gone.append(engine_hash)
            else:
                self.counts.unknown += 1
        self.counts.removed += len(gone)
        self._drop_fillers(gone, group)
        if tier is not None and gone:
            fillers = self._fillers.get(group, _NO_FILLERS)
            tier.discard([own for own in self._blocks_of(gone) if own not in fillers.of(own)])
        self._remove_blocks([engine_hash for engine_hash in gone if not self._held(engine_hash)])

    def _held(self, engine_hash: EngineHash) -> bool:
        return any(engine_hash in copies.of(engine_hash) for copies in self._copies.values())

    def _remove_blocks(self, engine_hashes: Sequence[EngineHash]) -> None:
        for known in (self._seeds, self._partial, self._filled):
            known.pop(engine_hashes)

    def _drop_oldest(self, change: BlocksStored, tier: Tier) -> None:
        """Drop the blocks that were stored first, where there are too many beside those stored."""
        room = max(_ROOMS * self.room, _LEAST_ROOM)
        in_room = room // (change.size or self._hasher.token_block)
        most = max(1, min(self._most_blocks, in_room) // SHARDS)
        for engine_hash in change.hashes:
            shard = self._seeds.of(engine_hash)
            if len(shard) > most:
                many = len(shard) - most + most // 16
                self._drop(list(islice(shard, min(many, _MOST_DROPPED))), tier)

    def _drop(self, oldest: Sequence[EngineHash], tier: Tier) -> None:
        self.counts.dropped += len(oldest)
        for copies in self._copies.values():
            copies.pop(oldest)
        tier.discard(self._blocks_of(oldest))
        self._forget_fillers(oldest)
        self._remove_blocks(oldest)

    def _clear(self, reason: Cleared, pool: CacheModel | ReportedBlocks) -> None:
        """Empty the tiers; after a gap in the events, of what was mirrored only.

        What the model holds for other reasons may well be true after a gap.
        """
        lower = pool.offload_tier
        self._stored_again = {}
        if reason is Cleared.GAP:
            mirrored = _drained(self._seeds, self._filled)
            self._leaving.append(_Leaving(mirrored, (Medium.GPU, Medium.CPU)))
        else:
            self._leaving.append(_Leaving(_all_of(pool), (Medium.GPU,)))
            if lower is not None:
                self._leaving.append(_Leaving(in_steps(lower.hashes()), (Medium.CPU,)))
        self.forget()
        self.purge(pool)

    def forget(self, held: Sequence[set[BlockHash]] = ()) -> None:
        """Follow nothing of what was followed; `purge` frees its memory, and that of `held`."""
        self._leaving.append(_Leaving(chain(freed(self._known()), emptied(held)), ()))
        self._unfollowed.clear()
        self._begin()

    def drain(self) -> Iterator[BlockHash]:
        """Remove all blocks, with their memory, as they are taken; yields among others our hashes.

        Nothing else may be called from then on.
        """
        mirrored = _drained(self._seeds, self._filled)
        return chain.from_iterable(chain(mirrored, freed(self._known())))

    def _known(self) -> Sequence[Shards[Any, Any]]:
        copies, fillers = self._copies.values(), self._fillers.values()
        return [*copies, *fillers, self._seeds, self._partial, self._filled]

    @property
    def is_leaving(self) -> bool:
        """Whether anything is left for `purge`."""
        return bool(self._leaving)

    def purge(self, pool: CacheModel | ReportedBlocks, blocks: int = _PURGED) -> None:
        """Take about this many blocks out that were cleared."""
        while self._leaving and blocks > 0:
            leaving = self._leaving[0]
            some = next(leaving.blocks, None)
            if some is None:
                self._leaving.popleft()
                continue
            for medium in leaving.media:
                tier = self._tier(medium, pool, pool.offload_tier)
                again = self._stored_again.get(medium, ())
                if tier is not None:
                    tier.discard([each for each in some if each not in again])
            blocks -= len(some)


class _Leaving(NamedTuple):
    """Blocks that leave the tiers of `media`, some at a time; of none: memory that is freed."""

    blocks: Iterator[Sequence[BlockHash]]
    media: Sequence[Medium]


def _all_of(pool: CacheModel | ReportedBlocks) -> Iterator[Sequence[BlockHash]]:
    """Yield all that a cache holds, and all that its engine is known to."""
    if isinstance(pool, ReportedBlocks):
        return chain(in_steps(pool.cache.hashes()), pool.held_blocks(STEP))
    return in_steps(pool.hashes())


def _drained(
    seeds: Shards[EngineHash, int], filled: Shards[EngineHash, Sequence[BlockHash]]
) -> Iterator[Sequence[BlockHash]]:
    """Yield our hashes of blocks that were followed, which are removed."""
    for entries in seeds.drain():
        some: list[BlockHash] = []
        for engine_hash, seed in entries:
            ours = filled.of(engine_hash).pop(engine_hash, None)
            some += (BlockHash(seed),) if ours is None else ours
        yield some


_NO_COPIES: _Copies = Shards()
_NO_FILLERS: Shards[BlockHash, _Fillers] = Shards()
_NOBODY: frozenset[EngineHash] = frozenset()
