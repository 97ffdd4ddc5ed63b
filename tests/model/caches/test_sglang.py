"""SGLang's radix cache: its rules as tables."""

import pytest

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.sglang import STRATEGIES, RadixCache
from tests.model.caches.radix_oracle import KEYS
from tests.model.invariants import check_invariants

PAGE = 16


def cache_of(pages, strategy="lru", page=PAGE):
    return RadixCache(pages * page, page, strategy)


def allocate(cache, *names, partial=False, lookup=None, page=PAGE):
    """Admit a prompt of whole pages with these names, and part of one more."""
    lookup = len(names) - (not partial) if lookup is None else lookup
    return cache.allocate(list(names), [page] * len(names), page * partial, lookup)


def run(cache, *names, **kwargs):
    lease = allocate(cache, *names, **kwargs)
    cache.release(lease)
    return lease.cached


def test_a_repeated_prompt_hits_all_but_its_last_page():
    cache = cache_of(20)
    assert run(cache, 1, 2, 3) == 0
    assert run(cache, 1, 2, 3) == 2
    assert run(cache, 1, 2, 3, partial=True) == 3
    assert sorted(cache.hashes()) == [1, 2, 3]
    assert cache.free == cache.capacity


def test_equal_pages_are_kept_once():
    """Where vLLM keeps a second copy, SGLang frees it when it meets the first in the tree."""
    cache = cache_of(10)
    leases = [allocate(cache, 1, 2), allocate(cache, 1, 2)]
    assert cache.free == 8 * PAGE
    for lease in leases:
        cache.release(lease)
    assert (len(cache), cache.take_stored()) == (2, [1, 2])


def test_a_node_goes_whole_and_leaves_go_first():
    cache = cache_of(8)
    run(cache, 1, 2, 3)
    run(cache, 1, 2, 4, 5)
    cache.take_stored()
    allocate(cache, 9, 10)  # three are blank, one of which is kept in reserve
    assert cache.take_evicted() == []
    allocate(cache, 11)
    assert cache.take_evicted() == [3]
    assert cache.match([1, 2, 4, 5]) == 4


def test_no_node_is_split_by_eviction():
    cache = cache_of(8)
    run(cache, 1, 2, 3, 4, 5)
    run(cache, 6, 7)
    allocate(cache, 8, 9)
    assert cache.take_evicted() == [1, 2, 3, 4, 5]


def test_a_page_is_kept_in_reserve_for_what_is_extended():
    cache = cache_of(4)
    run(cache, 1, 2)
    allocate(cache, 8, 9)
    assert cache.take_evicted() == [1, 2]
    single = cache_of(4, page=1)
    single.release(single.allocate([1, 2], [1, 1], 0, 1))
    single.allocate([8, 9], [1, 1], 0, 1)
    assert single.take_evicted() == []


def test_what_runs_and_all_above_it_is_locked():
    cache = cache_of(6)
    held = allocate(cache, 1, 2, 3)
    run(cache, 1, 2, 4)
    assert allocate(cache, 6, 7, 8, 9) is None
    assert allocate(cache, 6, 7, 8) is not None
    assert cache.take_evicted() == [4]
    cache.release(held)
    assert cache.match([1, 2, 3]) == 3


def test_output_is_found_once_the_request_is_over_and_it_has_hashes():
    cache = cache_of(10)
    lease = allocate(cache, 1, 2, partial=True)
    assert cache.grow(lease, 40)
    assert cache.grow(lease, 40 + 30)
    assert cache.free == (10 - 5) * PAGE
    assert cache.assign_hashes(lease, [3, 4, 5], [PAGE] * 3) == 2
    assert cache.match([1, 2, 3, 4]) == 2
    cache.release(lease)
    assert cache.match([1, 2, 3, 4, 5]) == 4
    assert cache.assign_hashes(lease, [5], [PAGE]) == 0
    assert cache.free == cache.capacity


def test_output_can_get_its_hashes_later_bit_by_bit():
    cache = cache_of(20)
    lease = allocate(cache, 1)
    assert cache.grow(lease, PAGE)
    assert cache.grow(lease, 5 * PAGE - 1)
    cache.release(lease)
    assert (len(cache), cache.free) == (1, cache.capacity)
    assert cache.assign_hashes(lease, [2], [PAGE]) == 1
    assert cache.assign_hashes(lease, [3, 4, 5], [PAGE] * 3) == 2
    assert cache.assign_hashes(lease, [5], [PAGE]) == 0
    assert (cache.match([1, 2, 3, 4, 5]), cache.closed) == (4, True)


def test_hashes_of_blocks_that_are_held_already_free_the_copy():
    cache = cache_of(6)
    for _ in range(2):
        lease = allocate(cache, 1)
        cache.grow(lease, PAGE)
        cache.grow(lease, 3 * PAGE)
        cache.release(lease)
        cache.assign_hashes(lease, [2, 3], [PAGE] * 2)
    held = allocate(cache, 9, 10)
    assert cache.take_evicted() == []
    cache.release(held)
    assert sorted(cache.hashes()) == [1, 2, 3, 9, 10]


