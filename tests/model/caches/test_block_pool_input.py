"""Wrong input to the block pool: the extension and the reference answer it alike."""

from array import array

import pytest

from epp.model.caches.block_pool.blocks import LARGEST, MAX_TOKENS
from epp.model.caches.contract import Lease
from tests.model.caches import pool_rig as poolrig
from tests.model.caches.pool_rig import allocate, evicted, pool_of, pool_with, stored
from tests.native.built import needs

pytestmark = pytest.mark.usefixtures("pool_kind")

NO_INTS = [None, 5, object(), ["a"], [1.5], [None], (b"",), "text"]
OUT_OF_RANGE = [[-1], [1, 1 << 64], [1 << 200], [-(1 << 63)]]
WRONG = [(each, TypeError) for each in NO_INTS] + [(each, OverflowError) for each in OUT_OF_RANGE]
NO_NUMBER = [None, "7", 1.5, [1]]


def facts(pool):
    return pool.capacity, pool.free, pool.closed, len(pool), sorted(pool.hashes())


@pytest.fixture
def used():
    """Return a pool with a prompt that is over, and the lease of one under way."""
    pool = pool_of(10)
    pool.release(allocate(pool, 32, [1, 2]))
    lease = allocate(pool, 33, [1, 3])
    assert pool.grow(lease, 48)
    return pool, lease


@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_what_is_no_hash_or_size_is_refused(used, wrong, error):
    pool, lease = used
    before = facts(pool)
    for call in (
        lambda: pool.match(wrong),
        lambda: pool.allocate(wrong, [16] * 2, 0, 2),
        lambda: pool.allocate([8, 9], wrong, 0, 2),
        lambda: pool.correct_sizes(lease, wrong),
        lambda: pool.assign_hashes(lease, wrong, [16] * 2),
        lambda: pool.assign_hashes(lease, [8, 9], wrong),
        lambda: pool.store(wrong, [16] * 2),
        lambda: pool.store([8, 9], wrong),
        lambda: pool.discard(wrong),
    ):
        with pytest.raises(error):
            call()
        assert facts(pool) == before
    pool.release(lease)
    assert pool.free == pool.capacity


@pytest.mark.parametrize("wrong", NO_NUMBER)
def test_what_is_no_count_is_refused(used, wrong):
    pool, lease = used
    before = facts(pool)
    for call in (
        lambda: pool.allocate([8], [16], wrong, 1),
        lambda: pool.allocate([8], [16], 0, wrong),
        lambda: pool.grow(lease, wrong),
        lambda: pool.resize(wrong),
        lambda: pool.coarsen(wrong),
        lambda: setattr(pool, "block", wrong),
        lambda: pool_with(wrong, 16),
        lambda: pool_with(16, wrong),
    ):
        with pytest.raises(TypeError):
            call()
        assert facts(pool) == before


def test_blocks_without_sizes(used):
    pool, _ = used
    before = facts(pool)
    with pytest.raises(ValueError, match="sizes"):
        pool.allocate([8, 9], [16], 0, 2)
    assert facts(pool) == before


def test_leases_of_others(used):
    pool, _ = used
    mine = pool_of(10)
    before = facts(mine)
    others = [allocate(pool, 16, [7]), Lease(0, 0, 0), None, 7, object()]
    others += [allocate(kind(160, 16), 16, [7]) for kind in poolrig.KINDS]
    for other in others:
        for call in (
            lambda lease=other: mine.grow(lease, 16),
            lambda lease=other: mine.correct_sizes(lease, [16]),
            lambda lease=other: mine.assign_hashes(lease, [9], [16]),
            lambda lease=other: mine.release(lease),
            lambda lease=other: mine.revoke(lease),
        ):
            with pytest.raises(TypeError):
                call()
    assert facts(mine) == before


@pytest.mark.parametrize("kind", [list, tuple, lambda each: array("Q", each)])
def test_hashes_and_sizes_may_come_in_any_sequence(kind):
    pool, names, sizes = pool_of(10), [1, 2, 1 << 63], [16] * 3
    pool.release(pool.allocate(kind(names), kind(sizes), 0, 3))
    assert pool.match(kind(names)) == 3
    assert stored(pool) == names
    pool.store(kind([*names, 7]), kind([*sizes, 16]))
    pool.discard(kind([7]))
    assert (pool.match(memoryview(array("Q", names))), len(pool)) == (3, 3)


