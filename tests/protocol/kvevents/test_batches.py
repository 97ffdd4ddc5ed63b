"""Payloads of KV events: both wire forms, both engines, and everything that is none of them."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.kv_event_mirror import KvEventMirror
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.kv_changes import BlocksCleared, BlocksRemoved, BlocksStored, Medium
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Prompt
from epp.protocol.kvevents.arrays import MAX_NUMBERS, NotAnArray, read_uint32s
from epp.protocol.kvevents.batches import (
    MAX_BLOCKS,
    MAX_EVENTS,
    MAX_PAYLOAD_BYTES,
    UnreadableBatch,
    rank_of,
    time_of,
)
from tests.kvpublisher import CLEARED, WholeBatch, payload, read_batch, removed, stored
from tests.strategies import SECRET

pack = msgspec.msgpack.encode


def read(*events):
    """The changes of a batch in which nothing is odd."""
    batch = read_batch(payload(*events), "base")
    assert isinstance(batch, WholeBatch)
    assert (batch.unknown, batch.malformed) == (0, 0)
    return list(batch.changes)


def the_change(event, *names):
    """The fields of these names of an event's one change."""
    (change,) = read(event)
    return {name: getattr(change, name) for name in names}


def gone(*names, **more):
    return BlocksRemoved(list(names), **more)


def packed(*tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens)


TOKENS = [5, 6, 7, 8]
IN_EVERY_FORM = {
    "vLLM 0.32": stored([1, 2], 9, TOKENS, 2, group_idx=None),
    "a map with the least, and a field of tomorrow": {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": 9,
        "token_ids": TOKENS,
        "block_size": 2,
        "tomorrow": {"field": [1]},
    },
    "the shortest array": ["BlockStored", [1, 2], 9, TOKENS, 2],
    "vLLM 0.8": ["BlockStored", [1, 2], 9, TOKENS, 2, None],
    "SGLang": ["BlockStored", [1, 2], 9, TOKENS, 2, None, "GPU"],
    "vLLM 0.12": ["BlockStored", [1, 2], 9, TOKENS, 2, None, "GPU", None, [None, None]],
    "a longer array": ["BlockStored", [1, 2], 9, TOKENS, 2, 0, "GPU", *[None] * 5, "tomorrow"],
    "digests": ["BlockStored", [bytes(31) + b"\1", 2], bytes(31) + b"\t", TOKENS, 2],
}


@pytest.mark.parametrize("event", IN_EVERY_FORM.values(), ids=IN_EVERY_FORM)
def test_blocks_stored_in_every_form(event):
    fields = {"hashes": [1, 2], "parent": 9, "tokens": packed(*TOKENS), "size": 2, "model": "base"}
    assert read(event) == [BlocksStored(**fields)]


def test_hashes_of_both_signs_and_digests_are_one():
    digest = bytes(24) + b"\xff" * 7 + b"\xfe"
    names = [-2, 2**64 - 2, digest, digest[-8:]]
    assert read({"type": "BlockRemoved", "block_hashes": names})[0].hashes == [2**64 - 2] * 4
    assert the_change(stored([1], -1, [1], 1), "parent") == {"parent": 2**64 - 1}


def test_a_parent_of_0_is_none():
    # llm-d-inference-sim `kv_cache_sender.go`: of blocks at the start, in its arrays.
    array = ["BlockStored", [1, 2], 0, TOKENS, 2, None, "GPU", None, None]
    assert the_change(array, "parent") == {"parent": None}


@pytest.mark.parametrize(
    ("medium", "expected"),
    [
        (None, Medium.GPU),
        ("GPU", Medium.GPU),
        ("CPU", Medium.CPU),
        ("cpu", Medium.CPU),
        ("CPU_PINNED", Medium.CPU),
        ("DISK", Medium.OTHER),
        ("STORAGE", Medium.OTHER),
        ("something new", Medium.OTHER),
    ],
)
def test_media(medium, expected):
    assert the_change(stored([1], medium=medium), "medium") == {"medium": expected}
    assert read(["BlockRemoved", [1], medium]) == [gone(1, medium=expected)]


def test_an_adapter_names_the_model():
    assert the_change(stored([1], lora_name="tuned"), "model") == {"model": "tuned"}
    array = ["BlockStored", [1], None, [1], 1, 3, "GPU", "tuned"]
    assert the_change(array, "model") == {"model": "tuned"}


