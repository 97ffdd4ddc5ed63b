"""Output in the block pool: space by the engine's blocks, hashes later, preemption."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.caches.pool_rig import BLOCK, allocate, evicted, pool_of, pool_with

pytestmark = pytest.mark.usefixtures("pool_kind")

SIZES = [BLOCK] * 99


@pytest.mark.parametrize(
    ("prompt", "generated", "cached"),
    [(96, 1, 6), (96, 16, 6), (96, 17, 7), (96, 32, 7), (96, 33, 8), (90, 6, 5), (90, 7, 6)],
)
def test_what_is_cached_is_all_but_the_token_sampled_last(prompt, generated, cached):
    pool = pool_of(100)
    lease = allocate(pool, prompt, list(range(1, 7)))
    assert pool.grow(lease, prompt + generated - 1)
    assert len(pool) == cached == (prompt + generated - 1) // BLOCK
    used = -(-(prompt + generated - 1) // BLOCK)
    assert pool.free == (100 - used) * BLOCK
    pool.release(lease)
    assert (pool.free, len(pool)) == (pool.capacity, cached)


@given(
    block=st.integers(1, 40),
    prompt=st.integers(1, 100),
    steps=st.lists(st.integers(0, 50), max_size=8),
)
def test_it_matters_not_in_how_many_steps_a_request_grows(block, prompt, steps):
    pools = [pool_with(1000 * block, block) for _ in range(2)]
    names, sizes = list(range(1, prompt // block + 1)), [block] * prompt
    blank = block if prompt % block else 0
    at_once, step_by_step = (pool.allocate(names, sizes, blank, len(names)) for pool in pools)
    computed = prompt
    for step in steps:
        computed += step
        assert pools[1].grow(step_by_step, computed)
    assert pools[0].grow(at_once, prompt + sum(steps))
    assert pools[0].free == pools[1].free == (1000 - -(-computed // block)) * block
    assert len(pools[0]) == len(pools[1]) == computed // block


def test_growing_takes_the_oldest_free_content():
    pool = pool_of(3)
    pool.release(allocate(pool, 32, [1, 2]))
    lease = allocate(pool, 16, [3])
    assert pool.grow(lease, 17)
    assert evicted(pool) == [2]
    assert pool.grow(lease, 32)
    assert evicted(pool) == []


def test_what_does_not_fit_does_not_grow():
    pool = pool_of(3)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 48)
    assert not pool.grow(lease, 49)
    assert (pool.free, len(pool)) == (0, 3)


@pytest.mark.parametrize("computed", [-5, 0, 15, 16])
def test_nothing_shrinks(computed):
    pool = pool_of(4)
    lease = allocate(pool, 16, [1])
    assert pool.grow(lease, computed)
    assert (pool.free, len(pool)) == (48, 1)


def test_generated_blocks_go_before_the_prompt_they_followed():
    pool = pool_of(4)
    lease = allocate(pool, 32, [1, 2])
    assert pool.grow(lease, 64)
    pool.release(lease)
    allocate(pool, 32, [8, 9])
    assert pool.match([1, 2]) == 2


@pytest.mark.parametrize("released", [False, True])
def test_a_block_keeps_its_place_when_it_gets_a_hash(released):
    pool = pool_of(6)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    if released:
        pool.release(lease)
    assert pool.assign_hashes(lease, [3, 4, 5], SIZES) == 2
    pool.release(lease)
    pool.release(allocate(pool, 16, [9]))
    allocate(pool, 48, [21, 22, 23])
    assert evicted(pool) == [4, 3]  # in its turn: before 9, which was released later
    assert pool.match([1, 2, 3]) == 2


def test_hashes_are_assigned_from_where_the_last_call_ended():
    pool = pool_of(6)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    assert [pool.assign_hashes(lease, [name], SIZES) for name in (3, 4, 5)] == [1, 1, 0]
    assert pool.match([1, 2, 3, 4, 5]) == 4


def test_evicted_blocks_get_no_hashes():
    pool = pool_of(5)
    lease = allocate(pool, 16, [1])
    assert pool.grow(lease, 64)
    pool.release(lease)
    allocate(pool, 32, [8, 9])  # takes one blank block and the last that was generated
    assert pool.assign_hashes(lease, [2, 3, 4], SIZES) == 2
    assert pool.match([1, 2, 3, 4]) == 3


def test_a_hash_that_is_held_already_makes_a_copy():
    pool = pool_of(6)
    lease = allocate(pool, 16, [1])
    assert pool.grow(lease, 32)
    other = allocate(pool, 33, [1, 2])
    assert pool.assign_hashes(lease, [2], SIZES) == 1
    assert (pool.match([1, 2]), len(pool)) == (2, 3)
    pool.release(other)
    pool.release(lease)
    allocate(pool, 80, [5, 6, 7, 8, 9])
    assert pool.match([1, 2]) == 1
    assert pool.free == BLOCK


def test_a_revoked_request_generated_nothing():
    pool = pool_of(6)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    pool.revoke(lease)
    assert (len(pool), pool.free) == (0, 96)
    assert pool.assign_hashes(lease, [3], SIZES) == 0


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((40, 50), 2),  # 10 tokens stay unhashed
        ((40, 60), 2),  # all of them
        ((40, 75), 2),  # the last lacks 15: the engine's last block is not full
        ((40, 76), 1),
        ((101, 9), 1),
        ((116,), 0),
        ((0, 50, 0, 50, 7), 4),
    ],
)
def test_hashed_blocks_of_other_sizes_cover_unhashed_ones_to_a_block(sizes, named):
    """The prompt was 12 tokens of text in one block; the engine's blocks are of 16."""
    pool = pool_with(1000, 16)
    lease = pool.allocate([1], [12], 4, 1)
    assert pool.grow(lease, 112)
    free = pool.free
    assert pool.assign_hashes(lease, range(2, 2 + len(sizes)), sizes) == named
    assert pool.free == free
    pool.release(lease)
    assert pool.free == 1000
    assert pool.match(range(1, 9)) == 1 + named
    pool.release(pool.allocate([], [], 888, 0))
    assert evicted(pool) == []


