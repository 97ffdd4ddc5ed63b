"""The index of held blocks under much coming and going, compiled and not, beside plain sets."""

import random
from array import array
from collections import Counter

import pytest

from tests.native.built import loaded

INDEXES = [each.PrefixIndex for each in loaded("epp.model.prefix_index.index")]


@pytest.fixture(params=INDEXES, ids=lambda each: each.__module__)
def index(request):
    return request.param()


class Fleet:
    """Sets of names by slot; whatever is done to them is done to an index."""

    def __init__(self, index, slots):
        self.index = index
        self.held: dict[int, set[int]] = {index.add_slot(): set() for _ in range(slots)}

    def add(self, slot, names):
        self.index.add(slot, array("Q", names))
        self.held[slot].update(names)

    def remove(self, slot, names):
        self.index.remove(slot, array("Q", names))
        self.held[slot].difference_update(names)

    def check(self, names):
        """Hold what the index says of single blocks to what the sets say."""
        counts = Counter(name for held in self.held.values() for name in held)
        assert (len(self.index), self.index.held) == (len(counts), counts.total())
        for name in names:
            expected = [1 if name in held else 0 for held in self.held.values()]
            assert self.index.match((name,)) == expected


@pytest.mark.parametrize("bits", [12, 64], ids=["crowded", "spread out"])
def test_a_fleet_fills_and_empties(index, bits):
    rng = random.Random(bits)  # noqa: S311 (names of blocks, no secrets)
    fleet = Fleet(index, 5)
    names = [rng.getrandbits(bits) for _ in range(30_000)]
    for grow in (0.9, 0.5, 0.1):
        for _ in range(60):
            slot, at = rng.randrange(5), rng.randrange(29_000)
            part = names[at : at + rng.randrange(1000)]
            if rng.random() < grow:
                fleet.add(slot, part)
            else:
                fleet.remove(slot, part)
        fleet.check(rng.sample(names, 300))
    for slot in fleet.held:
        fleet.remove(slot, names)
    fleet.check(names[:300])
    assert index.held == 0


def test_as_many_sets_of_endpoints_as_blocks(index):
    rng = random.Random(8)  # noqa: S311 (names of blocks, no secrets)
    fleet = Fleet(index, 70)
    for slot in fleet.held:
        fleet.add(slot, rng.sample(range(3000), 1500))
    fleet.check(range(0, 3000, 17))
    for slot in fleet.held:
        fleet.remove(slot, rng.sample(range(3000), 2900))
    fleet.check(range(0, 3000, 17))


def test_used_bytes_follow_what_is_held(index):
    first, second = index.add_slot(), index.add_slot()
    empty = index.used_bytes
    index.add(first, range(10_000))
    once = index.used_bytes
    index.add(second, range(10_000))
    twice = index.used_bytes
    assert empty < once < twice
    index.remove(second, range(10_000))
    index.remove(first, range(10_000))
    assert index.used_bytes == empty


@pytest.mark.parametrize("fresh", INDEXES, ids=lambda each: each.__module__)
def test_the_budget_counts_every_block_at_every_endpoint(fresh):
    def filled(budget):
        index = fresh(budget)
        for count in (50, 80):
            index.add(index.add_slot(), range(count))
        return index

    used = filled(0).used_bytes
    assert filled(used).excess == 0
    assert filled(used - 1).excess == 1
    short = filled(used // 2)
    excess = short.excess
    assert 130 / 2 - 1 <= excess <= 130
    short.remove(0, range(50))
    assert short.excess < excess
    short.remove(1, range(80))
    assert short.excess == 0


class Meddler:
    """A sequence of hashes that changes the index while it is read."""

    def __init__(self, meddle):
        self.meddle = meddle

    def __iter__(self):
        self.meddle()
        yield 1
        self.meddle()
        yield 2


def test_the_index_may_change_while_hashes_are_read(index):
    slot = index.add_slot()
    index.add(slot, range(200))
    index.remove(
        slot, Meddler(lambda: [index.add(index.add_slot(), range(500)) for _ in range(40)])
    )
    assert [index.match((name,))[slot] for name in range(4)] == [1, 0, 0, 1]
    found = index.match(Meddler(index.add_slot))
    assert found[:2] == [0, 2]


WORDS = array("Q", [5, 1 << 63, 0, 7])


def named(value):
    """A test's id without addresses, which differ between the processes that run the tests."""
    return str(value).partition(" at 0x")[0]


@pytest.mark.parametrize(
    ("hashes", "names"),
    [
        (WORDS, WORDS),
        (memoryview(WORDS)[1:], WORDS[1:]),
        (memoryview(WORDS)[::2], WORDS[::2]),
        (memoryview(WORDS)[::-1], WORDS[::-1]),
        (memoryview(WORDS)[:0], []),
        (memoryview(WORDS.tobytes()).cast("Q"), WORDS),
        (array("q", [5, 7]), [5, 7]),
        (array("I", [5, 7]), [5, 7]),
        (b"57", [ord("5"), ord("7")]),
        (bytearray(16), [0]),
        (dict.fromkeys(WORDS), WORDS),
        (frozenset(WORDS), WORDS),
        (range(5, 8), range(5, 8)),
        ([True, 5], [1, 5]),
    ],
    ids=named,
)
def test_hashes_come_in_many_forms(index, hashes, names):
    slot = index.add_slot()
    index.add(slot, hashes)
    assert [index.match([name]) for name in names] == [[1]] * len(names)
    assert index.held == len(set(names))
    index.remove(slot, hashes)
    assert index.held == 0


@pytest.mark.parametrize(
    "hashes", [array("d", [5.0]), array("q", [-1]), memoryview(b"")], ids=named
)
def test_other_arrays(index, hashes):
    slot = index.add_slot()
    if len(hashes):
        with pytest.raises((TypeError, OverflowError)):
            index.add(slot, hashes)
    else:
        index.add(slot, hashes)
    assert index.held == 0
