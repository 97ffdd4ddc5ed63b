"""The contract of cache models: what holds of every one, whatever the engine."""

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

from epp.model.caches.choice import MODELS, CacheSpec
from epp.model.caches.sglang import STRATEGIES
from tests.model.caches.pool_rig import names_of, numbers, paths
from tests.model.invariants import check_invariants

RADIX = [("sglang", strategy, 0) for strategy in sorted(STRATEGIES)]
TIERED = [(model, "lru", 96) for model in sorted(MODELS)]
KINDS = sorted({(model, "lru", 0) for model in MODELS} | {*RADIX, *TIERED})
BOOKLESS = {"lru"}
"""Models that hold nothing for requests under way, and whose size is fixed."""
HONEST = [kind for kind in KINDS if kind[0] not in BOOKLESS]


def cache_of(kind, capacity, block=16):
    model, eviction, offload = kind
    spec = CacheSpec(
        model=model, capacity=capacity, block=block, eviction=eviction, offload=offload
    )
    return spec.build()


def allocate(cache, path, sizes, blank=0, last=True):
    names = names_of(path)
    lookup = len(names) if last or blank else max(0, len(names) - 1)
    return cache.allocate(names, sizes[: len(names)], blank, lookup)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("capacity", "block"), [(1, 1), (1, 16), (4096, 4096), (5000, 4096)])
def test_extreme_sizes_are_no_error(kind, capacity, block):
    cache = cache_of(kind, capacity, block)
    for path in [(0,), (0, 1), (1,), (0,)]:
        lease = allocate(cache, path, [block] * 2)
        assert lease is not None
        assert lease.cached <= cache.match(names_of(path)) <= len(path)
        free = cache.free
        assert cache.grow(lease, block * len(path)), "the space is allocated"
        assert cache.free == free
        cache.release(lease)
    found = set(cache.take_stored()) - set(cache.take_evicted())
    assert set(cache.hashes()) <= found
    assert cache.free <= cache.capacity


