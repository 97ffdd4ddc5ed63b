"""The block pool under random use, beside the simulator's: another reading of vLLM's rules."""

from typing import Any

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

from tests.model.caches.pool_rig import allocate, names_of, parent_of, paths, paths_of, pools_of

BLOCKS = 10


class Held:
    """What one request holds: of each pool a lease, of the simulator's the numbers `blocks`."""

    def __init__(self, leases, blocks, path, tokens):
        self.leases = leases
        self.blocks = blocks
        self.path = path
        self.tokens = tokens


class PoolBesideSimulator(RuleBasedStateMachine):
    """Whatever is asked of them, they say the same; and `closed` is never said in vain.

    Each path through the tree of names is a conversation; what is generated goes on from it.
    """

    leases = Bundle("leases")

    @initialize(size=st.sampled_from([1, 4, 16]))
    def start(self, size):
        self.size = size
        self.pools = pools_of(BLOCKS, size)
        self.simulated: Any = SimulatedPool(BLOCKS + 1)  # whose hashes are bytes; here, numbers
        self.generated = 0
        self.findable = [set[int]() for _ in self.pools]

    @rule(target=leases, path=paths, extra=st.integers(0, 3))
    def allocate(self, path, extra):
        names = names_of(path)
        tokens = len(names) * self.size + extra % self.size
        lookup, blocks = max(0, tokens - 1) // self.size, -(-tokens // self.size)
        hits = self.simulated.longest_run(names, lookup)
        free = self.simulated.free_count - self.simulated.free_among(hits)
        leases = [allocate(pool, tokens, names, self.size) for pool in self.pools]
        full = blocks - len(hits) > free
        assert all((lease is None) == full for lease in leases)
        if full:
            return multiple()
        assert all(lease.cached == len(hits) for lease in leases)
        self.simulated.touch(hits)
        fresh = self.simulated.allocate(blocks - len(hits))
        for block, name in zip(fresh, names[len(hits) :], strict=False):
            self.simulated.register(block, name)
        return Held(leases, hits + fresh, path, tokens)

    @rule(held=leases, tokens=st.integers(0, 40), steps=paths_of(3))
    def generate(self, held, tokens, steps):
        """Compute more tokens, and name the first of the blocks that they fill."""
        if not held.blocks:
            return
        computed = held.tokens + tokens
        need = max(0, -(-computed // self.size) - len(held.blocks))
        room = need <= self.simulated.free_count
        for pool, lease in zip(self.pools, held.leases, strict=True):
            assert pool.grow(lease, computed) == room
        if not room:
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
        for pool, lease in zip(self.pools, held.leases, strict=True):
            assert pool.assign_hashes(lease, names, [self.size] * len(names)) == len(named)
        for block, name in named:
            self.simulated.register(block, name)
        held.path = (*held.path, *steps[: len(named)])

    @rule(held=consumes(leases))
    def release(self, held):
        for pool, lease in zip(self.pools, held.leases, strict=True):
            pool.release(lease)
        self.simulated.free(held.blocks)

    @invariant()
    def the_same_is_free_in_the_same_order(self):
        free = [self.simulated.hash_of(block) for block in self.simulated.free_order()]
        content = [name if name > 0 else None for name in free if name is not None]
        for pool in self.pools:
            assert pool.free == len(free) * self.size
            assert pool.free_blocks() == content

    @invariant()
    def changes_add_up(self):
        for pool, findable in zip(self.pools, self.findable, strict=True):
            findable -= set(pool.take_evicted())
            findable |= set(pool.take_stored())
            assert findable == set(pool.hashes())

    @invariant()
    def nothing_is_held_without_what_precedes_it(self):
        for pool in self.pools:
            held = set(pool.hashes())
            assert pool.closed
            assert all(parent_of(name) in {None, *held} for name in held)


def test_the_pool_beside_the_simulators():
    use = settings(max_examples=120, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(PoolBesideSimulator, settings=use)
