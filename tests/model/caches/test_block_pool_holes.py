"""Holes in the block pool under reports of the engine, of blocks in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.model.caches.pool_rig import allocate, names_of, parent_of, paths, paths_of, pools_of


class HolesUnderHearsay(RuleBasedStateMachine):
    """Whatever the engine says, of whatever blocks: `closed` is not said in vain."""

    leases = Bundle("leases")

    def __init__(self):
        super().__init__()
        self.pools = pools_of(12, 1)

    @rule(target=leases, path=paths)
    def allocate(self, path):
        names = names_of(path)
        return [allocate(pool, len(path), names, 1) for pool in self.pools], list(path)

    @rule(entry=leases, steps=paths_of(4))
    def generate(self, entry, steps):
        leases, path = entry
        whole = names_of((*path, *steps))
        named = [0 for _ in self.pools]
        for at, (pool, lease) in enumerate(zip(self.pools, leases, strict=True)):
            growing = lease is not None and lease.blocks and not lease.unhashed_blocks
            if growing and pool.grow(lease, len(whole)):
                named[at] = pool.assign_hashes(lease, whole[len(path) :], [1] * len(steps))
        assert len(set(named)) == 1
        path += steps[: named[0]]

    @rule(entry=leases, revoked=st.booleans())
    def leave(self, entry, revoked):
        for pool, lease in zip(self.pools, entry[0], strict=True):
            if lease is not None:
                (pool.revoke if revoked else pool.release)(lease)

    @rule(path=paths, first=st.integers(0, 7))
    def store(self, path, first):
        names = names_of(path)[first:]
        for pool in self.pools:
            pool.store(names, [1] * len(names))

    @rule(path=paths, first=st.integers(0, 7), last=st.integers(0, 7))
    def discard(self, path, first, last):
        for pool in self.pools:
            pool.discard(names_of(path)[first:last])

    @rule(blocks=st.integers(1, 4))
    def coarsen(self, blocks):
        for pool in self.pools:
            pool.coarsen(blocks)

    @invariant()
    def closed_is_closed(self):
        for pool in self.pools:
            held = set(pool.hashes())
            if pool.closed:
                assert all(parent_of(name) in {None, *held} for name in held)


def test_holes_under_reports():
    use = settings(max_examples=300, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(HolesUnderHearsay, settings=use)
