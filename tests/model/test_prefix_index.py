"""The prefix index, compiled and not, against sets: holes, slots given back, all in between."""

import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.native.built import loaded

INDEXES = [each.PrefixIndex for each in loaded("epp.model.prefix_index.index")]


@pytest.fixture(params=INDEXES, ids=lambda each: each.__module__)
def fresh(request):
    return request.param


def longest(held, chain):
    return next((depth for depth, each in enumerate(chain) if each not in held), len(chain))


def test_an_empty_index_holds_nothing(fresh):
    assert fresh().match([1, 2, 3]) == []


def test_an_empty_chain_is_held_to_depth_zero_by_all(fresh):
    index = fresh()
    index.add(index.add_slot(), [1])
    index.add_slot()
    assert index.match([]) == [0, 0]


def test_a_hole_ends_the_prefix(fresh):
    index = fresh()
    whole, holed, headless, none = (index.add_slot() for _ in range(4))
    index.add(whole, [1, 2, 3, 4])
    index.add(holed, [1, 2, 4])
    index.add(headless, [2, 3, 4])
    assert index.match([1, 2, 3, 4]) == [4, 2, 0, 0]
    index.add(holed, [3])
    assert index.match([1, 2, 3, 4, 5]) == [4, 4, 0, 0]
    assert [whole, holed, headless, none] == [0, 1, 2, 3]


def test_a_slot_is_given_out_again_without_what_it_held(fresh):
    index = fresh()
    first, second = index.add_slot(), index.add_slot()
    index.add(first, [1, 2])
    index.add(second, [1])
    index.remove_slot(first, [1, 2])
    assert index.match([1, 2]) == [0, 1]
    assert index.add_slot() == first
    assert index.match([1, 2]) == [0, 1]
    assert (len(index), index.held) == (1, 1)


def test_adding_and_removing_twice_is_as_once(fresh):
    index = fresh()
    slot = index.add_slot()
    index.add(slot, [1, 1, 2])
    index.add(slot, [1])
    assert (len(index), index.held) == (2, 2)
    index.remove(slot, [1, 9])
    index.remove(slot, [1])
    assert (len(index), index.held, index.match([2])) == (1, 1, [1])


@pytest.mark.parametrize("name", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("kind", [list, tuple, lambda names: array("Q", names)])
def test_any_64_bits_are_a_hash(fresh, name, kind):
    index = fresh()
    slot = index.add_slot()
    index.add(slot, kind([name, 77]))
    assert index.match(kind([name, 77, 5])) == [2]
    index.remove(slot, kind([name]))
    assert (index.match(kind([name])), index.match(kind([77]))) == ([0], [1])


@given(
    st.lists(st.sets(st.integers(0, 12)), max_size=200), st.lists(st.integers(0, 12), max_size=9)
)
def test_many_endpoints(holders, chain):
    for fresh in INDEXES:
        index = fresh()
        for held in holders:
            index.add(index.add_slot(), held)
        assert index.match(chain) == [longest(held, chain) for held in holders]
        assert len(index) == len(set().union(*holders))


def held_along(chain, depths):
    """Let each endpoint hold a chain to some depth, and more besides."""
    return [{*chain[:depth], *range(1000, 1000 + depth)} for depth in depths]


@given(
    st.integers(1, 300).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.integers(0, size), min_size=1, max_size=150)
        )
    ),
    st.data(),
)
def test_jumping_finds_what_walking_finds(given_chain, data):
    size, depths = given_chain
    chain = list(range(1, size + 1))
    jumping = data.draw(st.sets(st.integers(0, len(depths) - 1)))
    for fresh in INDEXES:
        index = fresh()
        for held in held_along(chain, depths):
            index.add(index.add_slot(), held)
        assert index.match(chain) == depths
        for slot in jumping:
            index.mark(slot, closed=True)
        assert index.match(chain) == depths
        for slot in jumping:
            index.mark(slot, closed=False)
        assert index.match(chain) == depths


def test_every_depth_of_a_long_chain_is_found(fresh):
    index = fresh()
    chain = random.Random(3).sample(range(1 << 62), 1000)  # noqa: S311 (names, no secrets)
    for depth in range(1, 1001):
        slot = index.add_slot()
        index.add(slot, chain[:depth])
        index.mark(slot, closed=True)
    assert index.match(chain) == list(range(1, 1001))


