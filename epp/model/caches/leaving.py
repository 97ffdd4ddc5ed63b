"""Blocks that an engine is not known to hold any more, some at a time, as they leave the model."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from epp.model.caches.contract import CacheModel
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.caches.shards import Shards
from epp.model.kv_changes import EngineHash, Medium
from epp.model.prompts.hashing import BlockHash

STEP = 1 << 9
"""Blocks that leave at a time."""


class Leaving(NamedTuple):
    """Blocks that leave the tiers of `media`, some at a time; of none: memory that is freed."""

    blocks: Iterator[Sequence[BlockHash]]
    media: Sequence[Medium]


def all_of(pool: CacheModel | ReportedBlocks) -> Iterator[Sequence[BlockHash]]:
    """Yield all that a cache holds, and all that its engine is known to."""
    if isinstance(pool, ReportedBlocks):
        return chain(in_steps(pool.cache.hashes()), pool.held_blocks(STEP))
    return in_steps(pool.hashes())


def emptied(held: Sequence[set[BlockHash]]) -> Iterator[Sequence[BlockHash]]:
    """Remove everything from sets, and yield it."""
    for shard in held:
        while shard:
            yield [shard.pop() for _ in range(min(STEP, len(shard)))]


def in_steps(hashes: Sequence[BlockHash]) -> Iterator[Sequence[BlockHash]]:
    """Yield blocks some at a time."""
    for start in range(0, len(hashes), STEP):
        yield hashes[start : start + STEP]


def drained(
    seeds: Shards[EngineHash, int], filled: Shards[EngineHash, Sequence[BlockHash]]
) -> Iterator[Sequence[BlockHash]]:
    """Yield our hashes of blocks that were followed, which are removed."""
    for entries in seeds.drain(STEP):
        some: list[BlockHash] = []
        for engine_hash, seed in entries:
            ours = filled.of(engine_hash).pop(engine_hash, None)
            some += (BlockHash(seed),) if ours is None else ours
        yield some


def freed(known: Sequence[Shards[Any, Any]]) -> Iterator[Sequence[BlockHash]]:
    """Remove everything, and yield what it was known by."""
    for shards in known:
        for entries in shards.drain(STEP):
            yield [key for key, _ in entries]