@pytest.mark.parametrize("kind", HONEST)
def test_a_prompt_larger_than_the_cache_is_given_an_empty_lease(kind):
    cache = cache_of(kind, 64)
    lease = allocate(cache, (0, 0, 0, 0), [16] * 4, 1)
    assert (lease.cached, lease.tokens, lease.reserved_tokens) == (0, 0, 0)
    assert cache.grow(lease, 1000)
    cache.correct_sizes(lease, [16] * 4)
    assert cache.assign_hashes(lease, names_of((0,)), [16]) == 0
    cache.release(lease)
    cache.revoke(lease)
    assert (cache.free, list(cache.hashes())) == (64, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_nothing_is_no_error(kind):
    cache = cache_of(kind, 0)
    lease = allocate(cache, (0,), [16])
    cache.release(lease)
    cache.store(names_of((0, 1)), [16] * 2)
    assert len(cache) == len(cache.hashes())


@pytest.mark.parametrize("kind", HONEST)
def test_what_is_released_or_revoked_twice_is_given_back_once(kind):
    cache = cache_of(kind, 160)
    lease = allocate(cache, (0, 1), [16] * 2, 16)
    other = allocate(cache, (1,), [16])
    cache.release(lease)
    free = cache.free
    cache.release(lease)
    cache.revoke(lease)
    assert cache.free == free
    assert cache.match(names_of((0, 1))) == 2
    cache.release(other)
    assert cache.free == cache.capacity


@pytest.mark.parametrize("kind", HONEST)
def test_what_requests_left_is_free_but_not_blank(kind):
    cache = cache_of(kind, 160)
    lease = allocate(cache, (0, 1, 0), [16] * 3)
    assert (cache.free, cache.blank) == (112, 112)
    cache.release(lease)
    assert (cache.free, cache.blank) == (160, 112)
    cache.discard(names_of((0, 1, 0))[2:])
    assert cache.free == 160
    cache.resize(32)
    assert (cache.free, cache.blank >= 0) == (32, True)


@pytest.mark.parametrize("kind", HONEST)
def test_output_that_comes_all_at_once_takes_the_space_of_what_was_cached(kind):
    cache = cache_of(kind, 96)
    for path in ((0,), (1,)):
        cache.release(allocate(cache, path, [32]))
    lease = allocate(cache, (2,), [32])
    assert cache.grow(lease, 80)
    assert (cache.free, cache.blank >= 0) == (16, True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_is_found_than_may_be_looked_up(kind):
    cache = cache_of(kind, 6400)
    cache.release(allocate(cache, (0, 1, 0, 1) * 2, [16] * 8))
    assert allocate(cache, (0, 1, 0, 1) * 2, [16] * 8).cached == 8
    lease = cache.allocate(names_of((0, 1, 0, 1) * 2), [16] * 8, 0, 3)
    assert lease.cached == 3


@pytest.mark.parametrize("kind", HONEST)
def test_generated_blocks_are_found_by_the_next_turn(kind):
    cache = cache_of(kind, 640)
    prompt, output = (0, 1, 1), (1, 0)
    lease = allocate(cache, prompt, [16] * 3, 16)
    assert cache.grow(lease, 3 * 16 + 5)
    assert cache.grow(lease, 5 * 16 + 2)
    cache.release(lease)
    assert cache.assign_hashes(lease, names_of(prompt + output)[3:], [16] * 2) == 2
    assert allocate(cache, (*prompt, *output, 1), [16] * 6).cached == 5


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_holds_can_be_told_to_another(kind):
    """Blocks are evicted in the same order there; what a model cannot tell it leaves out."""
    cache = cache_of(kind, 160)
    for path in ((0, 1, 0), (0, 1, 1), (1,)):
        cache.release(allocate(cache, path, [16] * len(path)))
    held = allocate(cache, (1, 1), [16] * 2)
    hashes, sizes = cache.contents()
    assert len(hashes) == len(sizes) == (len(cache) if kind[:2] == ("vllm", "lru") else 0)
    copy = cache_of(kind, 160)
    copy.restore(hashes, sizes, closed=cache.closed)
    assert set(copy.hashes()) == set(hashes)
    cache.release(held)
    if not hashes:
        return
    assert copy.closed is cache.closed
    for path in ((0, 0, 0), (1, 0, 0)):  # six blocks more: some have to go
        for each in (cache, copy):
            each.release(allocate(each, path, [16] * 3))
        assert set(copy.hashes()) == set(cache.hashes())


@pytest.mark.parametrize("kind", HONEST)
def test_growth_needs_space_and_takes_nothing_where_there_is_none(kind):
    cache = cache_of(kind, 64)
    first, second = allocate(cache, (0, 0), [16] * 2), allocate(cache, (1,), [16])
    for lease, computed in ((first, 32), (second, 16)):
        assert cache.grow(lease, computed)
    assert cache.free == 16
    assert not cache.grow(first, 32 + 17)
    assert cache.free == 16
    cache.release(second)
    assert cache.grow(first, 32 + 17)


@pytest.mark.parametrize("kind", [kind for kind in HONEST if kind[0] != "vllm"])
def test_growth_that_needs_nothing_succeeds_even_where_tokens_are_owed(kind):
    cache = cache_of(kind, 64)
    lease = allocate(cache, (0, 0, 0), [16] * 3, 16)
    cache.resize(16)
    assert cache.free < 0
    assert cache.grow(lease, 64)
    assert allocate(cache, (1,), [16]) is None
    cache.release(lease)
    assert cache.free == 16


@pytest.mark.parametrize("kind", HONEST)
def test_correcting_sizes_moves_tokens_between_blocks_and_space(kind):
    cache = cache_of(kind, 160)
    lease = allocate(cache, (0, 1), [20, 20], 8)
    assert cache.free == 160 - 48
    cache.correct_sizes(lease, [15, 15])
    assert (cache.free, cache.grow(lease, 48)) == (160 - 48, True)
    cache.release(lease)
    assert (cache.free, cache.match(names_of((0, 1)))) == (160, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_for_want_of_memory_what_would_be_evicted_next_goes_and_what_is_in_use_stays(kind):
    cache = cache_of(kind, 6400)
    for start in range(3):
        cache.release(allocate(cache, (start, 0, 1, 0), [16] * 4))
    used = allocate(cache, (0, 1), [16] * 2)
    before, capacity = len(cache), cache.capacity
    cache.coarsen(2)
    assert len(cache) <= before - 2
    assert cache.capacity == capacity
    assert len(cache) == len(cache.hashes())
    cache.coarsen(1000)
    if kind[0] not in BOOKLESS:
        assert cache.match(names_of((0, 1))) == 2
        cache.release(used)
        assert cache.free == cache.capacity
    assert len(cache) <= 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_block_size_that_an_engine_says_late_goes_for_what_comes(kind):
    cache = cache_of(kind, 640, 16)
    cache.release(allocate(cache, (0,) * 4, [16] * 4))
    cache.block = 64
    cache.resize(640)
    assert cache.match(names_of((0,) * 4)) == 4
    if kind[0] in BOOKLESS:
        return
    lease = allocate(cache, (1,), [64])
    assert cache.grow(lease, 65)
    cache.release(lease)
    rest = cache.assign_hashes(lease, names_of((1, 1))[1:], [64])
    assert (rest, cache.free) == (0, cache.capacity)
    assert cache.block == 64


@pytest.mark.parametrize("kind", KINDS)
def test_the_tier_in_host_memory_is_there_where_it_was_asked_for(kind):
    cache = cache_of(kind, 640)
    if not kind[2] or kind[0] in BOOKLESS:
        assert cache.offload_tier is None
        return
    cache.offload_tier.store(names_of((0, 1)), [16] * 2)
    assert cache.match(names_of((0, 1))) == 2
    cache.offload_tier.discard(names_of((0, 1)))
    assert list(cache.hashes()) == []


class Laws(RuleBasedStateMachine):
    """Random use, with blocks of many sizes and capacities that change."""

    leases = Bundle("leases")
    SIZES = (3, 5, 8, 13, 21, 34, 55)

    kind = KINDS[0]

    def __init__(self):
        super().__init__()
        self.honest = self.kind[0] not in BOOKLESS
        self.found = set()
        self.held = []
        self.paths_of = {}
        self.prompts = {}

    @initialize(capacity=st.integers(0, 200), block=st.sampled_from([1, 4, 16]))
    def create(self, capacity, block):
        self.cache = cache_of(self.kind, capacity, block)

    @rule(target=leases, path=paths, blank=st.integers(0, 20))
    def allocate(self, path, blank):
        before = self.cache.free, set(self.cache.hashes()), self.cache.match(names_of(path))
        lease = allocate(self.cache, path, self.SIZES, blank)
        if lease is None:
            now = self.cache.free, set(self.cache.hashes()), self.cache.match(names_of(path))
            assert now == before
            return multiple()
        assert lease.cached in {before[2], 0}
        self.held.append(lease)
        if lease.tokens + lease.reserved_tokens or not path:
            self.paths_of[lease] = self.prompts[lease] = path
        return lease

    @rule(lease=leases, tokens=st.integers(0, 60))
    def grow(self, lease, tokens):
        free = self.cache.free
        grown = self.cache.grow(lease, tokens)
        assert grown or self.cache.free == free

    @rule(lease=leases, sizes=numbers(7, 60))
    def correct_sizes(self, lease, sizes):
        free = self.cache.free
        self.cache.correct_sizes(lease, sizes[: len(self.paths_of.get(lease, ()))])
        assert self.cache.free == free

    @rule(lease=leases, more=paths)
    def assign_hashes(self, lease, more):
        path = self.paths_of.get(lease)
        if path is None:
            return
        names = names_of(path + more)[len(path) :]
        count = self.cache.assign_hashes(lease, names, self.SIZES)
        assert 0 <= count <= len(names)
        self.paths_of[lease] = path + more[:count]

    @rule(lease=consumes(leases), revoked=st.booleans(), more=paths)
    def leave(self, lease, revoked, more):
        (self.cache.revoke if revoked else self.cache.release)(lease)
        self.held = [each for each in self.held if each is not lease]
        self.assign_hashes(lease, more)
        self.paths_of.pop(lease, None)
        self.prompts.pop(lease, None)

    @rule(path=paths, start=st.integers(0, 6))
    def store(self, path, start):
        self.cache.store(names_of(path)[start:], self.SIZES)

    @rule(path=paths, start=st.integers(0, 6))
    def discard(self, path, start):
        self.cache.discard(names_of(path)[start:])

    @rule(capacity=st.integers(0, 300))
    def resize(self, capacity):
        self.cache.resize(capacity)
        if self.honest:
            assert self.cache.capacity == capacity

    @rule(blocks=st.integers(0, 5))
    def coarsen(self, blocks):
        before, capacity = len(self.cache), self.cache.capacity
        self.cache.coarsen(blocks)
        assert len(self.cache) <= before
        assert self.cache.capacity == capacity

    @rule(block=st.sampled_from([1, 4, 16]))
    def say_block_size(self, block):
        self.cache.block = block

    @invariant()
    def books_balance(self):
        check_invariants(self.cache, self.held)

    @invariant()
    def changes_add_up(self):
        changed = self.cache.changed
        evicted, stored = set(self.cache.take_evicted()), set(self.cache.take_stored())
        assert changed or not (evicted or stored)
        assert not self.cache.changed
        self.found -= evicted
        self.found |= stored
        hashes = self.cache.hashes()
        assert self.found == set(hashes)
        assert len(hashes) == len(set(hashes)) <= len(self.cache)

    @invariant()
    def what_is_matched_is_the_held_prefix(self):
        """Of two tiers, the first and what the second adds to it: they do not take turns."""
        found = set(self.cache.hashes())
        for path in [(0, 0, 0), (0, 1, 0, 1), (1, 1)]:
            names = names_of(path)
            prefix = next((at for at, name in enumerate(names) if name not in found), len(names))
            matched = self.cache.match(names)
            assert matched == prefix or (self.kind[2] and matched < prefix)

    @invariant()
    def closed_means_that_nothing_is_missing_before_anything(self):
        found = set(self.cache.hashes()) if self.cache.closed else ()
        for number in found:
            parent = (number - 1) // 3
            assert parent <= 1 or parent in found

    @invariant()
    def no_more_is_free_than_there_is(self):
        assert self.cache.blank <= self.cache.free <= self.cache.capacity

    @invariant()
    def what_requests_found_or_brought_stays(self):
        if self.honest:
            for path in self.prompts.values():
                assert self.cache.match(names_of(path)) == len(path)


@pytest.mark.parametrize("kind", KINDS)
def test_laws_hold(kind):
    laws = type("LawsOfOne", (Laws,), {"kind": kind})
    run_state_machine_as_test(
        laws, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )
