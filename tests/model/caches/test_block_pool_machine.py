"""The block pool under random use, beside an oracle."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.caches.pool_oracle import Oracle
from tests.model.caches.pool_rig import (
    allocate,
    names_of,
    parent_of,
    paths,
    pool_of,
)

pytestmark = pytest.mark.usefixtures("pool_kind")


class PoolBesideOracle(RuleBasedStateMachine):
    """Whatever is asked of both, they say the same; and `closed` is never said in vain.

    Each path through the tree of names is a conversation; what is generated goes on from it.
    """

    leases = Bundle("leases")

    @initialize(size=st.sampled_from([1, 4, 16]), reports=st.booleans())
    def start(self, size, reports):
        self.size, self.reports = size, reports
        self.pool = pool_of(10, size)
        self.oracle = Oracle(10, size)
        self.findable = set()

    @rule(target=leases, path=paths, extra=st.integers(0, 3))
    def allocate(self, path, extra):
        names = names_of(path)
        tokens = len(names) * self.size + extra % self.size
        lookup = max(0, tokens - 1) // self.size
        assert self.pool.match(names) == len(self.oracle.hits(names))
        lease = allocate(self.pool, tokens, names, self.size)
        held = self.oracle.allocate(names, tokens, lookup)
        assert (lease is None) == (held is None)
        if lease is not None:
            assert lease.cached == held.hits
        return lease, held, path

    @rule(entry=leases, tokens=st.integers(0, 40))
    def grow(self, entry, tokens):
        lease, held, _ = entry
        if lease is not None and not held.over:
            computed = held.tokens + tokens
            assert self.pool.grow(lease, computed) == self.oracle.grow(held, computed)

    @rule(entry=leases, steps=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def name(self, entry, steps):
        """Name the first unhashed blocks, held still or given back."""
        lease, held, path = entry
        if lease is not None:
            before = (*path, *held.named)
            names = names_of((*before, *steps))[len(before) :]
            count = self.oracle.assign_hashes(held, names)
            assert self.pool.assign_hashes(lease, names, [self.size] * len(names)) == count
            held.named += steps[:count]

    @rule(entry=leases)
    def release(self, entry):
        lease, held, _ = entry
        if lease is not None and not held.over:
            self.pool.release(lease)
            self.oracle.release(held)

    @rule(entry=consumes(leases))
    def revoke(self, entry):
        lease, held, _ = entry
        if lease is not None and not held.over:
            self.pool.revoke(lease)
            self.oracle.revoke(held)

    @precondition(lambda self: self.reports)
    @rule(path=paths, first=st.integers(0, 7))
    def store(self, path, first):
        """Hear of blocks that follow nothing which the pool could name."""
        names = [name + 10**6 for name in names_of(path)[first:]]
        self.pool.store(names, [self.size] * len(names))
        self.oracle.store(names)

    @precondition(lambda self: self.reports)
    @rule(path=paths, first=st.integers(0, 7))
    def discard(self, path, first):
        names = [*names_of(path)[first:], *(name + 10**6 for name in names_of(path)[first:])]
        self.pool.discard(names)
        self.oracle.discard(names)

    @invariant()
    def as_much_is_free(self):
        if hasattr(self, "pool"):
            assert self.pool.free == len(self.oracle.free) * self.size

    @invariant()
    def the_same_can_be_found(self):
        if hasattr(self, "pool"):
            assert set(self.pool.hashes()) == self.oracle.hashes()
            assert len(self.pool) == len(self.oracle.order)

    @invariant()
    def changes_add_up(self):
        if hasattr(self, "pool"):
            self.findable -= set(self.pool.take_evicted())
            self.findable |= set(self.pool.take_stored())
            assert self.findable == set(self.pool.hashes())

    @invariant()
    def closed_is_closed(self):
        if hasattr(self, "pool"):
            held = set(self.pool.hashes())
            holes = {name for name in held if name < 10**6 and parent_of(name) not in {None, *held}}
            assert not (self.pool.closed and holes)
            assert self.pool.closed or self.reports


def test_pool_beside_oracle():
    use = settings(max_examples=120, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(PoolBesideOracle, settings=use)
