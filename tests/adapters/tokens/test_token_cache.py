"""The cache holds what it was given last, and no more than it may."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from epp.adapters.tokens.local.token_cache import TokenCache

STEPS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60)


@given(steps=STEPS, capacity=st.integers(0, 2000))
def test_the_least_recently_used_is_evicted(steps, capacity):
    cache = TokenCache(capacity)
    plain: OrderedDict[str, bytes] = OrderedDict()
    room = 0
    for text, writes in steps:
        if writes:
            before = cache.size
            cache.put(text, text.encode())
            room = room or cache.size - before
            plain.setdefault(text, text.encode())
            while room and len(plain) > capacity // room:
                plain.popitem(last=False)
            if not room:
                plain.clear()
        else:
            assert cache.get(text) == plain.get(text)
            if text in plain:
                plain.move_to_end(text)
        assert cache.size <= capacity
        assert len(cache) == len(plain)


def test_the_size_is_that_of_text_and_ids():
    cache = TokenCache(1 << 20)
    cache.put("x" * 1000, b"y" * 4000)
    assert 5000 < cache.size < 6000
    cache.put("東" * 1000, b"")
    assert 7000 < cache.size < 8500


def test_an_entry_larger_than_the_cache_evicts_nothing():
    cache = TokenCache(1000)
    cache.put("a", b"a")
    cache.put("x" * 2000, b"")
    assert cache.get("x" * 2000) is None
    assert (len(cache), cache.get("a")) == (1, b"a")