@pytest.mark.parametrize(
    ("capacity", "block", "taken"),
    [(-5, -1, (0, 1)), (0, 0, (0, 1)), (1 << 90, 1 << 40, (MAX_TOKENS, LARGEST)), (7, 3, (7, 3))],
)
def test_what_is_beyond_bounds_counts_as_the_bound(capacity, block, taken):
    pool = pool_with(capacity, block)
    assert (pool.capacity, pool.block, pool.free) == (*taken, taken[0])
    pool.resize(capacity)
    assert (pool.capacity, pool.free) == (taken[0], taken[0])


def test_sizes_beyond_bounds_count_as_the_bound():
    pool = pool_with(MAX_TOKENS, 16)
    lease = pool.allocate([1, 2], [1 << 40, 16], -3, 2)
    assert (lease.tokens, lease.reserved_tokens) == (LARGEST + 16, 0)
    pool.correct_sizes(lease, [0, 1 << 60])
    assert (lease.tokens, lease.reserved_tokens) == (LARGEST, 16)
    pool.correct_sizes(lease, [1 << 60, 1 << 60])
    assert (lease.tokens, lease.reserved_tokens) == (LARGEST, 16)
    pool.release(lease)
    pool.store([3], [1 << 63])
    assert pool.free == MAX_TOKENS
    assert pool.allocate([4], [1 << 63], 1 << 99, 1).tokens == 0


def test_a_request_that_computed_more_than_there_is_does_not_fit(used):
    pool, lease = used
    before = facts(pool)
    assert not pool.grow(lease, 1 << 200)
    assert pool.grow(lease, -(1 << 200))
    assert facts(pool) == before


class Meddling:
    """A number, or a sequence, that does something when it is read."""

    def __init__(self, then):
        self.then = then

    def __index__(self):
        self.then()
        return 64

    def __len__(self):
        return 2

    def __getitem__(self, at):
        if at == 0:
            self.then()
        return (16, 16)[at]


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, _, meddling: pool.allocate(meddling, [16] * 2, 0, 2),
        lambda pool, _, meddling: pool.allocate([8, 9], meddling, meddling, meddling),
        lambda pool, lease, meddling: pool.assign_hashes(lease, [21, 22], meddling),
        lambda pool, lease, meddling: pool.grow(lease, meddling),
        lambda pool, lease, meddling: pool.correct_sizes(lease, meddling),
        lambda pool, _, meddling: pool.store(meddling, meddling),
        lambda pool, _, meddling: pool.discard(meddling),
        lambda pool, _, meddling: pool.resize(meddling),
    ],
)
def test_what_is_read_may_change_the_pool_meanwhile(used, call):
    pool, lease = used

    def end():
        pool.release(lease)
        pool.release(allocate(pool, 160, list(range(50, 60))))  # nothing is where it was

    made = call(pool, lease, Meddling(end))
    if isinstance(made, type(lease)):
        pool.release(made)
    pool.release(lease)
    pool.resize(160)
    assert pool.free == pool.capacity == 160
    assert set(pool.hashes()) == set(stored(pool)) - set(evicted(pool))


@needs("epp.model.caches.block_pool.pool", "the compiled pool of blocks")
def test_more_blocks_than_there_are_numbers_for():
    pool = poolrig.KINDS[0](MAX_TOKENS, 1)
    lease = pool.allocate([1], [1], 0, 1)
    with pytest.raises(MemoryError):
        pool.grow(lease, 1 << 40)
    assert (pool.free, len(pool)) == (MAX_TOKENS - 1, 1)
    pool.release(lease)
    assert pool.free == MAX_TOKENS


def test_a_block_that_a_chain_has_twice_is_revoked_once():
    pool = pool_of(10)
    first = pool.allocate([1], [16], 0, 1)
    twice = pool.allocate([1, 1], [16, 16], 0, 2)
    pool.revoke(first)
    pool.revoke(twice)
    assert (pool.free, len(pool)) == (160, 0)
