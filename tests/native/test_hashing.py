"""Hashes of blocks: the kernel and its twin, against the library and against each other."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.native.built import loaded

HASHINGS = loaded("epp.model.prompts.hashing")
BLOCK_ENDS = HASHINGS[-1].block_ends(1 << 40, ())
HIGHEST = (1 << 64) - 1
parents = st.integers(0, HIGHEST)


@pytest.fixture(params=HASHINGS, ids=lambda each: each.__name__)
def hashing(request):
    return request.param


def chained(parent, data, ends):
    """Hash block by block, in the plainest way."""
    hashes = []
    for start, end in pairwise([0, *ends]):
        parent = xxh3_64_intdigest(data[start:end], parent)
        hashes.append(parent)
    return hashes


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 240, 241, 4096, 70_001, 400_000])
def test_text_is_cut_on_the_grid(hashing, size):
    text = bytes(range(256)) * (size // 256 + 1)
    hashes, ends = hashing.text_chain(7, text[:size], ())
    assert list(ends) == [end for end in BLOCK_ENDS if end <= size]
    assert list(hashes) == chained(7, text, ends)


@given(
    parent=parents, text=st.binary(max_size=3000), marks=st.lists(st.integers(0, 3100), max_size=20)
)
def test_text_is_cut_at_marks_too(parent, text, marks):
    inside = {mark for mark in marks if 0 < mark <= len(text)}
    for hashing in HASHINGS:
        for given_marks in (marks, sorted(marks), tuple(marks)):
            hashes, ends = hashing.text_chain(parent, text, given_marks)
            assert list(ends) == sorted(inside | {end for end in BLOCK_ENDS if end <= len(text)})
            assert list(hashes) == chained(parent, text, ends)


@given(
    parent=parents,
    data=st.binary(max_size=600),
    cuts=st.sets(st.integers(1, 150), max_size=12),
    unit=st.integers(1, 4),
)
def test_blocks_follow_each_other(parent, data, cuts, unit):
    ends = sorted(cut for cut in cuts if cut * unit <= len(data))
    expected = chained(parent, data, [end * unit for end in ends])
    for hashing in HASHINGS:
        assert list(hashing.extend(parent, data, ends, unit)) == expected


@given(
    data=st.binary(max_size=600), first=st.integers(1, 40), step=st.integers(1, 40), stop=st.data()
)
def test_a_range_is_like_its_numbers(data, first, step, stop):
    ends = range(first, stop.draw(st.integers(0, len(data) + 1)), step)
    for hashing in HASHINGS:
        assert list(hashing.extend(1, data, ends)) == list(hashing.extend(1, data, list(ends)))


def test_a_chain_goes_on_from_any_of_its_blocks(hashing):
    data = bytes(range(200))
    whole = hashing.extend(5, data, range(10, 201, 10))
    for done in range(1, 20):
        rest = hashing.extend(whole[done - 1], data[done * 10 :], range(10, 201 - done * 10, 10))
        assert list(rest) == list(whole[done:])


@pytest.mark.parametrize(
    "ends",
    [
        [0],
        [5, 5],
        [5, 4],
        [101],
        [50, 101],
        [1 << 62],
        range(0, 100, 10),
        range(10, 200, 10),
        range(100, 0, -10),
        range(10, 1 << 80, 1 << 70),
        range(1 << 40),
    ],
    ids=str,
)
def test_ends_are_within_the_data_and_rise(hashing, ends):
    with pytest.raises(ValueError, match="one after the other"):
        hashing.extend(1, bytes(100), ends)


@pytest.mark.parametrize("ends", [[-1], [1 << 64], [1 << 200]], ids=str)
def test_ends_that_are_no_ends(hashing, ends):
    with pytest.raises((ValueError, OverflowError)):
        hashing.extend(1, bytes(100), ends)


@pytest.mark.parametrize("unit", [0, -1])
def test_a_unit_has_bytes(hashing, unit):
    with pytest.raises(ValueError, match="unit"):
        hashing.extend(1, bytes(100), [1], unit)


@pytest.mark.parametrize("unit", [3, 33, 101, 1 << 40, (1 << 63) - 1])
def test_a_unit_is_a_unit(hashing, unit):
    with pytest.raises(ValueError, match="one after the other"):
        hashing.extend(1, bytes(100), [34], unit)


@pytest.mark.parametrize("parent", [-1, 1 << 64, 1 << 100])
def test_a_parent_has_64_bits(hashing, parent):
    with pytest.raises(OverflowError):
        hashing.extend(parent, b"ab", [1])
    with pytest.raises(OverflowError):
        hashing.text_chain(parent, b"ab", ())


@pytest.mark.parametrize(
    "call",
    [
        lambda hashing: hashing.extend("1", b"ab", [1]),
        lambda hashing: hashing.extend(1, "ab", [1]),
        lambda hashing: hashing.extend(1, b"ab", ["a"]),
        lambda hashing: hashing.extend(1, b"ab", 1),
        lambda hashing: hashing.extend(1, b"ab", None),
        lambda hashing: hashing.text_chain(1, "ab" * 100, ()),
        lambda hashing: hashing.text_chain(None, b"ab", ()),
        lambda hashing: hashing.text_chain(1, b"ab", 3),
        lambda hashing: hashing.text_chain(1, b"ab", ("a",)),
    ],
)
def test_wrong_types(hashing, call):
    with pytest.raises(TypeError):
        call(hashing)


@pytest.mark.parametrize("mark", [0, -1, 301, 1 << 63, -(1 << 63), 1 << 64, 1 << 200])
def test_marks_outside_of_the_text_are_passed_over(hashing, mark):
    text = bytes(300)
    plain = hashing.text_chain(3, text, (200,))
    assert hashing.text_chain(3, text, (200, mark)) == plain
    assert hashing.text_chain(3, text, (mark, 200)) == plain


def test_many_marks(hashing):
    text = bytes(range(250)) * 8
    hashes, ends = hashing.text_chain(9, text, range(1, 2001))
    assert list(ends) == list(range(1, 2001))
    assert list(hashes) == chained(9, text, ends)