@pytest.mark.parametrize("other_prompt_is_back", [False, True])
def test_hashed_parts_of_a_block_stand_where_it_stood(other_prompt_is_back):
    pool = pool_with(1000, 16)
    lease = pool.allocate([1], [16], 0, 1)
    assert pool.grow(lease, 48)
    pool.release(lease)
    if other_prompt_is_back:
        pool.allocate([1], [16], 0, 1)
    assert pool.assign_hashes(lease, [2, 3, 4, 5], [8] * 4) == 4
    for name in (5, 4, 3, 2):
        pool.resize(16 + 8 * (name - 2))
        assert evicted(pool) == [name]


def test_a_preempted_request_finds_what_it_had_computed():
    pool = pool_of(6)
    lease = allocate(pool, 33, [1, 2])
    assert pool.grow(lease, 64)
    pool.assign_hashes(lease, [3, 4], SIZES)
    pool.release(lease)
    again = allocate(pool, 65, [1, 2, 3, 4])
    assert again.cached == 4


def test_block_sizes_are_corrected_once_the_length_is_known():
    pool = pool_with(1000, 16)
    lease = pool.allocate([1, 2, 3], [10, 20, 30], 4, 3)
    pool.correct_sizes(lease, [12, 22, 30])
    assert (lease.tokens, lease.reserved_tokens, pool.free) == (64, 0, 936)
    pool.correct_sizes(lease, [12, 22, 31])
    assert (lease.tokens, lease.reserved_tokens) == (64, 0)
    pool.correct_sizes(lease, [1, 1, 1])
    assert (lease.tokens, lease.reserved_tokens, pool.free) == (3, 61, 936)
    pool.release(lease)
    assert (pool.free, pool.match([1, 2, 3])) == (1000, 3)


def test_a_copy_that_took_the_place_of_the_first_is_corrected():
    pool = pool_with(32, 16)
    first, copy = pool.allocate([7], [10], 6, 0), pool.allocate([7], [10], 6, 0)
    pool.release(first)
    pool.release(pool.allocate([9], [12], 4, 0))  # takes the first copy
    pool.correct_sizes(copy, [13])
    assert (pool.match([7]), copy.tokens, copy.reserved_tokens) == (1, 13, 3)
    pool.release(copy)
    assert pool.free == 32