def test_evicted_output_gets_no_hashes():
    cache = cache_of(4)
    lease = allocate(cache, 1)
    cache.grow(lease, PAGE)
    cache.grow(lease, 2 * PAGE)
    cache.release(lease)
    run(cache, 7, 8)
    assert cache.assign_hashes(lease, [2], [PAGE]) == 0
    assert cache.match([1, 2]) == 1


def test_output_without_a_full_page_leaves_nothing():
    cache = cache_of(4)
    lease = allocate(cache, partial=True)
    cache.grow(lease, 5)
    cache.grow(lease, 15)
    cache.release(lease)
    assert (len(cache), cache.free, cache.assign_hashes(lease, [1], [PAGE])) == (0, 4 * PAGE, 0)


def test_pages_of_one_token_keep_the_end_of_the_prompt():
    """Blocks of sixteen name pages of one: what they do not reach is held without a name."""
    cache = cache_of(100, page=1)
    lease = cache.allocate([1, 2], [16, 16], 8, 2)
    cache.grow(lease, 40)
    cache.grow(lease, 50)
    cache.release(lease)
    assert cache.assign_hashes(lease, [3], [16]) == 1
    cache.allocate([7], [16], 34, 0)  # all that is free and blank
    assert cache.take_evicted() == []
    assert cache.match([1, 2, 3]) == 3


def test_growth_that_finds_no_space_changes_nothing():
    cache = cache_of(3)
    lease = allocate(cache, 1, 2)
    other = allocate(cache, 5)
    assert cache.grow(lease, 2 * PAGE)
    assert not cache.grow(lease, 3 * PAGE)
    assert (cache.free, cache.assign_hashes(lease, [3], [PAGE])) == (0, 0)
    cache.release(other)
    assert cache.grow(lease, 3 * PAGE)
    assert cache.take_evicted() == [5]


def test_a_batch_that_decodes_keeps_a_page_in_reserve_for_each():
    cache = cache_of(8)
    run(cache, 7, 8)
    first, second = allocate(cache, 1, 2), allocate(cache, 4)
    for lease, tokens in ((first, 2 * PAGE), (second, PAGE)):
        cache.grow(lease, tokens)
    assert cache.take_evicted() == []
    third = allocate(cache, 5)
    assert cache.take_evicted() == []
    assert cache.grow(third, PAGE)
    assert cache.grow(third, PAGE + 1)
    assert cache.take_evicted() == [7, 8]


def test_what_was_never_computed_is_dropped_unless_others_use_it():
    cache = cache_of(10)
    run(cache, 1)
    gone, other = allocate(cache, 1, 2, 3, 4), allocate(cache, 1, 2, 9)
    cache.revoke(gone)
    assert sorted(cache.hashes()) == [1, 2, 9]
    cache.revoke(other)  # so 2, which it found, was not computed either
    assert cache.hashes() == [1]
    assert cache.free == cache.capacity


def test_what_was_never_computed_stays_where_another_request_was():
    cache = cache_of(10)
    gone = allocate(cache, 1, 2, 3)
    run(cache, 1, 2, partial=True)
    cache.revoke(gone)
    assert sorted(cache.hashes()) == [1, 2]


def test_a_prompt_larger_than_the_cache_is_let_through_with_nothing():
    cache = cache_of(2)
    lease = allocate(cache, 1, 2, 3)
    assert (lease.cached, lease.keys) == (0, ())
    assert cache.grow(lease, 3 * PAGE)
    cache.release(lease)
    cache.revoke(lease)
    assert (cache.free, len(cache)) == (2 * PAGE, 0)


@pytest.mark.parametrize(
    ("strategy", "first"),
    [
        ("lru", 20),
        ("lfu", 20),
        ("fifo", 10),
        ("mru", 10),
        ("filo", 30),
        ("priority", 20),
        ("slru", 20),
    ],
)
def test_strategies_differ_in_what_goes_first(strategy, first):
    """Ten came first and was used last, and twice; thirty came last."""
    cache = cache_of(6, strategy)
    for name in (10, 20, 30, 10):
        run(cache, name, partial=True)
    cache.resize(2 * PAGE)
    assert cache.take_evicted() == [first]


def test_priority_prefers_prompts_to_outputs():
    cache = cache_of(10, "priority")
    run(cache, 1, 2)
    lease = allocate(cache, 3)
    cache.grow(lease, PAGE)
    cache.grow(lease, 2 * PAGE)
    cache.release(lease)
    cache.assign_hashes(lease, [4], [PAGE])
    run(cache, 5)
    cache.take_stored()
    cache.resize(4 * PAGE)
    assert cache.take_evicted() == [1, 2]
    cache.resize(2 * PAGE)
    assert cache.take_evicted() == [4]
    cache.resize(1 * PAGE)
    assert cache.take_evicted() == [5]


