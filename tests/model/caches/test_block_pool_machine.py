"""The block pool under random use, beside the simulator's: another reading of vLLM's rules."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from model_server.simulator.pool import BlockPool as SimulatedPool

from tests.model.caches.pool_rig import allocate, names_of, parent_of, paths, pool_of

pytestmark = pytest.mark.usefixtures("pool_kind")

BLOCKS = 10


class Held:
    """What one request holds: of the pool `lease`, of the simulator's the numbers `blocks`."""

    def __init__(self, lease, blocks, path, tokens):
        self.lease = lease
        self.blocks = blocks
        self.path = path
        self.tokens = tokens


class PoolBesideSimulator(RuleBasedStateMachine):
    """Whatever is asked of both, they say the same; and `closed` is never said in vain.

    Each path through the tree of names is a conversation; what is generated goes on from it.
    """

    leases = Bundle("leases")

    @initialize(size=st.sampled_from([1, 4, 16]))
    def start(self, size):
        self.size = size
        self.pool = pool_of(BLOCKS, size)
        self.simulated: Any = SimulatedPool(BLOCKS + 1)  # whose hashes are bytes; here, numbers
        self.generated = 0
        self.findable = set()

    @rule(target=leases, path=paths, extra=st.integers(0, 3))
    def allocate(self, path, extra):
        names = names_of(path)
        tokens = len(names) * self.size + extra % self.size
        lookup, blocks = max(0, tokens - 1) // self.size, -(-tokens // self.size)
        hits = self.simulated.longest_run(names, lookup)
        free = self.simulated.free_count - self.simulated.free_among(hits)
        lease = allocate(self.pool, tokens, names, self.size)
        assert (lease is None) == (blocks - len(hits) > free)
        if lease is None:
            return multiple()
        assert lease.cached == len(hits)
        self.simulated.touch(hits)
        fresh = self.simulated.allocate(blocks - len(hits))
        for block, name in zip(fresh, names[len(hits) :], strict=False):
            self.simulated.register(block, name)
        return Held(lease, hits + fresh, path, tokens)

    @rule(held=leases, tokens=st.integers(0, 40), steps=st.lists(st.integers(0, 1), max_size=3))
    def generate(self, held, tokens, steps):
        """Compute more tokens, and name the first of the blocks that they fill."""
        if not held.blocks:
            return
        computed = held.tokens + tokens
        need = max(0, -(-computed // self.size) - len(held.blocks))
        grown = self.pool.grow(held.lease, computed)
        assert grown == (need <= self.simulated.free_count)
        if not grown:
            return
        held.tokens = computed
        held.blocks += self.simulated.allocate(need)
        for block in held.blocks[: computed // self.size]:
            if self.simulated.hash_of(block) is None:
                self.generated -= 1
                self.simulated.register(block, self.generated)
        unnamed = [block for block in held.blocks if (self.simulated.hash_of(block) or 0) < 0]
        names = names_of((*held.path, *steps))[len(held.path) :]
        named = list(zip(unnamed, names, strict=False))
        assert self.pool.assign_hashes(held.lease, names, [self.size] * len(names)) == len(named)
        for block, name in named:
            self.simulated.register(block, name)
        held.path = (*held.path, *steps[: len(named)])

    @rule(held=consumes(leases))
    def release(self, held):
        self.pool.release(held.lease)
        self.simulated.free(held.blocks)

    @invariant()
    def the_same_is_free_in_the_same_order(self):
        if hasattr(self, "pool"):
            free = [self.simulated.hash_of(block) for block in self.simulated.free_order()]
            content = [name for name in free if name is not None]
            assert self.pool.free == len(free) * self.size
            assert self.pool.free_blocks() == [name if name > 0 else None for name in content]

    @invariant()
    def changes_add_up(self):
        if hasattr(self, "pool"):
            self.findable -= set(self.pool.take_evicted())
            self.findable |= set(self.pool.take_stored())
            assert self.findable == set(self.pool.hashes())

    @invariant()
    def nothing_is_held_without_what_precedes_it(self):
        if hasattr(self, "pool"):
            held = set(self.pool.hashes())
            assert self.pool.closed
            assert all(parent_of(name) in {None, *held} for name in held)


def test_the_pool_beside_the_simulators():
    use = settings(max_examples=120, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(PoolBesideSimulator, settings=use)