def test_an_adapter_without_a_name_is_not_its_model():
    # vLLM before 0.12, TensorRT-LLM `kv_cache_events.py`: the adapter's number alone.
    events = [stored([1], lora_id=3), ["BlockStored", [1], None, TOKENS[:1], 1, 4], stored([1])]
    events[0]["lora_name"] = None
    models = [the_change(each, "model")["model"] for each in events]
    assert models[2] == "base"
    assert len(set(models)) == 3


EXTRA = {
    "none": ([None, None], None, "", ()),
    "adapter": ([["tuned"], ["tuned"]], "tuned", "", ()),
    "salt": ([["salt"], None], None, "salt", ()),
    "adapter and salt of one name": ([["x", "x"], ["x"]], "x", "x", ()),
    "image": ([None, [["image", 3]]], None, "", [b"", pack([["image", 3]])]),
    "everything": (
        [["tuned", ["image", -4], "salt", b"digest"], ["tuned"]],
        "tuned",
        "salt",
        [pack([["image", -4], b"digest"]), b""],
    ),
}


@pytest.mark.parametrize(("keys", "adapter", "salt", "content"), EXTRA.values(), ids=EXTRA)
def test_extra_keys(keys, adapter, salt, content):
    event = stored([1, 2], extra_keys=keys, lora_name=adapter)
    expected = {"salt": salt, "content": content, "model": adapter or "base"}
    assert the_change(event, *expected) == expected


def test_sglang_puts_salts_into_a_map():
    array = ["BlockStored", [1], None, [1], 1, None, "GPU", {"cache_salt": "salt"}]
    assert the_change(array, "salt", "model") == {"salt": "salt", "model": "base"}
    assert the_change(stored([1], cache_salt="salt"), "salt") == {"salt": "salt"}


@pytest.mark.parametrize(
    ("kind", "full"),
    [
        (None, True),
        ("full_attention", True),
        ("mla_attention", True),
        ("sink_full_attention", True),
        ("sliding_window", False),
        ("mamba", False),
        ("of tomorrow", False),
    ],
)
def test_groups_whose_layers_see_everything(kind, full):
    event = stored([1], group_idx=3, kv_cache_spec_kind=kind)
    assert the_change(event, "group", "full") == {"group": 3, "full": full}


def test_sliding_window_groups_may_lack_blocks():
    event = stored([3], None, range(48), 16, kv_cache_spec_kind="sliding_window", extra_keys=None)
    assert the_change(event, "hashes", "full") == {"hashes": [3], "full": False}


# SGLang 0.5.23 `mem_cache/events.py` `record_store`, vLLM 0.33 `BlockStored.lookahead_token_ids`.
WITH_WHAT_FOLLOWS = {
    "SGLang": lambda tokens, after: {
        "token_ids": list(pairwise((*tokens, after))),
        "block_size": len(tokens),
    },
    "vLLM": lambda tokens, after: {
        "token_ids": tokens,
        "block_size": len(tokens),
        "lookahead_token_ids": [[after]],
    },
}


@pytest.mark.parametrize("engine", WITH_WHAT_FOLLOWS)
def test_with_eagle_blocks_of_the_same_tokens_are_copies(engine):
    tokens, pool = list(range(16)), BlockPool(160, 16)
    hasher = BlockHasher(SECRET, 16)
    mirror, reported = KvEventMirror(hasher), ReportedBlocks(pool)
    chain = hasher.chain(Prompt(packed(*tokens), exact=True), "base", "")
    for name, after in ((1, 70), (2, 80)):
        (change,) = read(stored([name]) | WITH_WHAT_FOLLOWS[engine](tokens, after))
        mirror.apply(change, reported)
    found = []
    for name in (1, 2):
        mirror.apply(gone(name, group=0), reported)
        found.append(pool.match(chain.hashes))
    assert found == [1, 0]


def test_an_event_may_name_no_block():
    fields = {"hashes": [], "parent": 9, "tokens": b""}
    assert the_change(stored([], 9, [], 2), *fields) == fields


def test_removed_and_cleared():
    assert read(removed(4, group_idx=1)) == [gone(4, group=1)]
    assert read(["BlockRemoved", [4, 5]]) == [gone(4, 5)]
    assert read(CLEARED, ["AllBlocksCleared"]) == [BlocksCleared()] * 2


