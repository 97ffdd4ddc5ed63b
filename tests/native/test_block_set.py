"""Sets of blocks, compiled and not, beside plain sets."""

import random
import tracemalloc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.built import loaded, needs

MODULE = "epp.model.caches.engine_blocks.block_set"
KINDS = [each.BlockSet for each in loaded(MODULE)]
needs_native = needs(MODULE, "the compiled set of blocks")
hashes = st.lists(st.integers(0, 40).map(lambda each: each * (2**64 - 1) // 40), max_size=20)


@pytest.fixture(params=KINDS, ids=lambda each: each.__module__)
def kind(request):
    return request.param


def many(count):
    rng = random.Random(count)  # noqa: S311 (hashes of blocks, no secrets)
    return [rng.getrandbits(64) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.__module__)
@given(st.lists(st.tuples(st.booleans(), hashes)))
def test_a_set_has_what_came_and_did_not_go(kind, steps):
    blocks, plain = kind(), set[int]()
    for comes, some in steps:
        if comes:
            blocks.add(some)
            plain.update(some)
        else:
            blocks.discard(some)
            plain.difference_update(some)
        assert len(blocks) == len(plain)
        assert all((each in blocks) == (each in plain) for each in some)
    assert sorted(chain.from_iterable(blocks.parts())) == sorted(plain)
    assert sorted(chain.from_iterable(blocks.drain())) == sorted(plain)


def test_no_part_is_large(kind):
    blocks, all_of_them = kind(), many(50_000)
    blocks.add(all_of_them)
    for steps in (blocks.parts(), blocks.drain()):
        parts = list(steps)
        assert max(map(len, parts)) < 2_000
        assert sorted(chain.from_iterable(parts)) == sorted(all_of_them)


def test_it_may_change_while_it_is_gone_through(kind):
    blocks, all_of_them = kind(), many(20_000)
    blocks.add(all_of_them)
    parts = blocks.parts()
    found = list(next(parts))
    blocks.discard(all_of_them[:10_000])
    blocks.add(many(30_000))
    found += chain.from_iterable(parts)
    assert set(all_of_them[10_000:]) <= set(found)
    assert len(blocks) == 40_000


@needs_native
def test_a_block_takes_few_bytes():
    blocks, all_of_them = KINDS[0](), many(100_000)
    tracemalloc.start()
    blocks.add(all_of_them)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 20 * len(all_of_them)


def test_other_things_are_no_blocks(kind):
    blocks = kind()
    with pytest.raises(TypeError):
        blocks.add(["a"])
