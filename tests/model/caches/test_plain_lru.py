"""llm-d-router's index as a cache model, in its units and with its errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.caches.plain_lru import ENTRY_TOKENS, PlainLru
from tests.model.caches.lru_oracles import LlmDRouterOracle
from tests.model.invariants import check_invariants

BLOCK = 16


def cache_of(capacity, block):
    return PlainLru(capacity, block)


def send(cache, names, partial=False):
    names = list(names)
    return cache.allocate(names, [BLOCK] * len(names), BLOCK * partial, len(names))


@pytest.mark.parametrize(
    ("capacity", "block", "believed"),
    [(16_000, 16, 64_000), (64_000, 64, 64_000), (4096, 128, 4096)],
)
def test_as_many_entries_as_blocks_are_more_tokens_than_there_are(capacity, block, believed):
    assert PlainLru(capacity, block).capacity == believed


def test_the_head_of_the_oldest_prompt_goes_first():
    cache = cache_of(4 * BLOCK, BLOCK)
    send(cache, range(1, 9))
    send(cache, range(11, 23))
    assert cache.take_evicted() == [1, 2, 3, 4]
    assert cache.match(list(range(1, 9))) == 0
    assert set(range(5, 9)) <= set(cache.hashes())


def test_only_whole_entries_are_found():
    cache = cache_of(2 * BLOCK, BLOCK)
    send(cache, range(1, 7))
    assert cache.match(list(range(1, 7))) == 4


def test_a_partial_entry_takes_a_place_of_its_own():
    cache = cache_of(2 * BLOCK, BLOCK)
    send(cache, range(1, 7))
    send(cache, range(11, 15))
    assert cache.take_evicted() == [1, 2, 3, 4]


def test_nothing_but_sending_a_prompt_changes_anything():
    cache = cache_of(8 * BLOCK, BLOCK)
    lease = send(cache, range(1, 5))
    before = cache.hashes()
    assert cache.grow(lease, 10_000)
    cache.correct_sizes(lease, [1] * 4)
    assert cache.assign_hashes(lease, [5, 6, 7, 8], [BLOCK] * 4) == 0
    cache.revoke(lease)
    cache.store([20, 21, 22, 23], [BLOCK] * 4)
    cache.discard(list(range(1, 5)))
    cache.resize(1000 * BLOCK)
    assert (cache.hashes(), cache.capacity) == (before, 8 * ENTRY_TOKENS)


def test_the_capacity_is_what_it_was_at_the_first_prompt():
    cache = cache_of(8 * BLOCK, BLOCK)
    cache.resize(2 * BLOCK)
    send(cache, range(1, 13))
    assert (cache.capacity, len(cache)) == (2 * ENTRY_TOKENS, 8)


def test_a_prompt_larger_than_the_cache_pushes_out_all_and_its_own_head():
    cache = cache_of(2 * BLOCK, BLOCK)
    send(cache, range(100, 104))
    lease = send(cache, range(1, 17))
    assert (lease.cached, cache.match(list(range(1, 17)))) == (0, 0)
    assert set(cache.hashes()) == set(range(9, 17))


def test_large_blocks_are_entries_of_their_own():
    cache = cache_of(300, 100)
    cache.allocate([1, 2, 3], [100, 70, 64], 0, 3)
    assert cache.match([1, 2, 3]) == 3
    cache.allocate([4], [100], 0, 1)
    assert cache.take_evicted() == [1]


@given(
    entries=st.integers(1, 6),
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), max_size=9), st.booleans()), max_size=12
    ),
)
def test_it_holds_what_an_oracle_holds(entries, prompts):
    cache, oracle = cache_of(entries * BLOCK, BLOCK), LlmDRouterOracle(entries)
    names: dict[tuple[int, ...], int] = {}
    for blocks, partial in prompts:
        paths = [tuple(blocks[:end]) for end in range(1, len(blocks) + 1)]
        send(cache, [names.setdefault(path, len(names)) for path in paths], partial)
        oracle.send(blocks, partial)
        assert set(cache.hashes()) == {names[path] for path in oracle.found()}
        check_invariants(cache)
