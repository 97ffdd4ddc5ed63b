"""vLLM's native offloading: a tier in host memory below a cache."""

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
from epp.model.caches.offload import OffloadedCache
from tests.model.caches.lru_oracles import OffloadOracle
from tests.model.caches.pool_rig import paths_of
from tests.model.invariants import check_invariants

BLOCK = 16


def cache_of(blocks, offload, first=None):
    first = BlockPool(blocks * BLOCK, BLOCK) if first is None else first
    return OffloadedCache(first, offload * BLOCK)


def allocate(cache, *names, partial=True):
    lookup = len(names) - (not partial)
    return cache.allocate(list(names), [BLOCK] * len(names), BLOCK * partial, lookup)


def run(cache, *names, partial=True):
    lease = allocate(cache, *names, partial=partial)
    cache.release(lease)
    return lease.cached


def test_what_the_first_tier_lost_the_second_may_have():
    cache = cache_of(5, 20)
    run(cache, 1, 2, 3)
    run(cache, 4, 5, 6, 7)
    assert cache.take_evicted() == []
    assert cache.match([1, 2, 3]) == 3
    assert run(cache, 1, 2, 3) == 3
    assert cache.free == cache.capacity == 5 * BLOCK


def test_the_last_block_is_computed_again_in_either_tier():
    cache = cache_of(5, 20)
    run(cache, 1, 2, 3, partial=False)
    run(cache, 4, 5, 6, 7)
    assert run(cache, 1, 2, 3, partial=False) == 2


def test_the_second_tier_goes_on_where_the_first_ends_and_not_behind_a_gap():
    cache = cache_of(6, 20)
    run(cache, 1, 2, 3, 4)
    cache.discard([3, 4])
    assert cache.match([1, 2, 3, 4]) == 4
    cache.offload_tier.discard([3])
    assert cache.match([1, 2, 3, 4]) == 2
    assert cache.take_evicted() == [3]


def test_what_is_generated_is_not_offloaded_until_it_is_prompted():
    cache = cache_of(4, 20)
    lease = allocate(cache, 1)
    assert cache.grow(lease, BLOCK)
    assert cache.grow(lease, 3 * BLOCK)
    cache.release(lease)
    assert cache.assign_hashes(lease, [2, 3], [BLOCK] * 2) == 2
    assert cache.match([1, 2, 3]) == 3
    run(cache, 7, 8, 9)
    assert cache.match([1, 2, 3]) == 1


def test_after_loading_only_what_follows_the_hit_is_offered():
    cache = cache_of(6, 20)
    run(cache, 1, 2, 3)
    cache.discard([2, 3])
    cache.offload_tier.discard([1])
    assert run(cache, 1, 2, 3, 4) == 3
    assert 1 not in cache.offload_tier
    assert 4 in cache.offload_tier
    run(cache, 1, 2)
    assert 1 in cache.offload_tier


def test_a_prompt_too_large_for_the_second_tier_is_not_stored_there():
    cache = cache_of(10, 2)
    run(cache, 1)
    run(cache, 2, 3, 4)
    assert cache.offload_tier.hashes() == [1]


def test_a_prompt_too_large_for_the_first_tier_is_stored_in_none():
    cache = cache_of(2, 20)
    lease = allocate(cache, 1, 2, 3)
    cache.release(lease)
    assert (lease.cached, cache.hashes()) == (0, [])


def test_what_does_not_fit_now_changes_nothing():
    cache = cache_of(4, 20)
    held = allocate(cache, 1, 2)
    cache.take_stored()
    assert allocate(cache, 1, 5, 6) is None
    assert (cache.take_stored(), 5 in cache.offload_tier) == ([], False)
    cache.release(held)


def test_what_was_never_computed_is_in_neither_tier():
    cache = cache_of(6, 20)
    run(cache, 1)
    cache.revoke(allocate(cache, 1, 2, 3))
    assert (cache.hashes(), cache.offload_tier.hashes()) == ([1], [1])


def test_the_engine_may_speak_of_the_second_tier():
    cache = cache_of(6, 3)
    cache.offload_tier.store([1, 2], [BLOCK] * 2)
    assert (cache.match([1, 2]), cache.take_stored()) == (2, [1, 2])
    cache.offload_tier.store([3, 4], [BLOCK] * 2)
    assert cache.take_evicted() == [1]
    cache.offload_tier.discard([4, 99])
    assert cache.hashes() == [2, 3]


def test_what_can_be_found_is_counted_without_going_through_it():
    cache = cache_of(5, 20)
    run(cache, 1, 2, 3)
    run(cache, 4, 5, 6, 7)
    cache.hashes = cache.offload_tier.hashes = None
    assert len(cache) == 7
    cache.offload_tier.discard([1, 6])
    cache.discard([7])
    assert len(cache) == 6
    cache.offload_tier.store([6, 8], [BLOCK] * 2)
    assert len(cache) == 7


def test_only_an_empty_second_tier_leaves_the_cache_closed():
    cache = cache_of(6, 10)
    assert cache.closed
    run(cache, 1, 2)
    assert not cache.closed


def test_a_lease_of_another_cache_is_an_error():
    pool = BlockPool(64, 16)
    lease = allocate(pool, 1)
    with pytest.raises(TypeError):
        cache_of(4, 4).release(lease)


class TiersBesideOracle(RuleBasedStateMachine):
    """The first tier is asked what it holds; what the second holds is counted apart."""

    requests = Bundle("requests")
    paths = paths_of(5, 1)

    @initialize(blocks=st.integers(3, 12), chunks=st.integers(0, 16))
    def create(self, blocks, chunks):
        self.first = BlockPool(blocks * BLOCK, BLOCK)
        self.cache = cache_of(blocks, chunks, self.first)
        self.oracle = OffloadOracle(chunks)
        self.names = {}

    @rule(target=requests, path=paths)
    def start(self, path):
        ends = range(1, len(path) + 1)
        names = [self.names.setdefault(path[:end], len(self.names)) for end in ends]
        here = self.first.match(names)
        ahead = [name in self.oracle.order for name in names[here:]]
        more = [*ahead, False].index(False)
        lease = allocate(self.cache, *names)
        if lease is None or not lease.tokens + lease.reserved_tokens:
            return multiple()
        assert lease.cached == here + more
        offered = names[here + more :] if more else names
        stored = self.oracle.offer(offered)
        return lease, [*names[here : here + more], *offered], stored

    @rule(request=consumes(requests), revoked=st.booleans())
    def end(self, request, revoked):
        lease, used, stored = request
        if revoked:
            self.cache.revoke(lease)
            self.oracle.order = [key for key in self.oracle.order if key not in stored]
        else:
            self.cache.release(lease)
            self.oracle.finish(used)

    @invariant()
    def the_second_tier_holds_the_same_in_the_same_order(self):
        assert self.cache.offload_tier.hashes() == self.oracle.order
        assert self.cache.offload_tier.used == len(self.oracle.order) * BLOCK
        check_invariants(self.cache)

    @invariant()
    def what_both_tiers_hold_is_counted_once(self):
        assert len(self.cache) == len(set(self.first.hashes()) | set(self.oracle.order))


TestTiersBesideOracle = TiersBesideOracle.TestCase
TestTiersBesideOracle.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
