"""Precision for memory: the extension merges adjacent blocks; what can be found of them."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.caches.pool_rig import BLOCK, KINDS, allocate, names_of, paths
from tests.native.built import needs

pytestmark = needs("epp.model.caches.block_pool.pool", "merged blocks")

WIDEST = 64

SIZES = [BLOCK] * 200
CHAIN = list(range(1, 17))


def pool_of(blocks):
    return KINDS[0](blocks * BLOCK, BLOCK)


def serve(pool, names):
    pool.release(allocate(pool, len(names) * BLOCK + 1, names))


@pytest.mark.parametrize(("fewer", "left"), [(0, 16), (1, 8), (8, 8), (9, 4), (12, 4), (15, 1)])
def test_a_chain_that_was_merged_is_found_whole(fewer, left):
    pool = pool_of(100)
    serve(pool, CHAIN)
    pool.coarsen(fewer)
    assert (len(pool), pool.match(CHAIN), pool.free) == (left, 16, 1600)
    assert pool.closed is (fewer == 0)


@pytest.mark.parametrize(("parts_at", "found"), [(4, 4), (5, 4), (7, 4), (8, 8), (3, 0)])
def test_a_chain_that_parts_in_between_finds_what_stands_before(parts_at, found):
    pool = pool_of(100)
    serve(pool, CHAIN)
    pool.coarsen(12)
    assert pool.match([*CHAIN[:parts_at], 99, 98]) == found


def test_a_hit_counts_blocks_and_holds_what_was_merged():
    pool = pool_of(100)
    serve(pool, CHAIN)
    pool.coarsen(12)
    lease = allocate(pool, 18 * BLOCK, [*CHAIN, 17, 18])
    assert (lease.cached, len(lease.blocks)) == (16, 6)
    assert pool.free == (100 - 18) * BLOCK
    pool.revoke(lease)
    assert (pool.free, pool.match([*CHAIN, 17, 18]), len(pool)) == (1600, 16, 4)


def test_the_oldest_lose_precision_first():
    pool = pool_of(100)
    old, new = CHAIN, [each + 100 for each in CHAIN]
    serve(pool, old)
    serve(pool, new)
    pool.coarsen(10)
    assert (pool.match(old[:7]), pool.match(new[:7])) == (4, 7)
    assert (pool.match(old), pool.match(new)) == (16, 16)


def test_where_chains_part_they_are_not_merged():
    pool = pool_of(100)
    shared, one, other = [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9]
    serve(pool, one)
    serve(pool, other)
    pool.coarsen(4)
    assert (pool.match(shared), pool.match(one), pool.match(other)) == (3, 6, 6)


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


def test_what_is_in_use_is_left_alone():
    pool = pool_of(100)
    allocate(pool, 161, CHAIN[:10])
    pool.coarsen(5)
    assert (len(pool), pool.closed) == (10, True)


def test_merged_generated_blocks_can_still_get_hashes():
    pool = pool_of(100)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 16 * BLOCK)
    pool.release(lease)
    pool.coarsen(10)
    assert len(pool) == 1 + 4  # of 2 named and 14 unhashed ones, which do not mix
    assert pool.assign_hashes(lease, CHAIN[2:], SIZES) == 14
    assert (pool.match(CHAIN), pool.free) == (16, 1600)


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


def test_where_chains_parted_is_known_when_copies_have_come_and_gone():
    pool = pool_of(100)
    serve(pool, [1, 2, 3, 4])
    serve(pool, [1, 2, 5, 6])
    pool.revoke(pool.allocate([1, 2], SIZES, 0, 0))
    pool.coarsen(4)  # three by merging, and the oldest
    assert (pool.match([1, 2]), pool.match([1, 2, 5, 6]), len(pool)) == (2, 4, 2)


def test_what_is_merged_is_merged_again_when_it_must_be():
    pool = pool_of(100)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 16 * BLOCK)
    pool.release(lease)
    assert pool.assign_hashes(lease, CHAIN[2:], SIZES) == 14
    for fewer, left in ((8, 8), (4, 4), (2, 2), (1, 1)):
        pool.coarsen(fewer)
        assert (len(pool), pool.match(CHAIN)) == (left, 16)


def test_what_is_not_adjacent_is_not_merged():
    """The second prompt is no prefix: no chain is like that, but the engine may say so."""
    pool = pool_of(100)
    first, other = allocate(pool, 65, [1, 2, 3, 4]), allocate(pool, 17, [2])
    pool.release(first)
    pool.coarsen(2)
    assert pool.match([9, 3, 4]) == 0
    pool.release(other)


def test_blocks_reported_around_one_in_use_are_not_merged():
    pool = pool_of(100)
    held = allocate(pool, 17, [2])
    pool.store([1, 2, 3], SIZES)
    pool.coarsen(1)
    assert pool.match([9, 3]) == 0
    pool.release(held)


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
