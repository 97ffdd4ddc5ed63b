"""The block pool: vLLM's rules as tables, and beside an oracle under random use."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from epp.model.blockpool import BlockPool
from tests.model.oracle import Oracle

BLOCK = 16


def admit(pool, tokens, names, bs=BLOCK):
    """Admit a prompt of `tokens` tokens whose full blocks are called `names`."""
    full = tokens // bs
    partial = bs if tokens % bs else 0
    return pool.admit(names[:full], [bs] * full, partial, max(0, tokens - 1) // bs)


def pool_of(blocks, bs=BLOCK):
    return BlockPool(blocks * bs)


@pytest.mark.parametrize("bs", [16, 32])
@pytest.mark.parametrize(
    ("tokens", "hits"),
    [(1, 0), (15, 0), (16, 0), (17, 1), (31, 1), (32, 1), (33, 2), (64, 3), (65, 4)],
)
def test_a_repeated_prompt_hits_all_but_its_last_token(bs, tokens, hits):
    names = list(range(1, 9))
    tokens = tokens * bs // 16 if tokens % 16 == 0 else (tokens // 16) * bs + tokens % 16
    pool = pool_of(100, bs)
    first = admit(pool, tokens, names, bs)
    assert first.cached == 0
    pool.release(first)
    assert admit(pool, tokens, names, bs).cached == hits == (tokens - 1) // bs


def test_the_recomputed_last_block_is_a_duplicate():
    pool = pool_of(100)
    pool.release(admit(pool, 32, [1, 2]))
    assert pool.take_stored() == [1, 2]
    lease = admit(pool, 32, [1, 2])
    assert lease.cached == 1
    assert pool.take_stored() == []
    pool.release(lease)
    assert pool.free == pool.capacity
    assert set(pool.hashes()) == {1, 2}


def test_evicting_one_copy_leaves_the_other_to_serve():
    pool = pool_of(3)
    pool.release(admit(pool, 16, [7]))
    pool.release(admit(pool, 16, [7]))  # a second copy; one block is blank still
    pool.release(admit(pool, 32, [8, 9]))  # takes the blank one and the older copy
    assert pool.take_evicted() == []
    assert pool.match([7]) == 1
    pool.release(admit(pool, 32, [10, 11]))  # the other copy goes, then 9
    assert pool.take_evicted() == [7, 9]


@pytest.mark.parametrize("older_goes_first", [True, False])
def test_either_copy_may_go_first(older_goes_first):
    pool = pool_of(2)
    older, newer = admit(pool, 16, [7]), admit(pool, 16, [7])
    for lease in (older, newer) if older_goes_first else (newer, older):
        pool.release(lease)
    pool.release(admit(pool, 16, [8]))
    assert (pool.match([7]), pool.take_evicted()) == (1, [])
    pool.release(admit(pool, 17, [9]))
    assert pool.match([7]) == 0
    assert 7 in pool.take_evicted()


def test_hashes_are_registered_at_admission_before_anything_is_computed():
    pool = pool_of(10)
    admit(pool, 48, [1, 2, 3])
    assert pool.match([1, 2, 3]) == 3
    assert admit(pool, 64, [1, 2, 3, 4]).cached == 3


def test_the_tail_of_a_chain_is_evicted_before_its_head():
    pool = pool_of(4)
    pool.release(admit(pool, 64, [1, 2, 3, 4]))
    for held, name in ((3, 11), (2, 12), (1, 13), (0, 14)):
        lease = admit(pool, 16, [name])
        assert pool.match([1, 2, 3, 4]) == held
        assert lease.cached == 0


def test_blocks_without_a_hash_are_reused_first():
    pool = pool_of(3)
    cached = admit(pool, 16, [1])
    partial = admit(pool, 17, [2])
    pool.release(cached)
    pool.release(partial)  # later than block 1, yet its partial block is taken before that
    pool.release(admit(pool, 16, [3]))
    assert pool.take_evicted() == []
    admit(pool, 16, [4])
    assert pool.take_evicted() == [1]


def test_eviction_happens_at_allocation_only():
    pool = pool_of(2)
    pool.release(admit(pool, 32, [1, 2]))
    assert pool.free == pool.capacity
    assert pool.match([1, 2]) == 2
    assert pool.take_evicted() == []


def test_referenced_blocks_are_never_evicted():
    pool = pool_of(4)
    held = admit(pool, 48, [1, 2, 3])
    for name in range(10, 30):
        pool.release(admit(pool, 16, [name]))
    assert pool.match([1, 2, 3]) == 3
    pool.release(held)


def test_recency_is_the_last_release_not_the_last_use():
    pool = pool_of(3)
    long = admit(pool, 16, [1])
    pool.release(admit(pool, 16, [2]))
    pool.release(admit(pool, 17, [2]))  # 2 is used again, while 1 is held
    pool.release(long)  # 1 was used first and released last
    admit(pool, 32, [8, 9])
    assert pool.take_evicted() == [2]
    assert pool.match([1]) == 1


def test_a_hit_takes_a_block_out_of_the_queue():
    pool = pool_of(3)
    pool.release(admit(pool, 16, [1]))
    pool.release(admit(pool, 16, [2]))
    lease = admit(pool, 17, [1])
    assert lease.cached == 1
    assert pool.free == 16  # 2 is free, 1 is in use, and so is the partial block
    assert admit(pool, 32, [8, 9]) is None
    assert admit(pool, 16, [8]).cached == 0
    assert pool.take_evicted() == [2]


def test_what_does_not_fit_holds_and_changes_nothing():
    pool = pool_of(4)
    pool.release(admit(pool, 16, [1]))
    admit(pool, 48, [2, 3, 4])
    before = (pool.free, pool.hashes(), pool.match([1]))
    pool.take_stored()
    assert admit(pool, 48, [1, 5, 6]) is None
    assert admit(pool, 32, [8, 9]) is None
    assert (pool.free, pool.hashes(), pool.match([1])) == before
    assert (pool.take_stored(), pool.take_evicted()) == ([], [])


def test_free_blocks_that_are_hit_are_not_counted_as_room():
    """The hit itself needs its block: three are free, one of them is found, three are needed."""
    pool = pool_of(4)
    pool.release(admit(pool, 16, [1]))
    held = admit(pool, 16, [2])
    assert pool.free == 48
    assert admit(pool, 64, [1, 5, 6, 7]) is None
    pool.release(held)
    assert admit(pool, 64, [1, 5, 6, 7]).cached == 1


def test_a_prompt_larger_than_the_pool_is_let_through_with_nothing():
    pool = pool_of(2)
    lease = admit(pool, 48, [1, 2, 3])
    assert (lease.cached, lease.keys, pool.free) == (0, (), 32)
    pool.release(lease)
    assert pool.free == 32


@pytest.mark.parametrize(("generated", "blocks"), [(0, 6), (16, 7), (160, 16), (10_000, 100)])
def test_generated_tokens_take_room_until_they_age_out(generated, blocks):
    pool = pool_of(100)
    lease = admit(pool, 96, list(range(1, 7)))
    pool.grow(lease, generated)
    assert pool.free == (100 - blocks) * BLOCK
    pool.release(lease)
    assert pool.free == pool.capacity
    assert pool.match(list(range(1, 7))) == 6
    admit(pool, (100 - blocks) * BLOCK, list(range(1000, 1100)))
    assert pool.take_evicted() == []


def test_generated_tokens_go_before_the_prompt_they_followed():
    pool = pool_of(4)
    lease = admit(pool, 32, [1, 2])
    pool.grow(lease, 32)
    pool.release(lease)
    admit(pool, 32, [8, 9])
    assert pool.match([1, 2]) == 2


def test_growing_by_nothing_or_less_changes_nothing():
    pool = pool_of(4)
    lease = admit(pool, 16, [1])
    pool.grow(lease, 0)
    pool.grow(lease, -5)
    assert (pool.free, len(lease.keys)) == (48, 1)


def test_growing_evicts():
    pool = pool_of(3)
    pool.release(admit(pool, 32, [1, 2]))
    lease = admit(pool, 16, [3])
    pool.grow(lease, 16)
    assert pool.take_evicted() == [2]


def test_revoking_leaves_no_trace_of_what_was_never_computed():
    pool = pool_of(8)
    pool.release(admit(pool, 32, [1, 2]))
    lease = admit(pool, 65, [1, 2, 3, 4])
    pool.take_stored()
    pool.revoke(lease)
    assert set(pool.hashes()) == {1, 2}
    assert set(pool.take_evicted()) == {3, 4}
    assert pool.free == pool.capacity


def test_revoking_spares_what_another_request_found():
    pool = pool_of(8)
    gone = admit(pool, 48, [1, 2, 3])
    other = admit(pool, 33, [1, 2])
    pool.revoke(gone)
    assert set(pool.hashes()) == {1, 2}
    pool.release(other)
    assert pool.free == pool.capacity
    assert pool.match([1, 2, 3]) == 2


def test_releasing_twice_changes_nothing():
    pool = pool_of(4)
    lease = admit(pool, 33, [1, 2])
    pool.release(lease)
    pool.release(lease)
    pool.revoke(lease)
    assert (pool.free, pool.match([1, 2])) == (64, 2)


def test_a_larger_pool_has_more_room():
    pool = pool_of(1)
    held = admit(pool, 16, [1])
    assert admit(pool, 16, [2]) is None
    pool.resize(32)
    assert pool.free == 16
    assert admit(pool, 16, [2]) is not None
    pool.release(held)
    assert (pool.free, pool.capacity) == (16, 32)


def test_a_smaller_pool_evicts_from_the_head_of_the_queue():
    pool = pool_of(4)
    pool.release(admit(pool, 16, [1]))
    pool.release(admit(pool, 32, [2, 3]))
    pool.resize(32)
    assert pool.take_evicted() == [1]
    assert (pool.free, pool.capacity) == (32, 32)
    pool.resize(16)
    assert pool.take_evicted() == [3]
    assert pool.match([2]) == 1


def test_shrinking_under_load_is_paid_when_blocks_are_freed():
    pool = pool_of(6)
    first, second = admit(pool, 32, [1, 2]), admit(pool, 48, [3, 4, 5])
    pool.resize(48)
    assert pool.free == -32
    assert pool.match([1, 2]) == 2
    assert admit(pool, 16, [9]) is None
    pool.release(first)
    assert pool.free == 0
    assert set(pool.hashes()) == {3, 4, 5}
    pool.release(second)
    assert pool.free == 48
    assert pool.take_evicted() == [2, 1]


def test_shrinking_under_load_and_growing_back_is_as_before():
    pool = pool_of(4)
    lease = admit(pool, 48, [1, 2, 3])
    pool.resize(16)
    pool.resize(64)
    assert pool.free == 16
    pool.release(lease)
    assert (pool.free, pool.match([1, 2, 3])) == (64, 3)


def test_blocks_of_any_size_are_accounted_for():
    pool = pool_of(100, 1)
    lease = pool.admit([1, 2, 3], [10, 20, 30], 5, 3)
    assert pool.free == 35
    pool.release(lease)
    again = pool.admit([1, 2, 4], [10, 20, 40], 5, 3)
    assert (again.cached, pool.free) == (2, 25)
    assert pool.take_evicted() == [3]
    pool.release(again)
    assert pool.free == 100


def name_of(path):
    """Name a block by all that stands before it, as a chained hash does."""
    number = 1
    for step in path:
        number = number * 3 + step + 1
    return number


paths = st.lists(st.integers(0, 1), max_size=7).map(tuple)


class PoolBesideOracle(RuleBasedStateMachine):
    """Whatever is asked of both, they say the same."""

    leases = Bundle("leases")
    SIZE = 10

    def __init__(self):
        super().__init__()
        self.pool = pool_of(self.SIZE)
        self.oracle = Oracle(self.SIZE)
        self.findable = set()

    @rule(target=leases, path=paths, partial=st.booleans())
    def admit(self, path, partial):
        names = [name_of(path[:end]) for end in range(1, len(path) + 1)]
        lookup = len(names) if partial else max(0, len(names) - 1)
        assert self.pool.match(names) == len(self.oracle.hits(names))
        lease = self.pool.admit(names, [BLOCK] * len(names), BLOCK * partial, lookup)
        held = self.oracle.admit(names, partial, lookup)
        assert (lease is None) == (held is None)
        if lease is not None:
            assert lease.cached == held.hits
        return lease, held

    @rule(pair=leases, blocks=st.integers(0, 3))
    def grow(self, pair, blocks):
        lease, held = pair
        if lease is not None and held.blocks:
            self.pool.grow(lease, blocks * BLOCK)
            self.oracle.grow(held, blocks)

    @rule(pair=consumes(leases))
    def release(self, pair):
        lease, held = pair
        if lease is not None:
            self.pool.release(lease)
            self.oracle.release(held)

    @rule(pair=consumes(leases))
    def revoke(self, pair):
        lease, held = pair
        if lease is not None:
            self.pool.revoke(lease)
            self.oracle.revoke(held)

    @invariant()
    def as_much_is_free(self):
        assert self.pool.free == len(self.oracle.free) * BLOCK

    @invariant()
    def the_same_can_be_found(self):
        assert set(self.pool.hashes()) == self.oracle.hashes()

    @invariant()
    def news_add_up(self):
        self.findable -= set(self.pool.take_evicted())
        self.findable |= set(self.pool.take_stored())
        assert self.findable == set(self.pool.hashes())


TestPoolBesideOracle = PoolBesideOracle.TestCase
TestPoolBesideOracle.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


HASH = (1 << 64) - 1


class PoolUnderResizing(RuleBasedStateMachine):
    """Blocks of many sizes, capacities that change: the books always balance."""

    leases = Bundle("leases")
    SIZES = (3, 5, 8, 13, 21, 34, 55)

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(200)
        self.held = {}

    def used(self):
        blocks = {self.own(key) for lease in self.held.values() for key in lease.keys}
        assert not any(self.pool._stamps[key] for key in blocks), "none is free"
        return sum(map(self.pool._sizes.__getitem__, blocks)) + sum(
            lease.blank for lease in self.held.values()
        )

    def own(self, key):
        return self.pool._promoted.get(key, key)

    @rule(target=leases, path=paths, blank=st.integers(0, 20))
    def admit(self, path, blank):
        names = [name_of(path[:end]) for end in range(1, len(path) + 1)]
        lease = self.pool.admit(names, self.SIZES, blank, len(names))
        if lease is not None:
            self.held[id(lease)] = lease
        return lease

    @rule(lease=leases, tokens=st.integers(0, 40))
    def grow(self, lease, tokens):
        if lease is not None and lease.keys:
            self.pool.grow(lease, tokens)

    @rule(lease=consumes(leases), revoked=st.booleans())
    def leave(self, lease, revoked):
        if lease is not None:
            (self.pool.revoke if revoked else self.pool.release)(lease)
            del self.held[id(lease)]

    @rule(capacity=st.integers(0, 300))
    def resize(self, capacity):
        self.pool.resize(capacity)

    @invariant()
    def books_balance(self):
        assert self.pool.free == self.pool.capacity - self.used()

    @invariant()
    def content_fits_or_is_in_use(self):
        assert self.pool._stamps.keys() == self.pool._sizes.keys()
        idle = sum(self.pool._sizes[key] for key, stamp in self.pool._stamps.items() if stamp)
        assert idle <= max(0, self.pool.capacity - self.used())

    @invariant()
    def what_is_held_can_be_found(self):
        found = set(self.pool.hashes())
        assert all(
            self.own(key) & HASH in found
            for lease in self.held.values()
            for key in lease.keys
            if key > 0
        )


TestPoolUnderResizing = PoolUnderResizing.TestCase
TestPoolUnderResizing.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
