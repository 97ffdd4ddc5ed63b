"""What a held block really takes, beside what the index's budget reckons with."""

import gc
import random
import tracemalloc

import pytest

from tests.model.caches.pool_rig import reference_of
from tests.native.built import source_of

SOURCE = source_of(
    "epp.model.prefix_index.index"
)  # tracemalloc sees a part of the extension's memory

ENDPOINTS, BLOCKS, PROMPT = 8, 1_900, 100
"""Enough that a dictionary's room counts: they are as full as with 2 or 8 times the blocks."""


def bytes_taken(shared):
    """Fill an index and its endpoints' pools, all with the same prompts or none."""
    rng = random.Random(1)  # noqa: S311 (names of blocks, no secrets)
    gc.collect()
    tracemalloc.start()
    index = SOURCE.PrefixIndex()
    pools = [reference_of(BLOCKS) for _ in range(ENDPOINTS)]
    for pool in pools:
        slot = index.add_slot()
        if shared:
            rng.seed(1)
        for _ in range(BLOCKS // PROMPT):
            names = [rng.getrandbits(64) for _ in range(PROMPT)]
            pool.release(pool.allocate(names, [16] * PROMPT, 0, PROMPT))
            index.add(slot, pool.take_stored())
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, pools)) == ENDPOINTS * BLOCKS
    return taken, len(index)


@pytest.mark.parametrize("shared", [False, True])
def test_the_budget_is_about_what_blocks_take(shared):
    taken, hashes = bytes_taken(shared)
    estimated = ENDPOINTS * BLOCKS * SOURCE.HELD_BYTES + hashes * SOURCE.HASH_BYTES
    assert 0.6 < taken / estimated < 1.1
