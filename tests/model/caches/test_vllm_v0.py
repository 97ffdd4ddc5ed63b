"""vLLM v0's cache: its rules as tables, and beside an oracle of blocks on a clock."""

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
)

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.vllm_v0 import VllmV0Cache
from tests.model.caches.evictor_oracle import EvictorOracle
from tests.model.invariants import check_invariants

BLOCK = 16


def cache_of(blocks):
    return VllmV0Cache(blocks * BLOCK, BLOCK)


def allocate(cache, *names, partial=False):
    lookup = max(0, len(names) - (not partial))
    return cache.allocate(list(names), [BLOCK] * len(names), BLOCK * partial, lookup)


def run(cache, *names, partial=False):
    lease = allocate(cache, *names, partial=partial)
    cache.release(lease)
    return lease.cached


def test_a_repeated_prompt_hits_all_but_its_last_token():
    cache = cache_of(20)
    assert [run(cache, 1, 2, 3), run(cache, 1, 2, 3)] == [0, 2]
    assert run(cache, 1, 2, 3, partial=True) == 3


def test_equal_blocks_are_one():
    cache = cache_of(10)
    leases = [allocate(cache, 1, 2), allocate(cache, 1, 2)]
    assert cache.free == 8 * BLOCK
    cache.release(leases[0])
    assert cache.free == 8 * BLOCK
    cache.release(leases[1])
    assert (cache.free, cache.take_stored()) == (cache.capacity, [1, 2])


def test_the_oldest_access_goes_first_then_the_deepest_block():
    cache = cache_of(6)
    run(cache, 1, 2, 3)
    run(cache, 4, 5)
    run(cache, 1)
    run(cache, 7, 8, 9)
    assert cache.take_evicted() == [3, 2]
    run(cache, 10)
    assert cache.take_evicted() == [5]


def test_of_blocks_that_turn_out_to_be_empty_the_deepest_goes_first():
    cache = cache_of(6)
    lease = allocate(cache, 1, 2, 3)
    cache.correct_sizes(lease, [0, 0, 0])
    cache.release(lease)
    cache.coarsen(1)
    assert cache.take_evicted() == [3]


def test_the_deepest_goes_first_where_one_of_two_prompts_that_share_a_block_is_corrected():
    cache = cache_of(6)
    first, second = allocate(cache, 1), allocate(cache, 1, 2)
    cache.correct_sizes(first, [3 * BLOCK])
    cache.release(first)
    cache.release(second)
    cache.coarsen(1)
    assert cache.take_evicted() == [2]


def test_the_deepest_goes_first_where_a_prompt_is_corrected_once_output_has_hashes():
    cache = cache_of(6)
    lease = allocate(cache, 1, partial=True)
    assert cache.grow(lease, 2 * BLOCK)
    assert cache.assign_hashes(lease, [2], [BLOCK]) == 1
    cache.correct_sizes(lease, [3 * BLOCK])
    cache.release(lease)
    cache.coarsen(1)
    assert cache.take_evicted() == [2]


def test_a_prompt_needs_as_much_space_as_if_it_hit_nothing():
    cache = cache_of(4)
    first = allocate(cache, 1, 2, 3)
    assert allocate(cache, 1, 2) is None
    cache.release(first)
    assert allocate(cache, 1, 2).cached == 1


def test_one_percent_remains_free_when_a_prompt_is_let_in():
    cache = cache_of(200)
    names = list(range(1, 200))
    lease = allocate(cache, *names)
    assert (lease.keys, cache.free) == ((), cache.capacity)
    assert allocate(cache, *names[:190]) is not None
    assert allocate(cache, *range(300, 309)) is None
    assert allocate(cache, *range(300, 308)) is not None


