"""The compiled block pool beside the reference: step by step the same."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.caches.pool_rig import names_of, numbers, paths
from tests.native.built import loaded, needs

KINDS = [each.BlockPool for each in loaded("epp.model.caches.block_pool.pool")]
needs_native = needs("epp.model.caches.block_pool.pool", "the compiled pool of blocks")
many = numbers(7, 30)
FACTS = ("capacity", "free", "closed", "block")
HELD = ("cached", "tokens", "reserved_tokens")
EXAMPLES = 200


def changes(pool):
    return [list(dict.fromkeys(take())) for take in (pool.take_stored, pool.take_evicted)]


class NativeBesideReference(RuleBasedStateMachine):
    """Blocks of one size or of many, in pools with room for few or for all."""

    leases = Bundle("leases")

    @initialize(
        capacity=st.sampled_from([0, 3, 40, 160, 2000]),
        block=st.sampled_from([1, 4, 16]),
        equal=st.booleans(),
    )
    def start(self, capacity, block, equal):
        self.block, self.equal = block, equal
        self.pools = [kind(capacity, block) for kind in KINDS]

    def both(self, name, *each):
        """Ask both for the same, of one's own lease each."""
        said = [
            getattr(pool, name)(*arguments)
            for pool, arguments in zip(self.pools, each or ((), ()), strict=True)
        ]
        assert said[0] == said[1]
        return said[0]

    def sizes(self, drawn):
        return [self.block] * len(drawn) if self.equal else drawn

    @rule(
        target=leases,
        path=paths,
        drawn=many,
        blank=st.integers(0, 20),
        lookup=st.integers(-2, 8),
    )
    def allocate(self, path, drawn, blank, lookup):
        names, sizes = names_of(path), self.sizes(drawn)
        lease, other = (pool.allocate(names, sizes, blank, lookup) for pool in self.pools)
        assert (lease is None) == (other is None)
        return multiple() if lease is None else (lease, other)

    @rule(
        target=leases,
        names=st.lists(st.integers(1, 5), max_size=6),
        drawn=many,
    )
    def allocate_what_repeats_itself(self, names, drawn):
        """No chain does: the books are to balance all the same."""
        sizes = self.sizes(drawn)
        lease, other = (pool.allocate(names, sizes, 0, 6) for pool in self.pools)
        assert (lease is None) == (other is None)
        return multiple() if lease is None else (lease, other)

    @rule(entry=leases, computed=st.integers(-3, 120))
    def grow(self, entry, computed):
        self.both("grow", *[(lease, computed) for lease in entry])

    @rule(entry=leases, drawn=many, off=st.sampled_from([0, 0, 0, 1]))
    def correct_sizes(self, entry, drawn, off):
        native, _ = entry
        count = len(native.blocks) + off
        self.both("correct_sizes", *[(lease, (drawn * 2)[:count]) for lease in entry])

    @rule(entry=leases, path=paths, first=st.integers(0, 6), drawn=many)
    def name(self, entry, path, first, drawn):
        names = names_of(path)[first:]
        self.both("assign_hashes", *[(lease, names, self.sizes(drawn)) for lease in entry])

    @rule(path=paths, extra=st.integers(1, 60), drawn=many, more=st.integers(0, 6))
    def serve_and_name(self, path, extra, drawn, more):
        """Let a request come and go, and a later one quote what it left, or some of it."""
        names, sizes = names_of(path), self.sizes(drawn)
        entry = [pool.allocate(names, sizes, 0, 7) for pool in self.pools]
        if entry[0] is None:
            return
        self.both("grow", *[(lease, lease.tokens + extra) for lease in entry])
        self.both("release", *[(lease,) for lease in entry])
        after = names_of((*path, 0, 1, 0, 1, 0, 1))[len(path) :][:more]
        self.both("assign_hashes", *[(lease, after, self.sizes(drawn)) for lease in entry])

    @rule(entry=leases)
    def release(self, entry):
        self.both("release", *[(lease,) for lease in entry])

    @rule(entry=leases)
    def revoke(self, entry):
        self.both("revoke", *[(lease,) for lease in entry])

    @rule(path=paths, first=st.integers(0, 7), drawn=many)
    def store(self, path, first, drawn):
        names, sizes = names_of(path)[first:], self.sizes(drawn)
        self.both("store", *[(names, sizes)] * 2)

    @rule(path=paths, first=st.integers(0, 7), last=st.integers(0, 7))
    def discard(self, path, first, last):
        self.both("discard", *[(names_of(path)[first:last],)] * 2)

    @rule(capacity=st.integers(0, 300))
    def resize(self, capacity):
        self.both("resize", *[(capacity,)] * 2)

    @rule(blocks=st.integers(0, 9))
    def coarsen(self, blocks):
        self.both("coarsen", *[(blocks,)] * 2)

    @rule(block=st.sampled_from([1, 4, 16]))
    def report_another_block(self, block):
        for pool in self.pools:
            pool.block = block

    @rule()
    def take_changes(self):
        native, reference = map(changes, self.pools)
        assert native == reference

    @precondition(lambda self: hasattr(self, "pools"))
    @invariant()
    def they_are_alike(self):
        native, reference = self.pools
        for fact in FACTS:
            assert getattr(native, fact) == getattr(reference, fact), fact
        assert len(native) == len(reference)
        assert sorted(native.hashes()) == sorted(reference.hashes())
        assert native.free_blocks() == reference.free_blocks()
        cached = reference._blocks.cached
        free = {name for name, copies in cached.items() if not copies[0].ref_cnt}
        told = [list(zip(*pool.contents(), strict=True)) for pool in self.pools]
        assert sorted(told[0]) == sorted(told[1])
        assert {name for name, _ in told[0]} == set(native.hashes())
        in_queue = [[name for name, _ in each if name in free] for each in told]
        assert in_queue[0] == in_queue[1]

    @rule(capacity=st.sampled_from([40, 160, 2000]), closed=st.booleans())
    def start_over_from_what_another_holds(self, capacity, closed):
        hashes, sizes = self.pools[1].contents()
        copies = [kind(capacity, self.block) for kind in KINDS]
        for copy in copies:
            copy.restore(hashes, sizes, closed=closed)
        native, reference = copies
        for fact in FACTS:
            assert getattr(native, fact) == getattr(reference, fact), fact
        assert native.free_blocks() == reference.free_blocks()
        assert changes(native) == changes(reference)

    @precondition(lambda self: hasattr(self, "pools"))
    @invariant()
    def they_find_as_much(self):
        for path in ((0,) * 7, (1,) * 7, (0, 1) * 3):
            self.both("match", *[(names_of(path),)] * 2)

    @rule(entry=leases)
    def leases_are_alike(self, entry):
        native, reference = entry
        assert [getattr(native, each) for each in HELD] == [
            getattr(reference, each) for each in HELD
        ]
        assert bool(native.released) == bool(reference.released)
        if not native.released:
            assert len(native.blocks) == len(reference.blocks)
            assert len(native.unhashed_blocks) == len(reference.unhashed_blocks)


@needs_native
def test_the_compiled_pool_does_what_the_reference_does():
    use = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(NativeBesideReference, settings=use)
