"""vLLM's block pool: its rules as tables."""

from itertools import permutations

import pytest

from tests.model.caches.pool_rig import BLOCK, allocate, evicted, pool_of, pool_with, stored

pytestmark = pytest.mark.usefixtures("pool_kind")


@pytest.mark.parametrize("bs", [16, 32])
@pytest.mark.parametrize(
    ("tokens", "hits"),
    [(1, 0), (15, 0), (16, 0), (17, 1), (31, 1), (32, 1), (33, 2), (64, 3), (65, 4)],
)
def test_a_repeated_prompt_hits_all_but_its_last_token(bs, tokens, hits):
    names = list(range(1, 9))
    tokens = tokens * bs // 16 if tokens % 16 == 0 else (tokens // 16) * bs + tokens % 16
    pool = pool_of(100, bs)
    first = allocate(pool, tokens, names, bs)
    assert first.cached == 0
    pool.release(first)
    assert allocate(pool, tokens, names, bs).cached == hits == (tokens - 1) // bs


def test_the_recomputed_last_block_is_a_duplicate():
    pool = pool_of(100)
    pool.release(allocate(pool, 32, [1, 2]))
    assert stored(pool) == [1, 2]
    lease = allocate(pool, 32, [1, 2])
    assert lease.cached == 1
    assert stored(pool) == []
    pool.release(lease)
    assert pool.free == pool.capacity
    assert set(pool.hashes()) == {1, 2}


def test_evicting_one_copy_leaves_the_other_to_serve():
    pool = pool_of(3)
    pool.release(allocate(pool, 16, [7]))
    pool.release(allocate(pool, 16, [7]))  # a second copy; one block is blank still
    pool.release(allocate(pool, 32, [8, 9]))  # takes the blank one and the older copy
    assert evicted(pool) == []
    assert pool.match([7]) == 1
    pool.release(allocate(pool, 32, [10, 11]))  # the other copy goes, then 9
    assert evicted(pool) == [7, 9]


@pytest.mark.parametrize("older_goes_first", [True, False])
def test_either_copy_may_go_first(older_goes_first):
    pool = pool_of(2)
    older, newer = allocate(pool, 16, [7]), allocate(pool, 16, [7])
    for lease in (older, newer) if older_goes_first else (newer, older):
        pool.release(lease)
    pool.release(allocate(pool, 16, [8]))
    assert (pool.match([7]), evicted(pool)) == (1, [])
    pool.release(allocate(pool, 17, [9]))
    assert pool.match([7]) == 0
    assert 7 in evicted(pool)


def test_hashes_are_registered_at_admission_before_anything_is_computed():
    pool = pool_of(10)
    allocate(pool, 48, [1, 2, 3])
    assert pool.match([1, 2, 3]) == 3
    assert allocate(pool, 64, [1, 2, 3, 4]).cached == 3


def test_the_tail_of_a_chain_is_evicted_before_its_head():
    pool = pool_of(4)
    pool.release(allocate(pool, 64, [1, 2, 3, 4]))
    for held, name in ((3, 11), (2, 12), (1, 13), (0, 14)):
        lease = allocate(pool, 16, [name])
        assert pool.match([1, 2, 3, 4]) == held
        assert lease.cached == 0


def test_blocks_without_a_hash_are_reused_first():
    pool = pool_of(3)
    cached = allocate(pool, 16, [1])
    partial = allocate(pool, 17, [2])
    pool.release(cached)
    pool.release(partial)  # later than block 1, yet its partial block is taken before that
    pool.release(allocate(pool, 16, [3]))
    assert evicted(pool) == []
    allocate(pool, 16, [4])
    assert evicted(pool) == [1]


def test_eviction_happens_at_allocation_only():
    pool = pool_of(2)
    pool.release(allocate(pool, 32, [1, 2]))
    assert pool.free == pool.capacity
    assert pool.match([1, 2]) == 2
    assert evicted(pool) == []


def test_referenced_blocks_are_never_evicted():
    pool = pool_of(4)
    held = allocate(pool, 48, [1, 2, 3])
    for name in range(10, 30):
        pool.release(allocate(pool, 16, [name]))
    assert pool.match([1, 2, 3]) == 3
    pool.release(held)


