"""The prefix index against brute force: holes, slots that are given back, everything in between."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epp.model.prefixindex import PrefixIndex


def fresh():
    return PrefixIndex()


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
        depths = self.index.match(chain)
        assert len(depths) == max(self.held, default=-1) + 1
        for slot, depth in enumerate(depths):
            assert depth == (longest(self.held[slot], chain) if slot in self.held else 0)

    @invariant()
    def it_keeps_nothing_that_nobody_holds(self):
        if hasattr(self, "held"):
            assert len(self.index) == len(set().union(*self.held.values()))


TestIndexBesideSets = IndexBesideSets.TestCase
TestIndexBesideSets.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
