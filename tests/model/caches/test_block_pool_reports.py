"""Reports of the engine to the block pool: hashes of output, content, holes."""

import pytest

from tests.model.caches.pool_rig import (
    BLOCK,
    allocate,
    evicted,
    pool_of,
    stored,
)

pytestmark = pytest.mark.usefixtures("pool_kind")


SIZES = [BLOCK] * 9


def test_blocks_that_are_stored_are_free_and_can_be_hit():
    pool = pool_of(4)
    pool.store([1, 2], SIZES)
    assert (pool.free, pool.match([1, 2]), stored(pool)) == (64, 2, [1, 2])
    assert allocate(pool, 33, [1, 2]).cached == 2


def test_blocks_that_are_stored_are_evicted_last_and_from_the_end():
    pool = pool_of(4)
    pool.release(allocate(pool, 16, [9]))
    pool.store([1, 2, 3], SIZES)
    allocate(pool, 48, [5, 6, 7])
    assert evicted(pool) == [9, 3, 2]


def test_what_is_held_already_is_left_as_it_is():
    pool = pool_of(4)
    pool.release(allocate(pool, 32, [1, 2]))
    held = allocate(pool, 16, [3])
    pool.store([1, 2], SIZES)
    pool.store([3], SIZES)
    assert (pool.free, len(pool)) == (48, 3)
    allocate(pool, 32, [7, 8])
    assert evicted(pool) == [2]
    pool.release(held)


def test_reported_blocks_without_space_are_not_stored():
    pool = pool_of(3)
    allocate(pool, 32, [1, 2])
    pool.store([5, 6], SIZES)
    assert (pool.free, pool.match([5, 6])) == (16, 1)


def test_blocks_reported_after_a_prompt_give_hashes_to_its_output():
    pool = pool_of(8)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 80)
    free = pool.free
    pool.store([2, 3], SIZES)
    pool.store([3, 4, 5], SIZES)
    assert (pool.free, pool.match([1, 2, 3, 4, 5])) == (free, 5)
    assert pool.closed
    pool.release(lease)
    assert pool.free == pool.capacity


def test_a_late_report_gives_hashes_to_released_output():
    pool = pool_of(8)
    pool.store([], [])  # from here on it is known that the engine tells
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    pool.release(lease)
    pool.store([2, 3, 4, 5], SIZES)
    assert pool.match([1, 2, 3, 4, 5]) == 5
    assert len(pool) == 5
    allocate(pool, 64, [11, 12, 13, 14])
    assert evicted(pool) == [4]  # where the generated block stood; 5 was stored later


def test_two_answers_to_one_prompt_are_distinguished_by_what_is_left():
    pool = pool_of(10)
    first, second = allocate(pool, 33, [1, 2]), allocate(pool, 33, [1, 2])
    assert pool.grow(first, 64)
    assert pool.grow(second, 64)
    pool.store([2, 31, 41], SIZES)
    pool.store([2, 32, 42], SIZES)
    assert (pool.match([1, 2, 31, 41]), pool.match([1, 2, 32, 42])) == (4, 4)
    assert len(pool) == 6


def test_without_reports_released_output_is_not_kept_for_hashes():
    pool = pool_of(8)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    pool.release(lease)
    pool.store([2, 3], SIZES)
    assert (pool.match([1, 2, 3]), len(pool)) == (3, 5)  # two generated ones, and one that came


def test_what_was_evicted_meanwhile_is_content_like_any_other():
    pool = pool_of(4)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 48)
    pool.release(lease)
    pool.release(allocate(pool, 32, [8, 9]))  # takes what was generated
    pool.release(allocate(pool, 33, [1, 2]))  # takes 9
    pool.store([2, 3], SIZES)
    assert pool.match([1, 2, 3]) == 3
    assert (len(pool), pool.free) == (4, 64)


def test_a_block_that_follows_a_revoked_one_lacks_it():
    pool = pool_of(8)
    first = allocate(pool, 17, [1])
    pool.store([1, 2], SIZES)
    second = allocate(pool, 49, [1, 2, 3])
    pool.revoke(second)
    assert (pool.match([1, 2, 3]), pool.closed) == (2, False)
    pool.revoke(first)
    assert (list(pool.hashes()), pool.closed) == ([2], False)


def test_what_the_engine_evicted_is_space_without_content():
    pool = pool_of(4)
    pool.release(allocate(pool, 48, [1, 2, 3]))
    stored(pool)
    pool.discard([3, 77])
    assert (evicted(pool), pool.free, len(pool)) == ([3], 64, 2)
    allocate(pool, 32, [5, 6])
    assert evicted(pool) == []


def test_what_is_in_use_is_about_to_be_computed():
    pool = pool_of(4)
    lease = allocate(pool, 32, [1, 2])
    pool.discard([1, 2])
    assert pool.match([1, 2]) == 2
    pool.release(lease)


def test_all_free_copies_go_and_one_in_use_serves():
    pool = pool_of(4)
    first, second = allocate(pool, 16, [7]), allocate(pool, 16, [7])
    third = allocate(pool, 16, [7])
    pool.release(first)
    pool.release(second)
    pool.discard([7])
    assert (pool.match([7]), len(pool)) == (1, 1)
    pool.release(third)
    pool.discard([7])
    assert (pool.match([7]), pool.free) == (0, 64)


def test_the_pool_is_not_closed_until_a_hole_is_evicted():
    pool = pool_of(4)
    pool.release(allocate(pool, 48, [1, 2, 3]))
    assert pool.closed
    pool.discard([2])
    assert not pool.closed
    assert pool.match([1, 2, 3]) == 1
    pool.release(allocate(pool, 64, [5, 6, 7, 8]))
    assert pool.closed


def test_what_the_rules_would_evict_next_leaves_no_hole():
    pool = pool_of(4)
    pool.release(allocate(pool, 48, [1, 2, 3]))
    pool.discard([3])
    pool.discard([2])
    assert pool.closed


def test_what_gets_a_hash_later_may_follow_a_hole():
    pool = pool_of(8)
    pool.release(allocate(pool, 48, [7, 8, 9]))
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    pool.release(lease)
    held = allocate(pool, 33, [1, 2])
    pool.discard([8])  # 9 and what was generated are free, and may lack what stands before them
    assert pool.assign_hashes(lease, [3, 4], SIZES) == 2
    for gone in (9, 7, 4, 3):
        assert not pool.closed
        pool.resize(pool.capacity - pool.free + len(pool.hashes()) * BLOCK - 3 * BLOCK)
        assert evicted(pool)[-1:] == [gone]
    assert pool.closed
    pool.release(held)


@pytest.mark.parametrize("blocks", [[1, 2], [2]])
def test_what_the_engine_reported_may_lack_what_stands_before_it(blocks):
    pool = pool_of(4)
    pool.store(blocks, SIZES)
    assert not pool.closed
    pool.release(allocate(pool, 64, [5, 6, 7, 8]))
    assert pool.closed