def test_recency_is_the_last_release_not_the_last_use():
    pool = pool_of(3)
    long = allocate(pool, 16, [1])
    pool.release(allocate(pool, 16, [2]))
    pool.release(allocate(pool, 17, [2]))  # 2 is used again, while 1 is held
    pool.release(long)  # 1 was used first and released last
    allocate(pool, 32, [8, 9])
    assert evicted(pool) == [2]
    assert pool.match([1]) == 1


def test_a_hit_takes_a_block_out_of_the_queue():
    pool = pool_of(3)
    pool.release(allocate(pool, 16, [1]))
    pool.release(allocate(pool, 16, [2]))
    lease = allocate(pool, 17, [1])
    assert lease.cached == 1
    assert pool.free == 16  # 2 is free, 1 is in use, and so is the partial block
    assert allocate(pool, 32, [8, 9]) is None
    assert allocate(pool, 16, [8]).cached == 0
    assert evicted(pool) == [2]


def test_what_does_not_fit_holds_and_changes_nothing():
    pool = pool_of(4)
    pool.release(allocate(pool, 16, [1]))
    allocate(pool, 48, [2, 3, 4])
    before = (pool.free, pool.hashes(), pool.match([1]))
    stored(pool)
    assert allocate(pool, 48, [1, 5, 6]) is None
    assert allocate(pool, 32, [8, 9]) is None
    assert (pool.free, pool.hashes(), pool.match([1])) == before
    assert (stored(pool), evicted(pool)) == ([], [])


def test_free_blocks_that_are_hit_are_not_counted_as_room():
    """The hit itself needs its block: three are free, one of them is found, three are needed."""
    pool = pool_of(4)
    pool.release(allocate(pool, 16, [1]))
    held = allocate(pool, 16, [2])
    assert pool.free == 48
    assert allocate(pool, 64, [1, 5, 6, 7]) is None
    pool.release(held)
    assert allocate(pool, 64, [1, 5, 6, 7]).cached == 1


def test_a_prompt_larger_than_the_pool_is_let_through_with_nothing():
    pool = pool_of(2)
    lease = allocate(pool, 48, [1, 2, 3])
    assert (lease.cached, len(lease.blocks), pool.free) == (0, 0, 32)
    pool.release(lease)
    assert pool.free == 32


def test_revoking_leaves_no_trace_of_what_was_never_computed():
    pool = pool_of(8)
    pool.release(allocate(pool, 32, [1, 2]))
    lease = allocate(pool, 65, [1, 2, 3, 4])
    stored(pool)
    pool.revoke(lease)
    assert set(pool.hashes()) == {1, 2}
    assert set(evicted(pool)) == {3, 4}
    assert pool.free == pool.capacity


def test_revoking_spares_what_another_request_found():
    pool = pool_of(8)
    gone = allocate(pool, 48, [1, 2, 3])
    other = allocate(pool, 33, [1, 2])
    pool.revoke(gone)
    assert set(pool.hashes()) == {1, 2}
    pool.release(other)
    assert pool.free == pool.capacity
    assert pool.match([1, 2, 3]) == 2


def test_releasing_twice_changes_nothing():
    pool = pool_of(4)
    lease = allocate(pool, 33, [1, 2])
    pool.release(lease)
    pool.release(lease)
    pool.revoke(lease)
    assert (pool.free, pool.match([1, 2])) == (64, 2)


def test_a_larger_pool_has_more_room():
    pool = pool_of(1)
    held = allocate(pool, 16, [1])
    assert allocate(pool, 16, [2]) is None
    pool.resize(32)
    assert pool.free == 16
    assert allocate(pool, 16, [2]) is not None
    pool.release(held)
    assert (pool.free, pool.capacity) == (16, 32)


def test_a_smaller_pool_evicts_from_the_head_of_the_queue():
    pool = pool_of(4)
    pool.release(allocate(pool, 16, [1]))
    pool.release(allocate(pool, 32, [2, 3]))
    pool.resize(32)
    assert evicted(pool) == [1]
    assert (pool.free, pool.capacity) == (32, 32)
    pool.resize(16)
    assert evicted(pool) == [3]
    assert pool.match([2]) == 1


def test_shrinking_under_load_is_paid_when_blocks_are_freed():
    pool = pool_of(6)
    first, second = allocate(pool, 32, [1, 2]), allocate(pool, 48, [3, 4, 5])
    pool.resize(48)
    assert pool.free == -32
    assert pool.match([1, 2]) == 2
    assert allocate(pool, 16, [9]) is None
    pool.release(first)
    assert pool.free == 0
    assert set(pool.hashes()) == {3, 4, 5}
    pool.release(second)
    assert pool.free == 48
    assert evicted(pool) == [2, 1]