def test_a_batch_without_a_rank_and_one_with_more_fields():
    for rank, batch in ((None, [1.5, []]), (None, [1, []]), (2, [1.5, [], 2, "tomorrow"])):
        read_out = read_batch(pack(batch))
        assert isinstance(read_out, WholeBatch)
        assert read_out.rank == rank
        assert time_of(pack(batch)) == batch[0]


NO_SALTS: tuple[object, ...] = (5, True, 1.5, [1], {}, b"x")
ODD: dict[str, tuple[object, tuple[int, int]]] = {
    "an unknown name": ({"type": "BlockMoved", "block_hashes": [1]}, (1, 0)),
    "an unknown name in an array": (["BlockMoved", 1, 2, 3], (1, 0)),
    "no name": ({"block_hashes": [1]}, (0, 1)),
    "an empty array": ([], (0, 1)),
    "an empty map": ({}, (0, 1)),
    "a number": (7, (0, 1)),
    "nothing": (None, (0, 1)),
    "a name that is a number": ([7, [1]], (0, 1)),
    "an array that is too short": (["BlockStored", [1], None, [1]], (0, 1)),
    "hashes that are words": ({"type": "BlockStored", "block_hashes": ["x"]}, (0, 1)),
    "hashes that are fractions": (["BlockRemoved", [1.5]], (0, 1)),
    "hashes that are not a list": (["BlockRemoved", 1], (0, 1)),
    "a token below 0": (stored([1], None, [-1], 1), (0, 1)),
    "a token beyond 32 bits": (stored([1], None, [2**32], 1), (0, 1)),
    "triples of tokens": (stored([1], None, [[1, 2, 3]], 1), (0, 1)),
    "pairs and a token": (stored([1], None, [[1, 2], 3], 2), (0, 1)),
    "too few tokens": (stored([1, 2], None, [1, 2, 3], 2), (0, 1)),
    "a block size below 0": (stored([1], None, [1], -1), (0, 1)),
    "a block size of 0 with tokens": (stored([1], None, [1], 0), (0, 1)),
    "extra keys of other blocks": (stored([1], extra_keys=[None, [["i", 0]]]), (0, 1)),
    "a block of more tokens than any engine has": (
        stored([1], tokens=[0] * (MAX_NUMBERS + 1), size=MAX_NUMBERS + 1),
        (0, 1),
    ),
    **{
        f"a group that no model has, {group!r}": (stored([1], group_idx=group), (0, 1))
        for group in (-1, 256, 1 << 62, 1.5, "0")
    },
    "the same where a block is removed": (removed(1, group_idx=256), (0, 1)),
    **{
        f"a salt that is no text, {salt!r}": (
            ["BlockStored", [1, 2], 9, TOKENS, 2, None, "GPU", {"cache_salt": salt}],
            (0, 1),
        )
        for salt in NO_SALTS
    },
}


@pytest.mark.parametrize(("odd", "counted"), ODD.values(), ids=ODD)
def test_an_odd_event_is_counted_and_the_others_are_read(odd, counted):
    batch = read_batch(payload(removed(1), odd, removed(2)))
    assert isinstance(batch, WholeBatch)
    assert (batch.unknown, batch.malformed) == counted
    assert list(batch.changes) == [gone(n, group=0) for n in (1, 2)]


UNREADABLE = {
    "nothing": b"",
    "a byte that msgpack does not have": b"\xc1",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "JSON": b'[1.0, [{"type": "AllBlocksCleared"}], 0]',
    "a map": pack({"ts": 1.0, "events": []}),
    "no events": pack([1.0]),
    "events that are not a list": pack([1.0, "AllBlocksCleared"]),
    "a time that is none": pack(["now", []]),
    "a rank that is none": pack([1.0, [], "first"]),
    "more than there is": payload(stored([1]))[:-1],
    "something after it": payload() + b"\0",
    "a list said to be endless": b"\x92\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff",
    "a list in a list in a list": b"\x91" * 5000,
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_a_payload_that_is_no_batch_is_unreadable(body):
    assert isinstance(read_batch(body), UnreadableBatch)


def test_a_batch_that_is_too_large():
    size = len(payload({"type": "x" * 100_000})) - 100_000
    fits = payload({"type": "x" * (MAX_PAYLOAD_BYTES - size)})
    assert isinstance(read_batch(fits), WholeBatch)
    refused = read_batch(payload({"type": "x" * (MAX_PAYLOAD_BYTES - size + 1)}))
    assert isinstance(refused, UnreadableBatch)
    assert str(MAX_PAYLOAD_BYTES + 1) in refused.reason


def test_a_batch_of_too_many_events_is_refused_before_they_are_read():
    assert isinstance(read_batch(payload(*[{}] * MAX_EVENTS)), WholeBatch)
    refused = read_batch(payload(*[{}] * (MAX_EVENTS + 1)))
    assert isinstance(refused, UnreadableBatch)
    assert str(MAX_EVENTS + 1) in refused.reason


@given(st.binary(max_size=200))
def test_no_bytes_raise(body):
    assert isinstance(read_batch(body), WholeBatch | UnreadableBatch)
    assert time_of(body) is None or isinstance(time_of(body), float)


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
VALUES = st.recursive(
    SCALARS | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])
