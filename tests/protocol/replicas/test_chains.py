"""Chains on the wire: whole, or as the tip and length of what is known, and what is no chain."""

import tracemalloc
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import Prompt
from epp.protocol.replicas.chains import (
    KnownChains,
    UnknownChain,
    read_prompt,
    read_sizes,
    read_words,
    write_prompt,
    written_sizes,
    written_words,
)
from epp.protocol.replicas.facts import PromptFact
from tests.strategies import SECRET, text

HASHER = BlockHasher(SECRET)


def chain_of(data, marks=(), *, exact=False, multimodal=False):
    return HASHER.chain(Prompt(data, exact, marks, multimodal), "m", "")


def offsets_of(chain, known=0):
    if chain.exact:
        return TokenOffsets(chain.size, chain.ends, chain.size)
    return TokenOffsets(chain.size // 4 + 1, [end // 4 for end in chain.ends], known)


def carried(fact):
    """What a fact is after a journey."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=PromptFact)


def plain(chain, offsets):
    return (
        list(chain.hashes),
        list(chain.ends),
        chain.size,
        chain.lookup,
        chain.exact,
        chain.multimodal,
        list(chain.marks),
        chain.rest_digest,
        offsets.total,
        list(offsets.ends),
        offsets.known,
    )


@st.composite
def prompts(draw):
    exact = draw(st.booleans())
    unit = 4 if exact else 1
    size = draw(st.integers(0, 3000))
    data = draw(st.binary(max_size=32)) + bytes(size * unit)
    data = data[: len(data) // unit * unit]
    marks = draw(st.lists(st.integers(0, len(data) // unit), max_size=6).map(sorted))
    return data, tuple(marks), exact, draw(st.booleans())


@given(st.lists(prompts(), max_size=5))
def test_every_prompt_arrives_as_it_was_whatever_is_known(every):
    """FactWriter and reader know the same; extensions of one prompt share what stands before."""
    ours, theirs = KnownChains(), KnownChains()
    for data, marks, exact, multimodal in every:
        chain = chain_of(data, marks, exact=exact, multimodal=multimodal)
        for _ in range(2):
            fact = carried(write_prompt(chain, offsets_of(chain), ours))
            assert plain(*read_prompt(fact, theirs)) == plain(chain, offsets_of(chain))


@given(st.lists(st.integers(0, (1 << 32) - 1)))
def test_numbers_are_written_little_endian_on_each_host(numbers):
    for write, read, size in (written_words, read_words, 8), (written_sizes, read_sizes, 4):
        written = b"".join(each.to_bytes(size, "little") for each in numbers)
        assert write(numbers) == write(array("Q", numbers)) == written
        assert read(written).tolist() == numbers


@pytest.mark.parametrize("exact", [False, True])
def test_a_prompt_that_no_cache_may_serve_arrives_as_one(exact):
    ours, theirs = KnownChains(), KnownChains()
    prompt = Prompt(text(256).encode(), exact=exact)
    for skips in (False, True, False):
        chain = HASHER.chain(prompt, "m", "", skip_reading_prefix_cache=skips)
        assert (chain.lookup == 0) is skips
        fact = carried(write_prompt(chain, offsets_of(chain), ours))
        assert plain(*read_prompt(fact, theirs)) == plain(chain, offsets_of(chain))


@pytest.mark.parametrize("exact", [False, True])
def test_a_conversation_goes_as_what_is_new_of_it(exact):
    ours, theirs = KnownChains(), KnownChains()
    history, sizes = b"", []
    marks: tuple[int, ...] = ()
    for turn in range(6):
        history += text(1024, seed=str(turn)).encode()
        marks = (*marks, len(history) // (4 if exact else 1))
        chain = chain_of(history, marks, exact=exact)
        fact = carried(write_prompt(chain, offsets_of(chain), ours))
        assert plain(*read_prompt(fact, theirs)) == plain(chain, offsets_of(chain))
        sizes.append(len(msgspec.msgpack.encode(fact)))
        again = write_prompt(chain, offsets_of(chain), ours)
        assert len(msgspec.msgpack.encode(again)) < 60
        assert plain(*read_prompt(carried(again), theirs)) == plain(chain, offsets_of(chain))
    assert sizes[-1] < sizes[0] + 30  # 4 KB more each time, and numbers that are longer


def test_twenty_kilobytes_that_are_known_cost_tens_of_bytes():
    ours = KnownChains()
    chain = chain_of(text(5000).encode())
    whole = write_prompt(chain, offsets_of(chain), ours)
    assert len(whole.hashes) == 8 * len(chain.hashes)
    assert len(msgspec.msgpack.encode(write_prompt(chain, offsets_of(chain), ours))) < 60


def test_a_shared_beginning_is_known_too():
    ours, theirs = KnownChains(), KnownChains()
    start = text(2000).encode()
    shared = []
    for end in (b"one" * 400, b"two" * 400):
        chain = chain_of(start + end, (len(start), len(start) + 1200))
        fact = carried(write_prompt(chain, offsets_of(chain), ours))
        assert plain(*read_prompt(fact, theirs)) == plain(chain, offsets_of(chain))
        shared.append(fact.before)
    assert shared == [0, list(chain_of(start, (len(start),)).ends).index(len(start)) + 1]


def test_messages_of_one_text_that_end_at_other_blocks_are_told_apart():
    ours, theirs = KnownChains(), KnownChains()
    data = text(500).encode()
    ends = chain_of(data).ends
    for marks in ((ends[0],), (ends[1],), (ends[0], ends[1])):
        chain = chain_of(data, marks)
        fact = carried(write_prompt(chain, offsets_of(chain), ours))
        assert plain(*read_prompt(fact, theirs)) == plain(chain, offsets_of(chain))


def test_tokens_of_what_is_known_are_scaled_to_what_they_are_believed_to_be():
    ours, theirs = KnownChains(), KnownChains()
    chain = chain_of(text(1000).encode())
    read_prompt(carried(write_prompt(chain, offsets_of(chain), ours)), theirs)
    longer = TokenOffsets(2001, [end // 2 for end in chain.ends], 2000)
    _, found = read_prompt(carried(write_prompt(chain, longer, ours)), theirs)
    assert (found.total, found.known, found.ends[-1]) == (2001, 2000, longer.ends[-1])
    assert all(abs(one - other) <= 2 for one, other in zip(found.ends, longer.ends, strict=True))


def test_what_is_not_known_is_said():
    ours = KnownChains()
    chain = chain_of(text(1000).encode())
    write_prompt(chain, offsets_of(chain), ours)
    with pytest.raises(UnknownChain) as raised:
        read_prompt(write_prompt(chain, offsets_of(chain), ours), KnownChains())
    assert (raised.value.tip, raised.value.blocks) == (chain.hashes[-1], len(chain.hashes))


@given(st.data())
def test_nonsense_is_refused_and_nothing_is_known_of_it(data):
    counts = st.integers(0, 300)
    fact = PromptFact(
        hashes=data.draw(st.binary(max_size=64)),
        ends=data.draw(
            st.one_of(
                st.binary(max_size=64),
                st.lists(counts, max_size=8).map(lambda each: array("Q", each).tobytes()),
            )
        ),
        block=data.draw(counts),
        size=data.draw(counts),
        total=data.draw(counts),
        known=data.draw(counts),
        rest_digest=0,
        marks=data.draw(st.lists(counts, max_size=4)),
        tip=data.draw(counts),
        before=data.draw(st.integers(0, 3)),
    )
    known = KnownChains()
    try:
        chain, offsets = read_prompt(fact, known)
    except (UnknownChain, ValueError):
        assert len(known) == 0
    else:
        assert len(chain.hashes) == len(chain.ends) == len(offsets.ends)


def test_the_chains_used_last_are_known():
    known = KnownChains(room=100)
    chains = [chain_of(text(500, seed=str(each)).encode()) for each in range(40)]
    for chain in chains:
        write_prompt(chain, offsets_of(chain), known)
        assert len(known) <= 200
    assert known.longest(chains[-1].hashes) == len(chains[-1].hashes)
    assert known.longest(chains[0].hashes) == 0
    for chain in chains:  # some are of the generation before
        blocks = known.longest(chain.hashes)
        assert not blocks or known.find(chain.hashes[blocks - 1], blocks) is not None
    for blocks in (1, len(chain.hashes) + 1):
        assert known.find(chain.hashes[-1], blocks) is None


def test_turns_of_a_conversation_take_no_more_memory_than_there_is_room_for():
    room = 1024
    known, last = KnownChains(room), 100 + 8 * 150
    tracemalloc.start()
    try:
        for blocks in range(100, last + 1, 8):
            chain = chain_of(bytes(4 * 16 * blocks), exact=True)
            write_prompt(chain, offsets_of(chain), known)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two generations; 2^17 blocks are some 20 MB.
    assert taken < 3 * room * (20 << 20 >> 17)
    assert known.longest(chain_of(bytes(4 * 16 * last), exact=True).hashes) == last