def test_shrinking_under_load_and_growing_back_is_as_before():
    pool = pool_of(4)
    lease = allocate(pool, 48, [1, 2, 3])
    pool.resize(16)
    pool.resize(64)
    assert pool.free == 16
    pool.release(lease)
    assert (pool.free, pool.match([1, 2, 3])) == (64, 3)


def test_blocks_of_any_size_are_accounted_for():
    pool = pool_with(100, 16)
    lease = pool.allocate([1, 2, 3], [10, 20, 30], 5, 3)
    assert pool.free == 35
    pool.release(lease)
    again = pool.allocate([1, 2, 4], [10, 20, 40], 5, 3)
    assert (again.cached, pool.free) == (2, 25)
    assert evicted(pool) == [3]
    pool.release(again)
    assert pool.free == 100


def test_what_is_needed_later_must_fit_and_is_not_allocated():
    pool = pool_of(4)
    lease = pool.allocate([1], [16], 0, 1, 48)
    assert (lease.tokens, pool.free) == (16, 48)
    assert pool.allocate([2], [16], 0, 1, 48) is None
    assert pool.allocate([2], [16], 0, 1, 49).tokens == 0
    assert pool.free == 48


def test_what_another_request_found_outlives_the_one_that_was_revoked():
    """The other found it nowhere, then: it computed it."""
    pool = pool_of(8)
    gone = allocate(pool, 48, [1, 2, 3])
    other = allocate(pool, 65, [1, 2, 3, 4])
    pool.release(other)
    pool.revoke(gone)
    assert pool.match([1, 2, 3, 4]) == 4
    assert pool.closed


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_what_no_request_computed_that_held_it_is_gone_with_the_last(order):
    pool = pool_of(12)
    pool.release(allocate(pool, 17, [1]))
    leases = [allocate(pool, 64, [1, 2, 3, last]) for last in (7, 8, 9)]
    for position in order[:2]:
        pool.revoke(leases[position])
    assert pool.match([1, 2, 3]) == 3  # the last one may compute it yet
    pool.revoke(leases[order[2]])
    assert pool.match([1, 2, 3]) == 1
    assert (pool.free, pool.closed) == (pool.capacity, True)


def test_what_the_engine_says_that_it_holds_outlives_a_hit_that_was_revoked():
    pool = pool_of(8)
    pool.store([1, 2], [BLOCK] * 2)
    pool.revoke(allocate(pool, 48, [1, 2, 3]))
    assert pool.match([1, 2, 3]) == 2


def test_changes_are_what_is_so_in_the_end():
    pool = pool_of(2)
    pool.release(allocate(pool, 16, [1]))
    pool.release(allocate(pool, 32, [2, 3]))
    pool.release(allocate(pool, 16, [1]))
    assert set(stored(pool)) == {1, 2}
    assert set(evicted(pool)) == {3}


@pytest.mark.parametrize(("capacity", "block"), [(0, 16), (1, 16), (15, 16), (16, 4096), (1, 1)])
def test_a_pool_too_small_for_a_block_holds_nothing_and_says_so(capacity, block):
    pool = pool_with(capacity, block)
    lease = pool.allocate([1, 2], [block, block], block, 2)
    assert (lease.cached, len(lease.blocks)) == (0, 0)
    assert pool.grow(lease, 10 * block)
    assert pool.assign_hashes(lease, [3], [block]) == 0
    pool.store([5, 6], [block, block])
    pool.release(lease)
    assert pool.free == capacity
    assert len(pool) == capacity // block


def test_of_several_copies_the_oldest_is_hit():
    pool = pool_of(6)
    first, second, third = (allocate(pool, 16, [7]) for _ in range(3))
    pool.release(first)
    filler = allocate(pool, 64, [21, 22, 23, 24])  # takes the blank blocks and the first copy
    assert pool.match([7]) == 1
    pool.release(filler)
    hit = allocate(pool, 17, [7])
    before = pool.free
    pool.release(second)
    assert pool.free == before  # the hit holds it
    pool.release(third)
    assert pool.free == before + 16
    pool.release(hit)
    assert pool.free == pool.capacity