def test_generated_blocks_are_found_once_hashed_and_equal_ones_are_one():
    cache = cache_of(10)
    first, second = allocate(cache, 1, partial=True), allocate(cache, 1, partial=True)
    for lease in (first, second):
        assert cache.grow(lease, 2 * BLOCK + 3)
        assert cache.assign_hashes(lease, [2, 3], [BLOCK] * 2) == 1
    assert cache.match([1, 2, 3]) == 2
    assert cache.free == (10 - 4) * BLOCK  # two that are shared, and a partial one for each
    for lease in (first, second):
        cache.release(lease)
    assert (cache.free, len(cache)) == (cache.capacity, 2)


def test_generated_blocks_can_be_hashed_after_the_end_and_keep_their_place():
    cache = cache_of(6)
    lease = allocate(cache, 1)
    assert cache.grow(lease, 4 * BLOCK)
    cache.release(lease)
    run(cache, 8)
    assert cache.assign_hashes(lease, [2], [BLOCK]) == 1
    assert cache.assign_hashes(lease, [3, 4, 5], [BLOCK] * 3) == 2
    assert cache.assign_hashes(lease, [5], [BLOCK]) == 0
    run(cache, 20, 21, 22)
    assert cache.take_evicted() == [4, 3]
    assert cache.match([1, 2, 3]) == 2


def test_unhashed_output_is_evicted_block_by_block():
    cache = cache_of(6)
    lease = allocate(cache, 1)
    cache.grow(lease, 4 * BLOCK)
    cache.release(lease)
    run(cache, 20, 21, 22)
    assert cache.assign_hashes(lease, [2, 3, 4], [BLOCK] * 3) == 2
    assert cache.match([1, 2, 3]) == 3
    run(cache, 30, 31, 32, 33, 34, 35)
    assert cache.assign_hashes(lease, [4], [BLOCK]) == 0


def test_hashes_of_blocks_that_are_held_already_free_the_copy():
    cache = cache_of(8)
    leases = [allocate(cache, 1), allocate(cache, 1)]
    for lease in leases:
        cache.grow(lease, 3 * BLOCK)
        cache.release(lease)
    for lease in leases:
        assert cache.assign_hashes(lease, [2, 3], [BLOCK] * 2) == 2
    run(cache, 20, 21, 22, 23, 24)
    assert cache.take_evicted() == []


def test_growth_that_finds_no_space_changes_nothing():
    cache = cache_of(3)
    lease, other = allocate(cache, 1, 2), allocate(cache, 5)
    assert cache.grow(lease, 2 * BLOCK)
    assert not cache.grow(lease, 2 * BLOCK + 1)
    cache.release(other)
    assert cache.grow(lease, 2 * BLOCK + 1)
    assert cache.take_evicted() == [5]


def test_what_was_never_computed_is_dropped_unless_others_use_it():
    cache = cache_of(12)
    run(cache, 1)
    gone, other = allocate(cache, 1, 2, 3, 4), allocate(cache, 1, 2, 9)
    cache.grow(gone, 6 * BLOCK)
    cache.revoke(gone)
    assert sorted(cache.hashes()) == [1, 2, 9]
    assert cache.assign_hashes(gone, [5], [BLOCK]) == 0
    cache.release(other)
    assert cache.free == cache.capacity


def test_reported_blocks_are_stored():
    cache = cache_of(4)
    run(cache, 1, 2)
    cache.store([1, 2, 3], [BLOCK] * 3)
    assert (cache.match([1, 2, 3]), cache.closed) == (3, True)
    cache.store([2, 3], [BLOCK] * 2)  # what stands before them is now evicted before they are
    assert (cache.match([1, 2, 3]), cache.closed) == (3, False)
    cache.store([8, 9], [BLOCK] * 2)
    assert (cache.match([8, 9]), cache.closed) == (2, False)
    assert cache.take_evicted() == [1]
    cache.discard([8, 77])
    assert sorted(cache.hashes()) == [2, 3, 9]
    cache.discard([2, 3, 9])
    assert (cache.closed, cache.free) == (True, cache.capacity)


