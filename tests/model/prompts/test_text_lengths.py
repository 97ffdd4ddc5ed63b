"""Lengths of blocks: compiled, and not."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.text_lengths import Kind
from tests.native.built import loaded

IMPLEMENTATIONS = loaded("epp.model.prompts.text_lengths")
extension, source = IMPLEMENTATIONS[0], IMPLEMENTATIONS[-1]
either = pytest.mark.parametrize("lengths", IMPLEMENTATIONS, ids=lambda each: each.__name__)


@either
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"", "prose"),
        (b"some words in a row", "prose"),
        (b"0123456789 {}[]()" * 9, "code"),
        ("слова и слова".encode(), "script"),
        (b"\\u4e2d\\u6587" * 200, "script"),
        (b"words " * 500 + b"0123456789" * 300 + b"words " * 500, "code"),
    ],
)
def test_kinds_by_a_sample_of_the_middle(lengths, text, kind):
    assert lengths.kind_of(text) == kind


@either
def test_each_kind_has_a_rate(lengths):
    assert lengths.DEFAULT_RATES.keys() == set(get_args(lengths.Kind)) == set(get_args(Kind))
    assert source.DEFAULT_RATES == lengths.DEFAULT_RATES


@either
def test_a_part_has_a_kind_of_its_own(lengths):
    text = b"words " * 100 + b"1234567890" * 100
    assert lengths.kind_of(text, 0, 600) == "prose"
    assert lengths.kind_of(text, 600) == "code"
    assert lengths.kind_of(text, 5000) == "prose"  # of nothing


@either
def test_between_known_lengths_tokens_are_spread_evenly_and_after_them_by_the_rate(lengths):
    found = lengths.spread([100, 200, 300, 400], [(1, 50), (2, 60)], 4.0)
    assert list(found) == [25, 50, 60, 85]
    assert list(lengths.spread([128, 256], [], 4.0)) == [32, 64]
    assert list(lengths.spread([], [], 4.0)) == []


@either
@pytest.mark.parametrize(
    "pins", [[(2, 1)], [(-1, 1)], [(0, 5), (1, 4)], [(1, 4), (0, 5)], [(0, 1), (0, 1)]]
)
def test_known_lengths_out_of_order_are_refused(lengths, pins):
    with pytest.raises(ValueError, match="pins must rise"):
        lengths.spread([100, 200], pins, 4.0)


@either
def test_sizes_and_proportions(lengths):
    assert list(lengths.sizes_between([3, 3, 10])) == [3, 0, 7]
    assert list(lengths.sizes_between([])) == []
    assert list(lengths.scaled([10, 20, 35], 70, 35)) == [20, 40, 70]
    with pytest.raises(ValueError, match="rise"):
        lengths.sizes_between([4, 3])
    with pytest.raises(ZeroDivisionError):
        lengths.scaled([1], 1, 0)


@either
@pytest.mark.parametrize("wrong", [None, [None], ["x"], 5])
def test_what_is_no_sequence_of_numbers_is_a_type_error(lengths, wrong):
    with pytest.raises(TypeError):
        lengths.sizes_between(wrong)
    with pytest.raises(TypeError):
        lengths.scaled(wrong, 1, 1)


@given(st.binary(max_size=4000), st.integers(-5, 4100), st.none() | st.integers(-5, 4100))
def test_both_see_the_same_kind(text, start, end):
    assert extension.kind_of(text, start, end) == source.kind_of(text, start, end)


@given(st.lists(st.sampled_from([b"word ", b"12 ", b"\\u00e9", b"\\\\u", "é".encode(), b"{"])))
def test_both_see_the_same_kind_of_mixtures(pieces):
    text = b"".join(pieces)
    assert extension.kind_of(text) == source.kind_of(text)


ends = st.sets(st.integers(1, 1 << 31), max_size=40).map(sorted)


@given(ends, st.floats(1, 16), st.data())
def test_both_spread_alike(ends, rate, data):
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(ends)))))) if ends else []
    tokens = sorted(data.draw(st.integers(0, 1 << 31)) for _ in places)
    pins = list(zip(places, tokens, strict=True))
    expected = source.spread(ends, pins, rate)
    assert list(extension.spread(ends, pins, rate)) == expected
    assert list(extension.sizes_between(expected)) == source.sizes_between(expected)


@given(ends, st.integers(0, 1 << 62), st.integers(1, 1 << 62))
def test_both_scale_alike(ends, total, believed):
    expected = source.scaled(ends, total, believed)
    if not ends or max(expected) < 1 << 64:
        assert list(extension.scaled(ends, total, believed)) == expected
