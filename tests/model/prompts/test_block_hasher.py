"""Blocks: where they end, what their hashes depend on, and what a cache may serve of them."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.hashing import FIRST_BLOCK_BYTES, block_ends
from epp.model.request import Prompt
from tests.strategies import SECRET

HASHER = BlockHasher(SECRET)
BLOCK_ENDS = block_ends(1 << 40, ())


def chain(data, model="m", salt="", *, exact=False, hasher=HASHER):
    return hasher.chain(Prompt(data, exact), model, salt)


def test_the_grid_grows_by_a_sixteenth_at_most():
    starts = (0, *BLOCK_ENDS)
    sizes = [end - start for start, end in zip(starts, BLOCK_ENDS, strict=False)]
    assert BLOCK_ENDS[0] == FIRST_BLOCK_BYTES
    assert min(sizes) == FIRST_BLOCK_BYTES
    assert sizes == sorted(sizes)
    assert all(
        size <= max(FIRST_BLOCK_BYTES, start / 16)
        for start, size in zip(starts, sizes, strict=False)
    )


def test_a_long_prompt_has_some_hundred_blocks():
    assert bisect_right(BLOCK_ENDS, 400_000) < 250
    assert BLOCK_ENDS[-1] >= 1 << 31
    assert len(BLOCK_ENDS) < 500


@pytest.mark.parametrize("block", [2, 16, 4096])
@pytest.mark.parametrize(
    ("blocks", "more", "lookup"),
    [(0, 0, 0), (1, 0, 0), (2, -1, 1), (2, 0, 1), (3, 0, 2)],
)
def test_the_last_of_token_ids_is_never_served(block, blocks, more, lookup):
    size = blocks * block + more
    found = chain(bytes(4 * size), exact=True, hasher=BlockHasher(SECRET, block))
    assert found.size == size
    assert len(found.hashes) == size // block
    assert found.lookup == lookup
    assert list(found.ends) == [block * (each + 1) for each in range(size // block)]


@given(st.integers(0, 20_000))
def test_counts_follow_the_grid(size):
    found = chain(bytes(size))
    assert len(found.hashes) == bisect_right(BLOCK_ENDS, size) == found.lookup
    assert all(0 <= each < 1 << 64 for each in found.hashes)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=12), st.integers(0, 12))
def test_text_is_cut_where_messages_end(messages, shared):
    def conversation(parts):
        marks = [len(b"".join(parts[: each + 1])) for each in range(len(parts))]
        return HASHER.chain(Prompt(b"".join(parts), marks=marks), "m", "")

    whole, start = conversation(messages), conversation(messages[:shared])
    assert set(whole.marks) <= set(whole.ends)
    assert list(whole.ends) == sorted(set(whole.ends))
    assert whole.hashes[: len(start.hashes)] == start.hashes
    assert not messages or whole.ends[-1] == whole.size


@given(st.binary(max_size=700), st.binary(max_size=300), st.binary(max_size=300))
def test_common_bytes_are_common_hashes(start, one, other):
    left, right = chain(start + one).hashes, chain(start + other).hashes
    common = len(start)
    for byte, twin in zip(one, other, strict=False):
        if byte != twin:
            break
        common += 1
    shared = bisect_right(BLOCK_ENDS, min(common, len(start + one), len(start + other)))
    assert left[:shared] == right[:shared]
    assert set(left[shared:]).isdisjoint(right[shared:])


@pytest.mark.parametrize(
    "other",
    [
        chain(b"a" * 1000, "lora"),
        chain(b"a" * 1000, "m", "salt"),
        chain(b"a" * 1000, exact=True),
        chain(b"a" * 1000, hasher=BlockHasher(b"another")),
        chain(b"a" * 1000, hasher=BlockHasher(b"")),
        chain(b"b" + b"a" * 999),
    ],
    ids=["model", "salt", "exact", "secret", "no secret", "first byte"],
)
def test_what_must_not_be_shared_is_not(other):
    mine = chain(b"a" * 1000)
    assert min(len(other.hashes), len(mine.hashes)) > 6
    assert set(mine.hashes).isdisjoint(other.hashes)


def test_model_and_salt_do_not_run_into_each_other():
    assert chain(b"a" * 128, "ab", "c").hashes != chain(b"a" * 128, "a", "bc").hashes


def test_the_same_secret_gives_the_same_hashes():
    assert chain(b"a" * 999).hashes == chain(b"a" * 999, hasher=BlockHasher(SECRET)).hashes


def test_the_same_secret_names_a_response_alike():
    one, same, other = (BlockHasher(secret) for secret in (SECRET, SECRET, b"another"))
    assert one.response_key("resp_1") == same.response_key("resp_1")
    assert len({each.response_key(name) for each in (one, other) for name in ("a", "b")}) == 4


def test_equal_blocks_at_different_places_have_different_hashes():
    hashes = chain(b"a" * 128 * 12).hashes
    assert len(set(hashes)) == 12