EVENTS = st.one_of(
    st.builds(lambda name, rest: [name, *rest], NAMES, st.lists(VALUES, max_size=12)),
    st.builds(
        lambda name, rest: rest | {"type": name},
        NAMES,
        st.dictionaries(st.sampled_from(sorted(stored([1]))), VALUES),
    ),
)


@given(st.lists(EVENTS, max_size=5))
def test_no_event_raises_and_each_is_accounted_for(events):
    batch = read_batch(payload(*events))
    assert isinstance(batch, WholeBatch)
    assert len(batch.changes) + batch.unknown + batch.malformed == len(events)


@given(st.integers(0, 10_000))
def test_a_truncated_batch_is_none(cut):
    body = payload(stored(range(20)), removed(3), CLEARED)
    assert isinstance(read_batch(body[: cut % len(body)]), UnreadableBatch)


_NO_TEXT = b"\xa4\xff\xfe\xff\xfe"
_DEEP = b"\x91" * 100_000
_ONE = b"\x92" + pack(1.0) + b"\x91"
UNREAD: dict[str, tuple[int | None, bytes]] = {
    "arrays in arrays": (None, b"\x93" + pack(1.0) + _DEEP),
    "an event of arrays in arrays": (None, _ONE + _DEEP),
    "a type that is not text": (1, _ONE + b"\x81" + pack("type") + _NO_TEXT),
    "a name that is not text": (1, _ONE + b"\x91" + _NO_TEXT),
    "a time that is none": (0, pack([float("nan"), [], 0])),
    "a field that is not text": (
        1,
        b"".join((_ONE, b"\x82", pack("type"), pack("BlockStored"), _NO_TEXT, b"\xc0")),
    ),
}
"""How many of its events are malformed, None if it is no batch."""


@pytest.mark.parametrize(("malformed", "data"), UNREAD.values(), ids=UNREAD)
def test_what_is_no_batch_is_said_and_never_raised(malformed, data):
    batch = read_batch(data)
    assert (batch.malformed if isinstance(batch, WholeBatch) else None) == malformed
    assert time_of(data) is None or isinstance(time_of(data), float)
    assert rank_of(data) in (None, 0)


def test_a_batch_names_no_more_blocks_than_a_step_stores():
    half = MAX_BLOCKS // 2
    events = (removed(*range(half)), stored(range(half), tokens=[0] * half, size=1))
    assert isinstance(read_batch(payload(*events)), WholeBatch)
    assert isinstance(read_batch(payload(*events, removed(1))), UnreadableBatch)


@given(NAMES, st.lists(VALUES, max_size=12), st.binary(max_size=3))
def test_fields_of_any_kind_make_changes_within_bounds(name, fields, end):
    for data in (payload([name, *fields]), payload([name, *fields]) + end):
        batch = read_batch(data)
        for change in getattr(batch, "changes", ()):
            if isinstance(change, BlocksStored):
                assert isinstance(change.salt + change.model, str)
                assert 0 <= (change.group or 0) < 256


@given(st.sampled_from(list(stored([1]))), VALUES)
def test_one_field_of_another_kind_is_read_or_malformed(field, value):
    batch = read_batch(payload(stored([1]) | {field: value}))
    assert isinstance(batch, WholeBatch)
    assert len(batch.changes) + batch.unknown + batch.malformed == 1


_IDS = st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1])


