"""The whole-prompt cache: its rules as tables, and beside an oracle of plain lists."""

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

from epp.model.caches.whole_prompt import WholePromptCache
from tests.model.caches.lru_oracles import PromptOracle
from tests.model.invariants import check_invariants

BLOCK = 10


def cache_of(blocks):
    return WholePromptCache(blocks * BLOCK)


def allocate(cache, *names, blank=0):
    return cache.allocate(list(names), [BLOCK] * len(names), blank, len(names))


def run(cache, *names):
    lease = allocate(cache, *names)
    cache.release(lease)
    return lease.cached


def test_the_oldest_prompt_goes_whole():
    cache = cache_of(6)
    run(cache, 1, 2, 3)
    run(cache, 4, 5, 6)
    run(cache, 7)
    assert cache.take_evicted() == [1, 2, 3]


def test_using_a_prompt_makes_it_the_newest():
    cache = cache_of(6)
    run(cache, 1, 2)
    run(cache, 3, 4)
    assert run(cache, 1, 9) == 1
    run(cache, 7)
    assert cache.take_evicted() == [3, 4]


def test_equal_prefixes_are_stored_for_each_and_found_while_one_remains():
    cache = cache_of(5)
    run(cache, 1, 2)
    run(cache, 1, 3)
    run(cache, 8, 9)
    assert cache.take_evicted() == [2]
    assert cache.match([1, 3]) == 2


@pytest.mark.parametrize("order", [((1, 2), (1, 2, 3)), ((1, 2, 3), (1, 2))])
def test_a_prompt_that_another_contains_is_not_kept_beside_it(order):
    cache = cache_of(6)
    for prompt in order:
        run(cache, *prompt)
    run(cache, 7, 8, 9)
    assert cache.take_evicted() == []
    assert cache.match([1, 2, 3]) == 3


def test_output_belongs_to_the_prompt():
    cache = cache_of(6)
    lease = allocate(cache, 1, blank=5)
    assert cache.grow(lease, 35)
    assert cache.free == 25
    assert cache.assign_hashes(lease, [2], [BLOCK]) == 1
    cache.release(lease)
    assert cache.assign_hashes(lease, [3, 4], [BLOCK] * 2) == 1
    assert cache.match([1, 2, 3]) == 3
    run(cache, 7, 8)
    assert cache.take_evicted() == []
    run(cache, 9, 10)
    assert cache.take_evicted() == [1, 2, 3]
    assert cache.assign_hashes(lease, [4], [5]) == 0


def test_a_prompt_without_content_leaves_no_entry():
    cache = cache_of(2)
    for _ in range(3):
        cache.release(allocate(cache, blank=5))
    assert (cache.free, len(cache)) == (20, 0)
    check_invariants(cache)


def test_a_revoked_request_leaves_no_entry():
    cache = cache_of(6)
    run(cache, 1, 2)
    cache.revoke(allocate(cache, 1, 3))
    assert (sorted(cache.hashes()), cache.free) == ([1, 2], 60)


def test_reported_blocks_are_stored_and_evicted_ones_cut_a_prompt():
    cache = cache_of(6)
    cache.store([2, 3], [BLOCK] * 2)
    assert (cache.closed, cache.match([1, 2, 3])) == (False, 0)
    cache.store([2, 3], [BLOCK] * 2)
    cache.store(list(range(10, 20)), [BLOCK] * 10)
    assert cache.hashes() == [2, 3]
    cache.discard([3, 99])
    assert cache.hashes() == [2]
    cache.discard([2])
    assert (cache.closed, len(cache)) == (True, 0)
    check_invariants(cache)


class PromptsBesideOracle(RuleBasedStateMachine):
    """Whole prompts in lists and in the cache: they hold and forget the same."""

    requests = Bundle("requests")
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6)

    @initialize(blocks=st.integers(4, 20))
    def create(self, blocks):
        self.cache = cache_of(blocks)
        self.oracle = PromptOracle(blocks)
        self.names = {}

    def named(self, path):
        ends = range(1, len(path) + 1)
        return [self.names.setdefault(tuple(path[:end]), len(self.names)) for end in ends]

    @rule(target=requests, prompt=prompts)
    def start(self, prompt):
        if len(prompt) > self.oracle.total:
            return multiple()
        hits = self.oracle.hits(prompt)
        lease = allocate(self.cache, *self.named(prompt))
        assert (lease is not None) == self.oracle.start(prompt)
        if lease is None:
            return multiple()
        assert lease.cached == hits
        return lease, prompt

    @rule(request=requests, more=prompts)
    def generate(self, request, more):
        lease, prompt = request
        if not any(each is prompt for each in self.oracle.under_way):
            return
        before = len(prompt)
        grown = self.oracle.extend(prompt, more)
        assert self.cache.grow(lease, (before + len(more)) * BLOCK) == grown
        if grown:
            names = self.named(prompt)[before:]
            assert self.cache.assign_hashes(lease, names, [BLOCK] * len(names)) == len(names)

    @rule(request=consumes(requests))
    def finish(self, request):
        lease, prompt = request
        self.oracle.end(prompt)
        self.cache.release(lease)

    @invariant()
    def the_same_can_be_found(self):
        assert set(self.cache.hashes()) == {self.names[path] for path in self.oracle.found()}
        assert self.cache.free == self.oracle.free * BLOCK
        assert self.cache.closed


TestPromptsBesideOracle = PromptsBesideOracle.TestCase
TestPromptsBesideOracle.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