def test_no_more_reported_blocks_are_stored_than_fit():
    cache = cache_of(3)
    held = allocate(cache, 1)
    cache.store([1, 2, 3, 4], [BLOCK] * 4)
    assert (sorted(cache.hashes()), cache.closed) == ([1, 2, 3], True)
    cache.discard([1])
    cache.release(held)
    assert cache.match([1, 2, 3]) == 3


def test_shrinking_under_load_is_paid_when_requests_end():
    cache = cache_of(6)
    held = allocate(cache, 1, 2, 3, 4)
    cache.resize(2 * BLOCK)
    assert cache.free == -2 * BLOCK
    assert cache.grow(held, 4 * BLOCK)
    assert not cache.grow(held, 5 * BLOCK)
    cache.release(held)
    assert (cache.free, cache.match([1, 2, 3])) == (2 * BLOCK, 2)


def test_the_order_of_eviction_does_not_outgrow_the_cache():
    cache = cache_of(20)
    for turn in range(2000):
        run(cache, 1, 2 + turn % 5)
    check_invariants(cache)


def test_a_lease_of_another_cache_is_an_error():
    lease = allocate(BlockPool(4 * BLOCK, BLOCK), 1)
    with pytest.raises(TypeError):
        cache_of(4).release(lease)


class EvictorBesideOracle(RuleBasedStateMachine):
    """Blocks on a clock in the oracle, releases in the cache: they hold and evict the same."""

    requests = Bundle("requests")
    histories = Bundle("histories")
    blocks = st.lists(st.integers(0, 1), max_size=4)

    @initialize(target=histories, size=st.integers(2, 12))
    def create(self, size):
        self.cache = cache_of(size)
        self.oracle = EvictorOracle(size)
        self.names = {}
        self.findable = set()
        return ()

    def named(self, path):
        ends = range(1, len(path) + 1)
        return [self.names.setdefault(path[:end], len(self.names)) for end in ends]

    @rule(target=requests, history=histories, more=blocks, partial=st.booleans())
    def start(self, history, more, partial):
        path, partial = (*history, *more), partial or not (history or more)
        names = self.named(path)
        lookup = len(names) if partial else max(0, len(names) - 1)
        lease = allocate(self.cache, *names, partial=partial)
        table = self.oracle.admit(names, partial, lookup)
        assert (lease is None) == (table is None)
        if lease is None or table not in self.oracle.running:
            return multiple()
        assert lease.cached == table.hits
        return [lease, table, path, partial]

    @rule(request=requests, more=blocks)
    def generate(self, request, more):
        lease, table, path, partial = request
        if table not in self.oracle.running:
            return
        for each in more:
            if not partial:
                partial = self.oracle.append(table)
                assert self.cache.grow(lease, len(path) * BLOCK + 1) == partial
            if not partial:
                break
            path, partial = (*path, each), False
            (*_, name) = self.named(path)
            self.oracle.promote(table, name)
            assert self.cache.grow(lease, len(path) * BLOCK)
            assert self.cache.assign_hashes(lease, [name], [BLOCK]) == 1
        request[2:] = path, partial

    @rule(target=histories, request=consumes(requests))
    def finish(self, request):
        lease, table, path, _ = request
        self.oracle.finish(table)
        self.cache.release(lease)
        return path

    @invariant()
    def as_much_is_free(self):
        assert self.cache.free == self.oracle.free * BLOCK

    @invariant()
    def the_same_can_be_found(self):
        assert set(self.cache.hashes()) == self.oracle.names()
        assert self.cache.closed

    @invariant()
    def changes_add_up(self):
        self.findable -= set(self.cache.take_evicted())
        self.findable |= set(self.cache.take_stored())
        assert self.findable == set(self.cache.hashes())


TestEvictorBesideOracle = EvictorBesideOracle.TestCase
TestEvictorBesideOracle.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