@pytest.mark.parametrize("in_pairs", [False, True])
@given(
    ids=st.lists(st.tuples(_IDS, _IDS), max_size=20),
    length=st.integers(1, 70_000),
    count=st.integers(1, 5_000),
)
def test_numbers_are_read_in_parts_whatever_their_width(in_pairs, ids, length, count):
    ids = (ids * length)[:length]
    firsts = [first for first, _ in ids]
    parts = list(read_uint32s(pack(ids if in_pairs else firsts), count))
    assert b"".join(parts) == packed(*firsts)
    assert [len(part) for part in parts[:-1]] == [4 * count] * (len(parts) - 1)
    assert 0 <= len(parts[-1] if parts else b"") <= 4 * count


NO_PAIRS = (1, [1], [1, 2, 3], [-1, 2], [2**32, 2], ["x", 1], [1, "x"], None)
NO_TOKENS: tuple[object, ...] = (-1, -200, 2**32, 1.5, "x", b"x", None, [1], {})


@pytest.mark.parametrize(
    ("odd", "usual"),
    [*((odd, [1, 2]) for odd in NO_PAIRS), *((odd, 1) for odd in NO_TOKENS)],
)
@pytest.mark.parametrize("at", [0, 40_000, 69_999])
def test_an_item_that_is_no_token_id_and_no_pair_is_found_wherever_it_stands(odd, usual, at):
    ids = [usual] * 70_000
    ids[at] = odd
    with pytest.raises(NotAnArray):
        list(read_uint32s(pack(ids), 128))


NAMES_OF_BLOCKS = st.lists(st.integers(0, 30), min_size=1, max_size=20)
LONG = st.one_of(
    st.builds(
        lambda hashes, parent, size, image: stored(
            hashes,
            parent,
            [each % 7 for each in hashes for _ in range(size)],
            size,
            extra_keys=[[["image", 1]]] * len(hashes) if image else None,
        ),
        st.lists(st.integers(0, 1_000), min_size=1, max_size=20, unique=True),
        st.none() | st.integers(0, 30),
        st.sampled_from((0, 4, 16, 24)),
        st.booleans(),
    ),
    st.builds(lambda names: removed(*names), NAMES_OF_BLOCKS),
    st.just(CLEARED),
)


@given(st.lists(LONG, max_size=8), st.integers(1, 12))
def test_parts_of_events_say_what_the_whole_says(events, most):
    """The mirror of a cache is the same, however many blocks are said of at a time.

    Not that of an engine which stores a block twice, and the second time behind one that it never
    stored: the part that goes on with the first block is read as what it says.
    """
    whole = _mirrored(read(*events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epp.protocol.kvevents.events._CHANGE_BLOCKS", most)
        patch.setattr("epp.protocol.kvevents.batches._MOST", most)
        batch = read_batch(payload(*events), "base")
    for part in batch.parts:
        assert sum(map(_blocks, part[:-1])) < most
    split = _mirrored(batch.changes)
    stored_names = [name for each in events for name in each.get("block_hashes", ())]
    if not any(each.get("parent_block_hash") is not None for each in events):
        assert whole == split
    elif len(stored_names) == len(set(stored_names)):
        assert whole <= split


def _blocks(change):
    return 1 if isinstance(change, BlocksCleared) else max(1, len(change.hashes))


def _mirrored(changes):
    mirror = KvEventMirror(BlockHasher(SECRET, 16))
    reported = ReportedBlocks(BlockPool(100_000, 16))
    for change in changes:
        mirror.apply(change, reported)
    return set(reported.cache.hashes())


MANY = {
    "blocks of one event": [stored(range(12_000))],
    "events": [{"type": "BlockRemoved", "block_hashes": [each]} for each in range(5_000)],
    "tokens": [stored([1], tokens=[0] * 30_000, size=30_000)] * 3,
    "events that say nothing": [{}] * 5_000,
    "clears": [CLEARED] * 1_000,
}


@pytest.mark.parametrize("events", MANY.values(), ids=MANY)
def test_a_part_is_small_whatever_a_batch_says(events):
    batch = read_batch(payload(*events))
    assert isinstance(batch, WholeBatch)
    for part in batch.parts:
        assert sum(map(_blocks, part)) < 256
        assert sum(len(getattr(each, "tokens", b"")) for each in part) <= (4 << 15) + 128 * 256
