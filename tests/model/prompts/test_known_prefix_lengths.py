"""Known lengths of prefixes: compiled, and not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.hashing import BlockHash
from tests.native.built import loaded

KINDS = [each.KnownPrefixLengths for each in loaded("epp.model.prompts.known_prefix_lengths")]
either = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)


@either
def test_recorded_lengths_are_found_at_their_blocks(kind):
    pins = kind(4)
    pins.record(7, 100)
    pins.record(9, 150)
    assert pins.among([5, 7, 8, 9]) == [(1, 100), (3, 150)]
    assert pins.among([]) == []
    assert len(pins) == 2


@either
def test_lengths_above_that_of_a_later_block_are_ignored(kind):
    pins = kind(4)
    for block, tokens in ((1, 80), (2, 100), (3, 1 << 24), (4, 90), (5, 90)):
        pins.record(block, tokens)
    assert pins.among([1, 2, 3, 4, 5]) == [(0, 80), (3, 90), (4, 90)]


@either
def test_a_length_that_may_be_too_great_only_lowers_a_recorded_one(kind):
    pins = kind(4)
    pins.record_at_most(1, 50)
    pins.record_at_most(1, 70)
    assert pins.among([1]) == [(0, 50)]
    pins.record_at_most(1, 20)
    assert pins.among([1]) == [(0, 20)]
    pins.record(1, 60)
    assert pins.among([1]) == [(0, 60)]


@either
def test_what_was_lowered_rises_again_up_to_what_it_was(kind):
    pins = kind(4)
    assert pins.most(1) == -1
    for tokens, known in ((50, 50), (44, 44), (48, 48), (70, 50)):
        pins.record_at_most(1, tokens)
        assert pins.among([1]) == [(0, known)]
        assert pins.most(1) == 50


@either
def test_a_counted_length_stays(kind):
    pins = kind(1)
    pins.record(1, 50)
    pins.record(2, 60)  # it is an old one now
    for tokens in (0, 40, 70):
        pins.record_at_most(1, tokens)
        assert pins.among([1]) == [(0, 50)]
        assert pins.most(1) == 50


@either
def test_used_lengths_outlive_unused_ones(kind):
    pins = kind(10)
    pins.record(1, 5)
    for number in range(100, 150):
        pins.record(number, number)
        assert pins.among([1]) == [(0, 5)]
    assert pins.among([100]) == []
    assert 10 <= len(pins) <= 20


@either
@pytest.mark.parametrize("wrong", [-1, 1 << 62, 1 << 70])
def test_a_length_that_cannot_be_is_an_overflow(kind, wrong):
    pins = kind(4)
    with pytest.raises(OverflowError):
        pins.record(1, wrong)
    assert len(pins) == 0


@either
def test_there_must_be_room(kind):
    with pytest.raises(ValueError, match="room"):
        kind(0)


keys = st.sampled_from([0, 1, 2, 3, 64, 128, 192, (1 << 64) - 1, 1 << 63, 77, 141])
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["record", "record_at_most"]), keys, st.integers(0, 300)),
        st.tuples(st.just("most"), keys),
        st.tuples(st.just("among"), st.lists(keys, max_size=6)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 6))
def test_the_extension_does_what_its_source_does(script, room):
    pair = KINDS[0](room), KINDS[-1](room)
    for verb, *given_ in script:
        said = [getattr(pins, verb)(*given_) for pins in pair]
        assert said[0] == said[1]
        assert len(pair[0]) == len(pair[1])


@either
def test_thousands_are_found_again(kind):
    pins = kind(5000)
    hashes = [BlockHash(number * 64) for number in range(5000)]
    for number, block_hash in enumerate(hashes):
        pins.record(block_hash, number)
    assert pins.among(hashes) == [(number, number) for number in range(5000)]
