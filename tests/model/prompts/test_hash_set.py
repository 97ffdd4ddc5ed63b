"""Sets of block hashes."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.built import loaded

KINDS = [each.HashSet for each in loaded("epp.model.prompts.hash_set")]
either = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
HASHES = st.one_of(st.integers(0, 20), st.integers(0, (1 << 64) - 1))


@either
def test_what_is_in_it_is_met(kind):
    held = kind()
    assert not held.meets([])
    held.add(7)
    held.add((1 << 64) - 1)
    held.add(0)
    assert held.meets([5, 7, 8])
    assert held.meets(array("Q", [1, 0]))
    assert held.meets((5, (1 << 64) - 1))
    assert not held.meets([5, 6])
    held.discard(7)
    assert not held.meets([5, 7, 8])
    assert len(held) == 2


@either
def test_adding_twice_and_taking_out_what_is_not_there_change_nothing(kind):
    held = kind()
    held.add(7)
    held.add(7)
    held.discard(8)
    assert len(held) == 1
    held.discard(7)
    held.discard(7)
    assert (len(held), held.meets([7])) == (0, False)


@either
def test_many_come_and_go(kind):
    held = kind()
    for number in range(50_000):
        held.add(number << 40)
    for number in range(0, 50_000, 2):
        held.discard(number << 40)
    assert len(held) == 25_000
    assert not held.meets([number << 40 for number in range(0, 50_000, 2)])
    assert all(held.meets([number << 40]) for number in range(1, 50_000, 2))


@either
@pytest.mark.parametrize("wrong", [-1, 1 << 64])
def test_what_is_no_hash_is_an_overflow(kind, wrong):
    with pytest.raises(OverflowError):
        kind().add(wrong)


@either
@pytest.mark.parametrize("wrong", ["7", None, 7.0])
def test_what_is_no_integer_is_a_type_error(kind, wrong):
    with pytest.raises(TypeError):
        kind().add(wrong)


@given(st.lists(st.tuples(st.sampled_from(["add", "discard"]), HASHES)), st.lists(HASHES))
def test_the_kernel_holds_what_its_twin_does(changes, lookup):
    sets = [kind() for kind in KINDS]
    for what, block_hash in changes:
        for each in sets:
            getattr(each, what)(block_hash)
    assert len({len(each) for each in sets}) == 1
    assert len({each.meets(lookup) for each in sets}) == 1
