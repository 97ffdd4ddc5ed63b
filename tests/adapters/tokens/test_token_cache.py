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


def test_the_size_is_that_of_the_ids_and_of_a_short_text():
    cache = TokenCache(1 << 20)
    cache.put("x" * 200, b"y" * 4000)
    assert 4200 < cache.size < 4800
    cache.put("東" * 200, b"")
    assert 4600 < cache.size < 5600


def test_a_long_text_is_not_kept():
    cache = TokenCache(1 << 20)
    for text in ("x" * 100_000, "x" * 100_001, "東" * 100_000, "\ud800" * 100_000):
        cache.put(text, text[:1].encode(errors="replace"))
    assert cache.size < 2000
    assert (cache.get("x" * 100_000), cache.get("東" * 100_000)) == (b"x", "東".encode())
    assert cache.get("\ud800" * 100_000) == b"?"
    assert cache.get("x" * 99_999) is None


def test_an_entry_larger_than_the_cache_evicts_nothing():
    cache = TokenCache(1000)
    cache.put("a", b"a")
    cache.put("x" * 2000, b"y" * 1000)
    assert cache.get("x" * 2000) is None
    assert (len(cache), cache.get("a")) == (1, b"a")
