"""The format of recordings: blocks by reference, words that cannot be looked up, versions."""

from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Prompt
from epp.protocol.recording import (
    KEY_BYTES,
    VERSION,
    PromptWriter,
    Pseudonyms,
    RecordedPrompt,
    RecordingHeader,
    decode_header,
    decode_line,
    encode_line,
    unpacked,
)

KEY = bytes(range(KEY_BYTES))
HEADER = RecordingHeader(version=VERSION, salt="5a", part=1, started="2026-01-01", pool="p")


def resolved(prompts):
    """The hashes, ends and marks of prompts of one part, as their references say."""
    known: dict[int, tuple[list[int], list[int], list[int]]] = {}
    for prompt in prompts:
        hashes, ends, marks = known.get(prompt.like, ([], [], []))
        own, lengths = unpacked(prompt)
        start = ends[prompt.shared - 1] if prompt.shared else 0
        known[prompt.number] = (
            [*hashes[: prompt.shared], *own],
            [*ends[: prompt.shared], *(start + end for end in accumulate(lengths))],
            [*(mark for mark in marks if mark <= start), *prompt.marks],
        )
    return list(known.values())


def text_prompt(parts):
    data = b"".join(parts)
    return Prompt(data, marks=tuple(accumulate(map(len, parts))))


def token_prompt(tokens):
    return Prompt(b"".join(each.to_bytes(4, "little") for each in tokens), exact=True)


PARTS = st.lists(st.sampled_from([b"a" * 100, b"b" * 300, b"c" * 7, b"d" * 2000]), min_size=1)
TOKENS = st.lists(st.sampled_from([(1,) * 40, (2,) * 16, (3,)]), min_size=1).map(
    lambda runs: [token for run in runs for token in run]
)


@given(st.lists(PARTS.map(text_prompt) | TOKENS.map(token_prompt)), st.integers(0, 30))
def test_references_lead_to_the_blocks_that_were_there(prompts, room):
    names = Pseudonyms(KEY)
    writer = PromptWriter(names, room)
    chains = [BlockHasher(b"secret").chain(each, "m", "") for each in prompts]
    written = [writer.written(chain, 7) for chain in chains]
    lines = [
        msgspec.json.decode(msgspec.json.encode(each), type=RecordedPrompt) for each in written
    ]
    assert resolved(lines) == [
        (list(names.hashes(chain.hashes)), list(chain.ends), list(chain.marks)) for chain in chains
    ]
    assert [(line.size, line.tokens, line.exact) for line in lines] == [
        (chain.size, 7, chain.exact) for chain in chains
    ]


def test_what_is_repeated_is_not_written_again():
    hasher, writer = BlockHasher(b"secret"), PromptWriter(Pseudonyms(KEY))
    first = writer.written(hasher.chain(token_prompt(range(160)), "m", ""), 160)
    second = writer.written(hasher.chain(token_prompt(range(200)), "m", ""), 200)
    assert (first.number, first.shared, len(unpacked(first)[0])) == (1, 0, 10)
    # 200 tokens are 12 full blocks of 16, 10 of which are the first prompt's.
    assert (second.like, second.shared, len(unpacked(second)[0])) == (1, 10, 2)
    assert second.lengths == (16,)


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1))
def test_hashes_stay_apart_and_cannot_be_compared_under_other_keys(hashes):
    ours, theirs = Pseudonyms(KEY).hashes(hashes), Pseudonyms(KEY[::-1]).hashes(hashes)
    assert list(ours) == [Pseudonyms(KEY).hashes([each])[0] for each in hashes]
    assert len(set(ours)) == len(hashes)
    assert not {*ours} & {*theirs}
    assert not {*ours} & {*hashes}


def test_words_are_keyed():
    assert Pseudonyms(KEY).word("ann") == Pseudonyms(KEY).word("ann") != Pseudonyms(KEY).word("bob")
    assert Pseudonyms(KEY).word("ann") != Pseudonyms(KEY[::-1]).word("ann")


def test_lines_come_back():
    assert decode_line(encode_line(HEADER)) == HEADER == decode_header(encode_line(HEADER))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "the file is not a recording"),
        (b'{"time": 1, "hash_ids": [1]}', "does not begin with the header"),
        (b'{"kind": "request", "n": 1}', "does not begin with the header"),
        (b'{"kind": "header", "version": 2, "salt": 5}', "of version 2; this reads version 1"),
        (b'{"kind": "header", "version": 1, "salt": 5}', "the file is not a recording"),
        (b"[1]", "the file is not a recording"),
    ],
)
def test_what_is_no_header_is_said(text, said):
    with pytest.raises(ValueError, match=said):
        decode_header(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hashes": "AAAAAAAAAAA"}, "padding"),
        ({"hashes": "AAAA"}, "cut off"),
        ({"lengths": ()}, "2 hashes and 0 lengths"),
        ({"lengths": (1, 1, 1)}, "2 hashes and 3 lengths"),
        ({"lengths": (0,)}, "a block is empty"),
    ],
)
def test_what_cannot_be_blocks_is_said(change, said):
    hasher, writer = BlockHasher(b"secret"), PromptWriter(Pseudonyms(KEY))
    good = writer.written(hasher.chain(token_prompt(range(32)), "m", ""), 32)
    with pytest.raises(ValueError, match=said):
        unpacked(msgspec.structs.replace(good, **change))
