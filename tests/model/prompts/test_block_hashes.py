"""Counted block hashes: compiled, and not, beside Python's own."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.block_hashes import BlockHashes
from tests.native.built import loaded, needs

KINDS = [each.BlockHashes for each in loaded("epp.model.prompts.block_hashes")]
either = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)

# Close together, far apart, and in places that wrap around the table's end.
hashes = st.sampled_from([0, 1, 2, 62, 63, 64, 126, 127, 128, 191, 1 << 63, (1 << 64) - 1])
prompts = st.lists(hashes | st.integers(0, (1 << 64) - 1), max_size=40)
steps = st.lists(st.tuples(st.booleans(), prompts), max_size=40)


@either
@given(steps)
def test_each_is_there_as_often_as_it_was_added_and_not_removed(kind, steps):
    made, oracle = kind(), Counter[int]()
    for adds, prompt in steps:
        if adds:
            made.add(prompt)
            oracle.update(prompt)
        else:
            gone = list(made.remove(prompt))
            there = +oracle
            oracle = there - Counter(prompt)
            assert sorted(gone) == sorted(there.keys() - oracle.keys())
        assert len(made) == len(oracle)
        assert set(made) == oracle.keys()
    for _, prompt in steps:
        assert list(made.missing(prompt)) == [each for each in prompt if each not in oracle]
        found = [position for position, each in enumerate(prompt, 1) if each in oracle]
        assert made.last(prompt) == (found[-1] if found else 0)
    for each, times in oracle.items():
        assert list(made.remove([each] * (times - 1))) == []
        assert list(made.remove([each])) == [each]


@either
def test_a_prompt_is_met_at_any_of_its_blocks(kind):
    made = kind()
    made.add(range(0, 64_000, 64))
    assert made.last([1, 2, 999 * 64, 3]) == 3
    assert made.last(range(1, 64)) == 0
    assert made.last([]) == 0


@either
def test_what_is_gone_is_returned_in_its_order(kind):
    made = kind()
    made.add([5, 3, 9, 3])
    assert list(made.remove([9, 3, 5, 7])) == [9, 5]
    assert list(made.missing([5, 3, 9])) == [5, 9]


@needs("epp.model.prompts.block_hashes", "what the compiled hashes refuse")
@pytest.mark.parametrize("method", ["add", "remove", "missing", "last"])
@pytest.mark.parametrize(("wrong", "error"), [(-1, OverflowError), ("x", TypeError)])
def test_what_is_not_a_hash_is_refused(method, wrong, error):
    made = BlockHashes()
    with pytest.raises(error):
        getattr(made, method)([1, wrong])
    assert len(made) == 0
