"""The block pool under random use: beside an oracle, and with blocks and capacities of any size."""

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
)

from epp.model.contents import hash_of
from tests.model.oracle import Oracle
from tests.model.poolrig import admit, name_of, names_of, parent_of, paths, pool_of, pool_with


class PoolBesideOracle(RuleBasedStateMachine):
    """Whatever is asked of both, they say the same; and `closed` is never said in vain.

    Each path through the tree of names is a conversation; what is generated goes on from it.
    """

    leases = Bundle("leases")

    @initialize(size=st.sampled_from([1, 4, 16]), hearsay=st.booleans())
    def start(self, size, hearsay):
        self.size, self.hearsay = size, hearsay
        self.pool = pool_of(10, size)
        self.oracle = Oracle(10, size)
        self.findable = set()

    @rule(target=leases, path=paths, extra=st.integers(0, 3))
    def admit(self, path, extra):
        names = names_of(path)
        tokens = len(names) * self.size + extra % self.size
        lookup = max(0, tokens - 1) // self.size
        assert self.pool.match(names) == len(self.oracle.hits(names))
        lease = admit(self.pool, tokens, names, self.size)
        held = self.oracle.admit(names, tokens, lookup)
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
        """Name the first nameless blocks, held still or given back."""
        lease, held, path = entry
        if lease is not None:
            before = (*path, *held.named)
            names = names_of((*before, *steps))[len(before) :]
            count = self.oracle.name(held, names)
            assert self.pool.name(lease, names, [self.size] * len(names)) == count
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

    @precondition(lambda self: self.hearsay)
    @rule(path=paths, first=st.integers(0, 7))
    def store(self, path, first):
        """Hear of blocks that follow nothing which the pool could name."""
        names = [name + 10**6 for name in names_of(path)[first:]]
        self.pool.store(names, [self.size] * len(names))
        self.oracle.store(names)

    @precondition(lambda self: self.hearsay)
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
    def news_add_up(self):
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
            assert self.pool.closed or self.hearsay


TestPoolBesideOracle = PoolBesideOracle.TestCase
TestPoolBesideOracle.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


class PoolUnderResizing(RuleBasedStateMachine):
    """Blocks of many sizes, capacities that change: the books always balance."""

    leases = Bundle("leases")
    SIZES = (3, 5, 8, 0, 13, 21, 34, 55)

    def __init__(self):
        super().__init__()
        self.pool = pool_with(200, 7)
        self.held = {}

    def used(self):
        blocks = {self.own(key) for lease in self.held.values() for key in self.keys(lease)}
        contents = self.pool._contents
        assert not any(contents.stamps[key] for key in blocks), "none is free"
        return contents.tokens(list(blocks)) + sum(lease.blank for lease in self.held.values())

    def keys(self, lease):
        return [*lease.keys, *lease.tail]

    def own(self, key):
        return self.pool._contents.promoted.get(key, key)

    @rule(target=leases, path=paths, blank=st.integers(0, 20))
    def admit(self, path, blank):
        lease = self.pool.admit(names_of(path), self.SIZES, blank, len(path))
        if lease is not None:
            self.held[id(lease)] = lease
        return lease

    @rule(lease=leases, more=st.integers(-9, 60))
    def grow(self, lease, more):
        if lease is not None:
            before = lease.tokens + lease.blank
            grown = self.pool.grow(lease, lease.tokens + more)
            assert lease.tokens + lease.blank >= before
            assert grown or self.pool.free < 70

    @rule(lease=leases, sizes=st.lists(st.integers(0, 60), min_size=7, max_size=7))
    def settle(self, lease, sizes):
        if lease is not None:
            before = self.pool.free
            self.pool.settle(lease, sizes[: lease.cached + len(lease.keys) - lease.found])
            assert self.pool.free == before

    @rule(lease=leases, path=paths)
    def name(self, lease, path):
        if lease is not None:
            names = [name_of((*path, 0, step)) for step in range(4)]
            before = self.pool.free
            assert 0 <= self.pool.name(lease, names, self.SIZES) <= len(names)
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
        before = len(self.pool)
        self.pool.coarsen(blocks)
        in_use = sum(1 for stamp in self.pool._contents.stamps.values() if not stamp)
        assert len(self.pool) <= max(before - blocks, in_use)

    @rule(capacity=st.integers(0, 300))
    def resize(self, capacity):
        self.pool.resize(capacity)

    @invariant()
    def books_balance(self):
        assert self.pool.free == self.pool.capacity - self.used()

    @invariant()
    def content_fits_or_is_in_use(self):
        contents = self.pool._contents
        assert contents.stamps.keys() == contents.sizes.keys()
        idle = sum(contents.sizes[key] for key, stamp in contents.stamps.items() if stamp)
        assert idle == self.pool._queue.tokens <= max(0, self.pool.capacity - self.used())

    @invariant()
    def what_is_held_can_be_found(self):
        found = set(self.pool.hashes())
        assert all(
            hash_of(self.own(key)) in found for lease in self.held.values() for key in lease.keys
        )

    @invariant()
    def bookkeeping_refers_to_what_there_is(self):
        contents = self.pool._contents
        assert contents.shared.keys() <= contents.stamps.keys()
        assert contents.spans.keys() <= contents.stamps.keys()
        assert all(copy in contents.stamps for each in contents.copies.values() for copy in each)


TestPoolUnderResizing = PoolUnderResizing.TestCase
TestPoolUnderResizing.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
