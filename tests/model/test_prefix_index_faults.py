"""What cannot be asked of the prefix index, compiled and not: it says so, and stays whole."""

import pytest

from epp.model.prefix_index import index as prefix_index
from tests.native.built import loaded

INDEXES = [each.PrefixIndex for each in loaded("epp.model.prefix_index.index")]


@pytest.fixture(params=INDEXES, ids=lambda each: each.__module__)
def fresh(request):
    return request.param


def test_slots_are_not_without_end(fresh):
    index = fresh()
    for _ in range(prefix_index.MAX_SLOTS):
        index.add_slot()
    with pytest.raises(OverflowError, match="slots"):
        index.add_slot()
    index.add(prefix_index.MAX_SLOTS - 1, [1])
    assert index.match([1]).index(1) == prefix_index.MAX_SLOTS - 1


NO_HASHES = [
    ([-1], OverflowError),
    ([1, 1 << 64], OverflowError),
    ([1, 1 << 200], OverflowError),
    ([1, 2.5], TypeError),
    ([1, "2"], TypeError),
    ([1, None], TypeError),
    ("12", TypeError),
    (3, TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize(("hashes", "error"), NO_HASHES, ids=lambda each: repr(each)[:20])
@pytest.mark.parametrize("does", ["add", "remove"])
def test_what_is_no_hash_changes_nothing(fresh, does, hashes, error):
    index = fresh()
    slot = index.add_slot()
    index.add(slot, [1, 2, 3])
    calls = {
        "add": lambda: index.add(slot, hashes),
        "remove": lambda: index.remove(slot, hashes),
    }
    with pytest.raises(error):
        calls[does]()
    assert (len(index), index.held, index.match([1, 2, 3])) == (3, 3, [3])


@pytest.mark.parametrize("odd", [-1, 1 << 64, 1 << 200, 2.5, "2"], ids=repr)
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_no_hash_is_never_found(fresh, odd, closed):
    index = fresh()
    slot = index.add_slot()
    index.add(slot, [1, 2, 3])
    index.mark(slot, closed=closed)
    try:
        depths = index.match([1, 2, odd])
    except (OverflowError, TypeError):
        depths = [2]
    assert depths == [2]


@pytest.mark.parametrize("slot", [-1, 1, 2, 64, 1 << 15, 1 << 31, 1 << 62, 1 << 63, 1 << 200])
@pytest.mark.parametrize(
    "call",
    [
        lambda index, slot: index.add(slot, [1]),
        lambda index, slot: index.remove(slot, [1]),
        lambda index, slot: index.mark(slot, closed=True),
        lambda index, slot: index.remove_slot(slot, [1]),
    ],
    ids=["add", "remove", "mark", "close"],
)
def test_a_slot_that_is_not_open(fresh, call, slot):
    index = fresh()
    index.add(index.add_slot(), [1])
    index.remove_slot(index.add_slot(), ())
    with pytest.raises((ValueError, OverflowError)):
        call(index, slot)
    assert (index.held, index.match([1])) == (1, [1])


def test_what_cannot_be_read_is_not_closed(fresh):
    index = fresh()
    slot = index.add_slot()
    index.add(slot, [1])
    with pytest.raises(TypeError):
        index.remove_slot(slot, 5)
    assert index.match([1]) == [1]
