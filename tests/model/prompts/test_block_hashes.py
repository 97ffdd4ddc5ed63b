"""Sets of block hashes: compiled, and not, beside Python's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.block_hashes import BlockHashes
from tests.native.built import loaded, needs

KINDS = [each.BlockHashes for each in loaded("epp.model.prompts.block_hashes")]
either = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)

# Close together, far apart, and in places that wrap around the table's end.
hashes = st.sampled_from([0, 1, 2, 62, 63, 64, 126, 127, 128, 191, 1 << 63, (1 << 64) - 1])
steps = st.lists(st.tuples(st.booleans(), hashes | st.integers(0, (1 << 64) - 1)), max_size=300)


@either
@given(steps)
def test_it_has_what_was_added_and_not_discarded(kind, steps):
    made, oracle = kind(), set[int]()
    for adds, each in steps:
        (made.add if adds else made.discard)(each)
        (oracle.add if adds else oracle.discard)(each)
        assert len(made) == len(oracle)
    for _, each in steps:
        assert made.has_any([each]) is (each in oracle)


@either
def test_a_prompt_is_met_at_any_of_its_blocks(kind):
    made = kind()
    for number in range(1000):
        made.add(number * 64)
    assert made.has_any([1, 2, 999 * 64])
    assert not made.has_any(range(1, 64))
    assert not made.has_any([])


@needs("epp.model.prompts.block_hashes", "what the compiled set of hashes refuses")
@pytest.mark.parametrize(("wrong", "error"), [(-1, OverflowError), ("x", TypeError)])
def test_what_is_not_a_hash_is_refused(wrong, error):
    with pytest.raises(error):
        BlockHashes().has_any([wrong])
