"""The block pool beside the prefix index, which follows its changes."""

from itertools import chain, product

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
from tests.model.caches.pool_rig import allocate, evicted, names_of, paths, pools_of, stored

WHICH = st.integers(0, 1)


class IndexBesidePools(RuleBasedStateMachine):
    """The index says of any chain what the pools say, holed as they may be.

    They are two pools, of each kind, each with a slot.
    """

    leases = Bundle("leases")
    CHAINS = tuple(names_of(path) for path in product((0, 1), repeat=7))

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex()
        self.pools = [pools_of(14, 1), pools_of(30, 1)]
        self.slots = [[self.index.add_slot() for _ in pools] for pools in self.pools]

    @rule(target=leases, which=WHICH, path=paths)
    def allocate(self, which, path):
        pools = self.pools[which]
        return pools, [allocate(pool, len(path), names_of(path), 1) for pool in pools]

    @rule(entry=leases, revoked=st.booleans())
    def leave(self, entry, revoked):
        pools, leases = entry
        for pool, lease in zip(pools, leases, strict=True):
            if lease is not None and pools in self.pools:
                (pool.revoke if revoked else pool.release)(lease)

    @rule(which=WHICH, blocks=st.integers(1, 6))
    def coarsen(self, which, blocks):
        for pool in self.pools[which]:
            pool.coarsen(blocks)

    @rule(which=WHICH, path=paths, first=st.integers(0, 7))
    def store(self, which, path, first):
        for pool in self.pools[which]:
            pool.store(names_of(path)[first:], [1] * 7)

    @rule(which=WHICH, path=paths, first=st.integers(0, 7))
    def discard(self, which, path, first):
        for pool in self.pools[which]:
            pool.discard(names_of(path)[first:])

    @rule(which=WHICH)
    def restart(self, which):
        self.mirror(which)
        for pool, slot in zip(self.pools[which], self.slots[which], strict=True):
            self.index.remove_slot(slot, pool.hashes())
        self.pools[which] = pools_of(14, 1)
        self.slots[which] = [self.index.add_slot() for _ in self.pools[which]]

    def mirror(self, which):
        for pool, slot in zip(self.pools[which], self.slots[which], strict=True):
            self.index.remove(slot, evicted(pool))
            self.index.add(slot, stored(pool))
            self.index.mark(slot, closed=pool.closed)

    @invariant()
    def they_agree(self):
        for which in range(2):
            self.mirror(which)
        pools, slots = (list(chain.from_iterable(each)) for each in (self.pools, self.slots))
        for names in self.CHAINS:
            depths = self.index.match(names)
            assert [depths[slot] for slot in slots] == [pool.match(names) for pool in pools]


def test_index_beside_pools():
    use = settings(max_examples=80, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(IndexBesidePools, settings=use)
