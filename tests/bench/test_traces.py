"""Trace readers: what was recorded becomes prompts whose common prefixes are real ones."""

import io
import json
import tarfile

import pytest
import zstandard

from bench.accuracy import lmcache, mooncake
from bench.accuracy.traces import replayed
from bench.progress import Progress
from epp.errors import ConfigError
from epp.replay.traffic.lmcache import LONGEST_THINK
from epp.replay.traffic.mooncake import BLOCK


def packed(path, data):
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    return path


def conversation(tmp_path, *lines):
    rows = [
        {"timestamp": at, "input_length": size, "output_length": out, "hash_ids": ids}
        for at, size, out, ids in lines
    ]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return packed(tmp_path / mooncake.NAME, data)


def common(one, other):
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


FIRST = (0, 3 * BLOCK + 100, 50, [0, 1, 2, 3])
NEXT = (9000, 5 * BLOCK, 20, [0, 1, 2, 4, 5])
STRANGER = (12000, 4 * BLOCK, 5, [0, 6, 7, 8])


def test_equal_hash_ids_are_equal_tokens_and_others_are_not(tmp_path):
    trace = mooncake.read(conversation(tmp_path, FIRST, STRANGER))
    first, stranger = (call.content() for call in trace.calls)
    assert (len(first.ids), len(stranger.ids)) == (FIRST[1], STRANGER[1])
    assert common(first.ids, stranger.ids) == BLOCK
    assert [call.after for call in trace.calls] == [None, None]  # one common block is a preamble


def test_a_prompt_that_goes_on_holds_the_answer_before_it(tmp_path):
    trace = mooncake.read(conversation(tmp_path, FIRST, NEXT))
    first, later = (call.content() for call in trace.calls)
    assert trace.calls[1].after == 0
    assert later.ids[: len(first.ids) + 50] == first.ids + first.answer
    assert later.marks == (len(first.ids), len(first.ids) + 50, 5 * BLOCK)


def test_text_and_tokens_have_the_same_prefixes(tmp_path):
    trace = mooncake.read(conversation(tmp_path, FIRST, NEXT))
    first, later = (call.content() for call in trace.calls)
    assert later.text.startswith(first.text)
    assert later.text_marks[0] == first.text_marks[0] == len(first.text)


def agents(tmp_path, *rows):
    file = io.BytesIO()
    names = ("timestamp", "session_id", "input", "output")
    text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows).encode()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("any/name.jsonl")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return packed(tmp_path / lmcache.NAME, file.getvalue())


ASKED = "system: be kind\nuser: what is this?"
THEN = ASKED + " A pause.\nuser: and that?"


def test_turns_of_a_session_follow_each_other_after_the_recorded_pause(tmp_path):
    path = agents(
        tmp_path,
        (9_000_000, "s", THEN, "this"),
        (5_000_000, "s", ASKED, "that"),
        (900_000_000, "s", THEN + "x", "late"),
        (0, "t", "", "nothing was asked"),
    )
    calls = lmcache.read(path).calls
    assert [call.after for call in calls] == [None, 0, 1]
    assert [call.think for call in calls] == [0, 4, LONGEST_THINK]


def test_messages_end_before_roles_and_where_an_earlier_prompt_ended(tmp_path):
    path = agents(tmp_path, (0, "s", ASKED, "é"), (1, "s", THEN, "b"))
    first, later = (call.content() for call in lmcache.read(path).calls)
    system = len("system: be kind")
    assert first.text_marks == [system, len(ASKED)]
    assert later.text_marks == [system, len(ASKED), THEN.index("\nuser: and"), len(THEN)]
    assert later.ids[: len(first.ids)] == first.ids
    assert later.marks[:2] == first.marks


def test_a_small_trace_is_predicted_exactly_from_tokens(tmp_path):
    """With room for everything, what the fleet says and what the engines do is the same."""
    conversation(tmp_path, FIRST, STRANGER, NEXT)
    agents(tmp_path, (0, "s", ASKED * 9, "a"), (1, "s", ASKED * 9 + "more", "b"))
    parts = list(replayed(Progress(), tmp_path, quick=True))
    figures = {figure.key: figure.value for part in parts for figure in part.figures}
    assert figures["mae_tokens_conversation_pct"] == 0
    assert figures["mae_tokens_agent_pct"] == 0
    assert figures["requests_conversation"] == 3 * 2  # once with text, once with tokens
    assert figures["hit_conversation_pct"] > 0


@pytest.mark.parametrize("name", ["unknown.zst", mooncake.NAME])
def test_what_is_no_known_trace_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="holds no trace that is known"):
        list(replayed(Progress(), tmp_path / name, quick=True))


def test_what_is_not_compressed_is_refused(tmp_path):
    path = tmp_path / lmcache.NAME
    path.write_bytes(b"plain text")
    with pytest.raises(ConfigError, match="not a zstd file"):
        lmcache.read(path)
