"""The block pool beside the prefix index, which follows its changes."""

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from epp.model.prefix_index.index import PrefixIndex
from tests.model.caches.pool_rig import allocate, evicted, names_of, paths, pool_of, stored

pytestmark = pytest.mark.usefixtures("pool_kind")


class IndexBesidePools(RuleBasedStateMachine):
    """The index says of any chain what the pools say, holed as they may be."""

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
        self.index.close(self.slots[which], pool.hashes())
        self.slots[which] = self.index.open()

    def mirror(self, which, pool):
        slot = self.slots[which]
        self.index.remove(slot, evicted(pool))
        self.index.add(slot, stored(pool))
        self.index.mark(slot, closed=pool.closed)

    @invariant()
    def they_agree(self):
        for which, pool in enumerate(self.pools):
            self.mirror(which, pool)
        for chain in self.CHAINS:
            depths = self.index.match(chain)
            assert [depths[slot] for slot in self.slots] == [p.match(chain) for p in self.pools]


def test_index_beside_pools():
    use = settings(max_examples=80, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(IndexBesidePools, settings=use)
