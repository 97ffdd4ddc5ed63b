"""The prefix index against brute force: holes, slots that are given back, everything in between."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epp.model.prefixindex import BUDGET, HASH_BYTES, HELD_BYTES, PrefixIndex


def fresh(budget=BUDGET):
    return PrefixIndex(budget)


def longest(held, chain):
    return next((depth for depth, each in enumerate(chain) if each not in held), len(chain))


def test_an_empty_index_knows_nobody():
    assert fresh().match([1, 2, 3]) == []


def test_an_empty_chain_is_held_to_depth_zero_by_all():
    index = fresh()
    index.add(index.open(), [1])
    index.open()
    assert index.match([]) == [0, 0]


def test_a_hole_ends_the_prefix():
    index = fresh()
    whole, holed, headless, none = (index.open() for _ in range(4))
    index.add(whole, [1, 2, 3, 4])
    index.add(holed, [1, 2, 4])
    index.add(headless, [2, 3, 4])
    assert index.match([1, 2, 3, 4]) == [4, 2, 0, 0]
    index.add(holed, [3])
    assert index.match([1, 2, 3, 4, 5]) == [4, 4, 0, 0]
    assert [whole, holed, headless, none] == [0, 1, 2, 3]


def test_a_slot_is_given_out_again_without_what_it_held():
    index = fresh()
    first, second = index.open(), index.open()
    index.add(first, [1, 2])
    index.add(second, [1])
    index.close(first, [1, 2])
    assert index.match([1, 2]) == [0, 1]
    assert index.open() == first
    assert index.match([1, 2]) == [0, 1]
    assert len(index) == 1


def test_adding_and_removing_twice_is_as_once():
    index = fresh()
    slot = index.open()
    index.add(slot, [1, 1, 2])
    index.add(slot, [1])
    assert len(index) == 2
    index.remove(slot, [1, 9])
    index.remove(slot, [1])
    assert (len(index), index.match([2])) == (1, [1])


@given(st.lists(st.sets(st.integers(0, 12)), max_size=70), st.lists(st.integers(0, 12), max_size=9))
def test_many_endpoints(holders, chain):
    index = fresh()
    for held in holders:
        index.add(index.open(), held)
    assert index.match(chain) == [longest(held, chain) for held in holders]
    assert len(index) == len(set().union(*holders))


def held_along(chain, depths):
    """Let each endpoint hold a chain to some depth, and more besides."""
    return [{*chain[:depth], *range(1000, 1000 + depth)} for depth in depths]


@given(
    st.integers(1, 300).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.integers(0, size), min_size=1, max_size=40)
        )
    ),
    st.data(),
)
def test_jumping_finds_what_walking_finds(given_chain, data):
    size, depths = given_chain
    chain = list(range(1, size + 1))
    index = fresh()
    for held in held_along(chain, depths):
        index.add(index.open(), held)
    assert index.match(chain) == depths
    jumping = data.draw(st.sets(st.integers(0, len(depths) - 1)))
    for slot in jumping:
        index.mark(slot, closed=True)
    assert index.match(chain) == depths
    for slot in jumping:
        index.mark(slot, closed=False)
    assert index.match(chain) == depths


def test_a_slot_with_holes_is_followed_block_by_block():
    index = fresh()
    closed, holed = index.open(), index.open()
    index.mark(closed, closed=True)
    index.add(closed, range(1, 101))
    index.add(holed, [*range(1, 31), *range(32, 101)])
    assert index.match(range(1, 101)) == [100, 30]


@pytest.mark.parametrize(("span", "found"), [(1, 2), (2, 2), (3, 5), (4, 5), (64, 5)])
def test_a_block_may_stand_for_those_before_it(span, found):
    index = fresh()
    slot, other = index.open(), index.open()
    index.add(slot, [1, 2, 5])
    index.add(other, [1, 2, 3])
    index.widen(slot, [(5, span)])
    assert index.match([1, 2, 3, 4, 5]) == [found, 3]
    index.widen(slot, [(5, 1)])
    assert index.match([1, 2, 3, 4, 5]) == [2, 3]


def test_what_a_block_stood_for_goes_with_it():
    index = fresh()
    slot = index.open()
    index.add(slot, [1, 4])
    index.widen(slot, [(4, 3)])
    index.remove(slot, [4])
    index.add(slot, [4])
    assert index.match([1, 2, 3, 4]) == [1]


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


def test_an_endpoint_that_leaves_is_forgotten_in_steps():
    index = fresh()
    first, second = index.open(), index.open()
    index.add(first, range(100_000))
    index.add(second, range(50_000, 50_100))
    index.mark(first, closed=True)
    held = Counted(range(100_000))
    index.close(first, held)
    assert index.match(range(10)) == [0, 0]
    assert held.read <= 2000
    assert index.open() == 2, "its slot is not free yet"
    steps = 0
    while len(index) > 100:
        before = held.read
        index.add(second, [50_000])
        assert held.read - before <= 2000
        steps += 1
    assert steps >= 50
    index.add(second, [50_000])
    assert index.open() == first
    assert index.match(range(50_000, 50_100)) == [0, 100, 0]
    assert index.match(range(10)) == [0, 0, 0]


def test_the_budget_counts_every_block_at_every_endpoint():
    index = fresh(100 * HELD_BYTES + 80 * HASH_BYTES)
    slots = [index.open() for _ in range(2)]
    index.add(slots[0], range(50))
    index.add(slots[0], range(40, 50))
    index.add(slots[1], range(50))
    assert index.excess == 0
    index.add(slots[1], range(50, 80))
    assert index.excess == 30
    index.remove(slots[1], range(40, 80))
    index.remove(slots[1], range(40, 80))
    assert index.excess == 0
    index.close(slots[0], range(50))
    index.add(slots[1], range(50, 150))
    assert index.excess == 40 + -(-60 * HASH_BYTES // HELD_BYTES)


hashes = st.lists(st.integers(0, 9), max_size=6)


class IndexBesideSets(RuleBasedStateMachine):
    """One set a slot says what the index must."""

    @initialize()
    def start(self):
        self.index = fresh()
        self.held = {}

    @precondition(lambda self: len(self.held) < 5)
    @rule()
    def open(self):
        slot = self.index.open()
        assert slot == min(set(range(6)) - self.held.keys())
        self.held[slot] = set()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def close(self, data):
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.index.close(slot, self.held.pop(slot))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), names=hashes)
    def add(self, data, names):
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.index.add(slot, names)
        self.held[slot].update(names)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), names=hashes)
    def remove(self, data, names):
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.index.remove(slot, names)
        self.held[slot].difference_update(names)

    @rule(chain=hashes)
    def ask(self, chain):
        for slot, held in self.held.items():
            places = {place for place, each in enumerate(chain) if each in held}
            self.index.mark(slot, closed=len(places) == longest(held, chain))
        depths = self.index.match(chain)
        assert len(depths) == max(self.held, default=-1) + 1
        for slot, depth in enumerate(depths):
            assert depth == (longest(self.held[slot], chain) if slot in self.held else 0)

    @invariant()
    def it_keeps_nothing_that_nobody_holds(self):
        if hasattr(self, "held"):
            assert len(self.index) == len(set().union(*self.held.values()))
            held = sum(map(len, self.held.values()))
            assert self.index._held == held


TestIndexBesideSets = IndexBesideSets.TestCase
TestIndexBesideSets.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