def test_every_strategy_has_an_oracle():
    assert STRATEGIES.keys() == KEYS.keys()


def test_an_unknown_strategy_is_an_error():
    with pytest.raises(KeyError):
        cache_of(4, "fastest")


def test_a_lease_of_another_cache_is_an_error():
    lease = allocate(BlockPool(4 * PAGE, PAGE), 1)
    with pytest.raises(TypeError):
        cache_of(4).release(lease)


def test_reported_blocks_are_stored_at_their_place_in_the_tree():
    cache = cache_of(10)
    cache.store([3, 4], [PAGE] * 2)
    assert (cache.closed, cache.match([1, 2, 3, 4])) == (False, 0)
    run(cache, 1, 2, 3, 4, 5)
    assert (cache.closed, len(cache)) == (True, 5)
    cache.store([4, 6], [PAGE] * 2)
    assert (cache.closed, cache.match([1, 2, 3, 4, 6])) == (True, 5)
    assert cache.take_stored() == [3, 4, 1, 2, 5, 6]


def test_what_follows_a_request_is_its_output():
    """The engine may tell of the end of a request before its client has heard of it, or after."""
    for early in (True, False):
        cache = cache_of(6)
        lease = allocate(cache, 1)
        cache.grow(lease, PAGE)
        cache.grow(lease, 3 * PAGE)
        if early:
            cache.store([1, 2, 3], [PAGE] * 3)
            assert cache.free == 3 * PAGE
        cache.release(lease)
        if not early:
            cache.store([1, 2], [PAGE] * 2)
            cache.store([2, 3], [PAGE] * 2)
        assert (cache.match([1, 2, 3]), cache.closed) == (3, True)
        run(cache, 7, 8)
        assert cache.take_evicted() == []


def test_output_that_is_reported_before_it_is_counted_is_stored():
    cache = cache_of(8)
    lease = allocate(cache, 1)
    cache.grow(lease, PAGE)
    cache.grow(lease, 2 * PAGE)
    cache.store([1, 2, 3], [PAGE] * 3)
    cache.release(lease)
    assert cache.match([1, 2, 3]) == 3
    assert run(cache, 1, 2, 3, partial=True) == 3
    assert cache.closed


def test_no_more_reported_blocks_are_stored_than_fit():
    cache = cache_of(3)
    held = allocate(cache, 1, 2)
    cache.store([8, 9], [PAGE] * 2)
    assert sorted(cache.hashes()) == [1, 2, 8]
    cache.release(held)


def test_what_the_engine_evicted_is_gone_and_cuts_off_what_followed():
    cache = cache_of(10)
    run(cache, 1, 2, 3, 4)
    cache.discard([4])
    assert (cache.match([1, 2, 3, 4]), cache.closed) == (3, True)
    cache.discard([2, 77])
    assert (sorted(cache.hashes()), cache.closed) == ([1, 3], False)
    assert cache.take_evicted() == [4, 2]
    assert run(cache, 1, 2, 3, 4) == 1
    assert (cache.match([1, 2, 3, 4]), cache.closed) == (4, True)


def test_what_is_in_use_is_not_discarded():
    cache = cache_of(10)
    lease = allocate(cache, 1, 2)
    cache.discard([2, 1])
    assert cache.match([1, 2]) == 2
    cache.release(lease)


def test_shrinking_under_load_is_paid_when_requests_end():
    cache = cache_of(6)
    held = allocate(cache, 1, 2, 3, 4)
    cache.resize(2 * PAGE)
    assert cache.free == -2 * PAGE
    assert allocate(cache, 9) is None
    assert cache.grow(held, 4 * PAGE)
    cache.release(held)
    assert (cache.free, len(cache)) == (2 * PAGE, 0)


def test_the_order_of_eviction_does_not_outgrow_the_cache():
    cache = cache_of(20)
    for turn in range(2000):
        run(cache, 1, 2 + turn % 5, partial=True)
    check_invariants(cache)


@pytest.mark.parametrize("running", [True, False])
def test_blocks_that_have_hashes_get_no_others(running):
    """Events name a page first, then the prompt that quotes the response names all of it."""
    cache = cache_of(8)
    lease = allocate(cache, 1)
    cache.grow(lease, PAGE)
    cache.grow(lease, 4 * PAGE)
    if not running:
        cache.release(lease)
    cache.store([1, 2], [PAGE] * 2)
    assert cache.assign_hashes(lease, [2, 3], [PAGE] * 2) == 2
    assert cache.assign_hashes(lease, [2, 3], [PAGE] * 2) == 2
    cache.release(lease)
    assert cache.match([1, 2, 3]) == 3
    assert sorted(cache.hashes()) == [1, 2, 3]
    assert cache.free == cache.capacity