def test_a_slot_with_holes_is_followed_block_by_block(fresh):
    index = fresh()
    closed, holed = index.add_slot(), index.add_slot()
    index.mark(closed, closed=True)
    index.add(closed, range(1, 101))
    index.add(holed, [*range(1, 31), *range(32, 101)])
    assert index.match(range(1, 101)) == [100, 30]


class Counted:
    """Blocks of an endpoint that left, and how many of them were read."""

    def __init__(self, blocks):
        self.blocks = iter(blocks)
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        block = next(self.blocks)
        self.read += 1
        return block


def test_a_removed_endpoint_is_purged_in_steps(fresh):
    index = fresh()
    first, second = index.add_slot(), index.add_slot()
    index.add(first, range(100_000))
    index.add(second, range(50_000, 50_100))
    index.mark(first, closed=True)
    held = Counted(range(100_000))
    index.remove_slot(first, held)
    assert index.match(range(10)) == [0, 0]
    assert held.read <= 2000
    assert index.add_slot() == 2, "its slot is not free yet"
    steps = 0
    while len(index) > 100:
        before = held.read
        index.add(second, [50_000])
        assert held.read - before <= 2000
        steps += 1
    assert steps >= 50
    index.add(second, [50_000])
    assert index.add_slot() == first
    assert index.match(range(50_000, 50_100)) == [0, 100, 0]
    assert index.match(range(10)) == [0, 0, 0]


@pytest.mark.parametrize("count", [63, 64, 65, 1000])
def test_there_is_room_for_many_endpoints(fresh, count):
    index = fresh()
    slots = [index.add_slot() for _ in range(count)]
    for slot in slots:
        index.add(slot, [1, *range(10, 10 + slot)])
        index.mark(slot, closed=slot % 2 == 0)
    assert slots == list(range(count))
    expected = [min(3, slot + 1) for slot in slots]
    assert index.match([1, 10, 11]) == expected
    for slot in slots[::3]:
        index.remove_slot(slot, [1, *range(10, 10 + slot)])
        expected[slot] = 0
    assert index.match([1, 10, 11])[: count - 3] == expected[: count - 3]
    while index.held > sum(slot + 1 for slot in slots if slot % 3):
        index.purge(100_000)
    assert sorted(index.add_slot() for _ in slots[::3]) == slots[::3]


hashes = st.lists(st.integers(0, 9), max_size=6)


class IndexBesideSets(RuleBasedStateMachine):
    """One set a slot says what each index must."""

    @initialize()
    def start(self):
        self.indexes = [fresh() for fresh in INDEXES]
        self.held = {}

    def each(self, call):
        """Let every index do the same; return what all of them say."""
        said = [call(index) for index in self.indexes]
        assert all(each == said[0] for each in said)
        return said[0]

    @precondition(lambda self: len(self.held) < 5)
    @rule()
    def open(self):
        slot = self.each(lambda index: index.add_slot())
        assert slot == min(set(range(6)) - self.held.keys())
        self.held[slot] = set()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def close(self, data):
        slot = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held.pop(slot)
        self.each(lambda index: index.remove_slot(slot, held))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), names=hashes)
    def add(self, data, names):
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.each(lambda index: index.add(slot, array("Q", names)))
        self.held[slot].update(names)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), names=hashes)
    def remove(self, data, names):
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.each(lambda index: index.remove(slot, names))
        self.held[slot].difference_update(names)

    @rule(chain=st.lists(st.integers(0, 9), max_size=6, unique=True))
    def ask(self, chain):
        expected = [0] * (max(self.held, default=-1) + 1)
        for slot, names in self.held.items():
            places = {place for place, each in enumerate(chain) if each in names}
            closed = len(places) == longest(names, chain)
            self.each(lambda index, slot=slot, closed=closed: index.mark(slot, closed=closed))
            expected[slot] = longest(names, chain)
        assert self.each(lambda index: index.match(chain)) == expected

    @invariant()
    def it_keeps_nothing_that_nobody_holds(self):
        if hasattr(self, "held"):
            assert self.each(len) == len(set().union(*self.held.values()))
            assert self.each(lambda index: index.held) == sum(map(len, self.held.values()))


TestIndexBesideSets = IndexBesideSets.TestCase
TestIndexBesideSets.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
