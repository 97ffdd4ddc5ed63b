"""Precision for memory: the extension merges adjacent blocks; what can be found of them."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from epp.model.prefix_index.index import PrefixIndex
from tests.model.caches.pool_rig import BLOCK, allocate, evicted, names_of, paths, pool_of, stored
from tests.native.built import needs

needs_merging = needs("epp.model.caches.block_pool.pool", "merged blocks")

WIDEST = 64

SIZES = [BLOCK] * 200
CHAIN = list(range(1, 17))


def serve(pool, names):
    pool.release(allocate(pool, len(names) * BLOCK + 1, names))


@needs_merging
@pytest.mark.parametrize(("fewer", "left"), [(0, 16), (1, 8), (8, 8), (9, 4), (12, 4), (15, 1)])
def test_a_chain_that_was_merged_is_found_whole(fewer, left):
    pool = pool_of(100)
    serve(pool, CHAIN)
    pool.coarsen(fewer)
    assert (len(pool), pool.match(CHAIN), pool.free) == (left, 16, 1600)
    assert pool.closed is (fewer == 0)


@needs_merging
@pytest.mark.parametrize(("parts_at", "found"), [(4, 4), (5, 4), (7, 4), (8, 8), (3, 0)])
def test_a_chain_that_parts_in_between_finds_what_stands_before(parts_at, found):
    pool = pool_of(100)
    serve(pool, CHAIN)
    pool.coarsen(12)
    assert pool.match([*CHAIN[:parts_at], 99, 98]) == found


@needs_merging
def test_a_hit_counts_blocks_and_holds_what_was_merged():
    pool = pool_of(100)
    serve(pool, CHAIN)
    pool.coarsen(12)
    lease = allocate(pool, 18 * BLOCK, [*CHAIN, 17, 18])
    assert (lease.cached, len(lease.blocks)) == (16, 6)
    assert pool.free == (100 - 18) * BLOCK
    pool.revoke(lease)
    assert (pool.free, pool.match([*CHAIN, 17, 18]), len(pool)) == (1600, 16, 4)


@needs_merging
def test_the_oldest_lose_precision_first():
    pool = pool_of(100)
    old, new = CHAIN, [each + 100 for each in CHAIN]
    serve(pool, old)
    serve(pool, new)
    pool.coarsen(10)
    assert (pool.match(old[:7]), pool.match(new[:7])) == (4, 7)
    assert (pool.match(old), pool.match(new)) == (16, 16)


@needs_merging
def test_where_chains_part_they_are_not_merged():
    pool = pool_of(100)
    shared, one, other = [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9]
    serve(pool, one)
    serve(pool, other)
    pool.coarsen(4)
    assert (pool.match(shared), pool.match(one), pool.match(other)) == (3, 6, 6)


@needs_merging
def test_when_nothing_is_left_to_merge_the_oldest_go():
    pool = pool_of(1000)
    for number in range(8):
        serve(pool, [1000 * number + each for each in range(1, 2 * WIDEST + 1)])
    pool.coarsen(len(pool) - 16)
    assert len(pool) == 16
    assert all(pool.match([1000 * n + each for each in range(1, 2 * WIDEST + 1)]) for n in range(8))
    pool.coarsen(3)
    assert pool.match([1]) == pool.match(list(range(1, 2 * WIDEST + 1))) == 0
    assert pool.match([7000 + each for each in range(1, 2 * WIDEST + 1)]) == 2 * WIDEST
    assert pool.free == pool.capacity


@pytest.mark.usefixtures("pool_kind")
def test_what_is_in_use_is_left_alone():
    pool = pool_of(100)
    allocate(pool, 161, CHAIN[:10])
    pool.coarsen(5)
    assert (len(pool), pool.closed) == (10, True)


@needs_merging
def test_merged_generated_blocks_can_still_get_hashes():
    pool = pool_of(100)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 16 * BLOCK)
    pool.release(lease)
    pool.coarsen(10)
    assert len(pool) == 1 + 4  # of 2 named and 14 unhashed ones, which do not mix
    assert pool.assign_hashes(lease, CHAIN[2:], SIZES) == 14
    assert (pool.match(CHAIN), pool.free) == (16, 1600)


@needs_merging
def test_a_copy_of_what_was_merged_stands_for_itself():
    pool = pool_of(40)
    serve(pool, [1, 2])
    pool.coarsen(1)
    assert list(pool.take_merged()) == [(2, 2)]
    copy = allocate(pool, 32, [1, 2])  # its last block is computed again, and so is the first here
    assert copy.cached == 0
    pool.release(allocate(pool, 38 * BLOCK, list(range(50, 88))))
    assert pool.match([1, 2]) == 2
    assert list(pool.take_merged()) == [(2, 1)]
    pool.release(copy)


@needs_merging
def test_where_chains_parted_is_known_when_copies_have_come_and_gone():
    pool = pool_of(100)
    serve(pool, [1, 2, 3, 4])
    serve(pool, [1, 2, 5, 6])
    pool.revoke(pool.allocate([1, 2], SIZES, 0, 0))
    pool.coarsen(4)  # three by merging, and the oldest
    assert (pool.match([1, 2]), pool.match([1, 2, 5, 6]), len(pool)) == (2, 4, 2)


@needs_merging
def test_what_is_merged_is_merged_again_when_it_must_be():
    pool = pool_of(100)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 16 * BLOCK)
    pool.release(lease)
    assert pool.assign_hashes(lease, CHAIN[2:], SIZES) == 14
    for fewer, left in ((8, 8), (4, 4), (2, 2), (1, 1)):
        pool.coarsen(fewer)
        assert (len(pool), pool.match(CHAIN)) == (left, 16)


@needs_merging
def test_what_is_not_adjacent_is_not_merged():
    """The second prompt is no prefix: no chain is like that, but the engine may say so."""
    pool = pool_of(100)
    first, other = allocate(pool, 65, [1, 2, 3, 4]), allocate(pool, 17, [2])
    pool.release(first)
    pool.coarsen(2)
    assert pool.match([9, 3, 4]) == 0
    pool.release(other)


@needs_merging
def test_blocks_reported_around_one_in_use_are_not_merged():
    pool = pool_of(100)
    held = allocate(pool, 17, [2])
    pool.store([1, 2, 3], SIZES)
    pool.coarsen(1)
    assert pool.match([9, 3]) == 0
    pool.release(held)


@needs_merging
@given(st.integers(0, 60), st.lists(paths, min_size=1, max_size=12))
def test_merging_promises_nothing_that_was_not_there(fewer, served):
    fine, coarse = pool_of(200), pool_of(200)
    for path in served:
        serve(fine, names_of(path))
        serve(coarse, names_of(path))
    coarse.coarsen(fewer)
    for path in product((0, 1), repeat=7):
        assert coarse.match(names_of(path)) <= fine.match(names_of(path))
    if len(set(served)) == 1 and fewer <= len(fine) // 2:
        assert coarse.match(names_of(served[0])) == len(fine)


class IndexBesidePools(RuleBasedStateMachine):
    """The index says of any chain what the pools say, merged or holed as they are."""

    leases = Bundle("leases")
    CHAINS = tuple(names_of(path) for path in product((0, 1), repeat=7))

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex()
        self.pools = [pool_of(14, 1), pool_of(30, 1)]
        self.slots = [self.index.open() for _ in self.pools]

    @rule(target=leases, which=st.integers(0, 1), path=paths)
    def allocate(self, which, path):
        pool = self.pools[which]
        return pool, allocate(pool, len(path), names_of(path), 1)

    @rule(entry=leases, revoked=st.booleans())
    def leave(self, entry, revoked):
        pool, lease = entry
        if lease is not None and pool in self.pools:
            (pool.revoke if revoked else pool.release)(lease)

    @rule(which=st.integers(0, 1), blocks=st.integers(1, 6))
    def coarsen(self, which, blocks):
        self.pools[which].coarsen(blocks)

    @rule(which=st.integers(0, 1), path=paths, first=st.integers(0, 7))
    def store(self, which, path, first):
        self.pools[which].store(names_of(path)[first:], [1] * 7)

    @rule(which=st.integers(0, 1), path=paths, first=st.integers(0, 7))
    def discard(self, which, path, first):
        self.pools[which].discard(names_of(path)[first:])

    @rule(which=st.integers(0, 1))
    def restart(self, which):
        pool, self.pools[which] = self.pools[which], pool_of(14, 1)
        self.mirror(which, pool)
        self.index.close(self.slots[which], pool)
        self.slots[which] = self.index.open()

    def mirror(self, which, pool):
        slot = self.slots[which]
        self.index.remove(slot, evicted(pool))
        self.index.add(slot, stored(pool))
        self.index.widen(slot, pool.take_merged())
        self.index.mark(slot, closed=pool.closed)

    @invariant()
    def they_agree(self):
        for which, pool in enumerate(self.pools):
            self.mirror(which, pool)
        for chain in self.CHAINS:
            depths = self.index.match(chain)
            assert [depths[slot] for slot in self.slots] == [p.match(chain) for p in self.pools]


@pytest.mark.usefixtures("pool_kind")
def test_index_beside_pools():
    use = settings(max_examples=80, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(IndexBesidePools, settings=use)
