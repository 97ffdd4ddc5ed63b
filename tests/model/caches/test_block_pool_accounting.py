"""The accounting of the pool in Python: blocks and capacities of any size, always in balance."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.model.caches.pool_rig import (
    allocate,
    name_of,
    names_of,
    numbers,
    paths,
    reference_of,
    reference_with,
)
from tests.model.invariants import check_invariants


def test_prompts_without_a_full_block_leave_nothing_behind():
    pool = reference_of(4)
    for _ in range(5000):
        pool.release(allocate(pool, 7, []))
    assert (pool.free, len(pool)) == (64, 0)
    check_invariants(pool)


def test_what_no_longer_counts_is_swept_from_the_queue():
    pool = reference_of(64)
    for _ in range(500):
        pool.release(allocate(pool, 161, list(range(1, 11))))
    check_invariants(pool)
    assert pool.match(list(range(1, 11))) == 10


class PoolUnderResizing(RuleBasedStateMachine):
    """Blocks of many sizes, capacities that change: the books always balance."""

    leases = Bundle("leases")
    SIZES = (3, 5, 8, 0, 13, 21, 34, 55)

    def __init__(self):
        super().__init__()
        self.pool = reference_with(200, 7)
        self.held = {}

    @rule(target=leases, path=paths, blank=st.integers(0, 20))
    def allocate(self, path, blank):
        lease = self.pool.allocate(names_of(path), self.SIZES, blank, len(path))
        if lease is not None:
            self.held[id(lease)] = lease
        return lease

    @rule(lease=leases, more=st.integers(-9, 60))
    def grow(self, lease, more):
        if lease is not None:
            before = lease.tokens + lease.reserved_tokens
            grown = self.pool.grow(lease, lease.tokens + more)
            assert lease.tokens + lease.reserved_tokens >= before
            assert grown or self.pool.free < 70

    @rule(lease=leases, sizes=numbers(7, 60))
    def correct_sizes(self, lease, sizes):
        if lease is not None:
            before = self.pool.free
            self.pool.correct_sizes(lease, sizes[: len(lease.blocks)])
            assert self.pool.free == before

    @rule(lease=leases, path=paths)
    def assign_hashes(self, lease, path):
        if lease is not None:
            names = [name_of((*path, 0, step)) for step in range(4)]
            before = self.pool.free
            assert 0 <= self.pool.assign_hashes(lease, names, self.SIZES) <= len(names)
            assert self.pool.free == before

    @rule(lease=leases, revoked=st.booleans())
    def leave(self, lease, revoked):
        if lease is not None:
            (self.pool.revoke if revoked else self.pool.release)(lease)
            self.held.pop(id(lease), None)

    @rule(path=paths)
    def store(self, path):
        self.pool.store(names_of(path), self.SIZES)
        assert self.pool.free <= self.pool.capacity

    @rule(path=paths)
    def discard(self, path):
        self.pool.discard(names_of(path))

    @rule(blocks=st.integers(0, 9))
    def coarsen(self, blocks):
        order = self.pool.free_blocks()
        self.pool.coarsen(blocks)
        assert self.pool.free_blocks() == order[blocks:]

    @rule(capacity=st.integers(0, 300))
    def resize(self, capacity):
        self.pool.resize(capacity)

    @invariant()
    def books_balance(self):
        check_invariants(self.pool, self.held.values())


def test_pool_under_resizing():
    use = settings(max_examples=120, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(PoolUnderResizing, settings=use)
