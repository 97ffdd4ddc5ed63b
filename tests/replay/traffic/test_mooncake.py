"""Mooncake's format: equal blocks are equal tokens, and conversations hold their answers."""

import json

import pytest

from bench.accuracy.trace import decompressed
from epp.errors import ConfigError
from epp.replay.traffic.calls import InfiniteCache, joined, packed, tokens_in
from epp.replay.traffic.mooncake import BLOCK
from epp.replay.traffic.reading import read
from tests.public_traces import CONVERSATION, needs_traces

FIRST = (0, 3 * BLOCK + 100, 50, [0, 1, 2, 3])
NEXT = (9000, 5 * BLOCK, 20, [0, 1, 2, 4, 5])
STRANGER = (12000, 4 * BLOCK, 5, [0, 6, 7, 8])


def line(at, size, out, ids):
    return {"timestamp": at, "input_length": size, "output_length": out, "hash_ids": ids}


def written(folder, *rows):
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line(*row)) + "\n" for row in rows))
    return path


def common(one, other):
    one, other = packed(one), packed(other)
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other))) // 4


def test_equal_hash_ids_are_equal_tokens_and_others_are_not(tmp_path):
    first, stranger = read(written(tmp_path, FIRST, STRANGER), strict=True).calls
    assert [tokens_in(each.prompt) for each in (first, stranger)] == [FIRST[1], STRANGER[1]]
    assert common(first.prompt, stranger.prompt) == BLOCK
    # One common block is a preamble.
    assert (first.after, stranger.after) == (None, None)
    assert first.session != stranger.session


def test_a_prompt_that_goes_on_holds_the_answer_before_it(tmp_path):
    first, later = read(written(tmp_path, FIRST, NEXT), strict=True).calls
    said = joined(first.prompt, first.response)
    assert (later.after, later.session) == (0, first.session)
    assert common(later.prompt, said) == tokens_in(said) == FIRST[1] + FIRST[2]
    assert later.marks == (FIRST[1], FIRST[1] + FIRST[2], NEXT[1])


def test_a_prompt_that_has_no_room_for_the_answer_goes_on_with_nothing(tmp_path):
    short = (9000, 3 * BLOCK + 120, 20, [0, 1, 2, 9])
    first, again = read(written(tmp_path, FIRST, short), strict=True).calls
    assert again.after is None
    assert common(first.prompt, again.prompt) == 3 * BLOCK


def test_times_count_from_the_first_and_are_drawn_where_lines_share_them(tmp_path):
    rows = [(60_000 + at, 10, 1, [at]) for at in (0, 0, 0, 3000, 3000, 9000)]
    path = written(tmp_path, *rows)
    times = [call.at for call in read(path, seed=1).calls]
    assert all(0 <= at < 3 for at in times[:3])
    assert all(3 <= at < 6 for at in times[3:5])
    assert len(set(times)) == len(times)
    assert times == [call.at for call in read(path, seed=1).calls]
    assert times != [call.at for call in read(path, seed=2).calls]


def test_times_that_lines_do_not_share_are_as_recorded(tmp_path):
    rows = [(at, 10, 1, [9]) for at in (500, 640, 2500.5)]
    assert [call.at for call in read(written(tmp_path, *rows)).calls] == [0, 0.14, 2.0005]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((0, 0, 5, []), "lengths must be positive"),
        ((0, -7, 5, []), "lengths must be positive"),
        ((0, 7, -1, [1]), "lengths must be positive"),
        (
            (0, 1025, 5, [1, 2]),
            "1025 tokens are 3 blocks of 512, but `hash_ids` names 2, as blocks of 1024 would have",
        ),
        (
            (0, 521, 5, [*range(33)]),
            "521 tokens are 2 blocks of 512, but `hash_ids` names 33, as blocks of 16 would have",
        ),
        (
            (0, 9, 5, [1, 2, 3]),
            "9 tokens are 1 blocks of 512, but `hash_ids` names 3, as blocks of 4 would have",
        ),
        ((0, 7, 5, [*range(8)]), "7 tokens are 1 blocks of 512, but `hash_ids` names 8"),
        ((0, "7", 5, [1]), "Expected `int`, got `str` - at `$.input_length`"),
    ],
)
def test_a_line_that_cannot_be(tmp_path, row, problem):
    path = written(tmp_path, FIRST, row, STRANGER)
    with pytest.raises(ConfigError) as raised:
        read(path, strict=True)
    assert str(raised.value).startswith(f"{path}:2: {problem}")
    trace = read(path)
    assert (len(trace.calls), trace.skipped) == (2, 1)
    assert trace.problems == (f"{path}:2: {problem}",)


def test_an_answer_of_nothing_is_one_token(tmp_path):
    (call,) = read(written(tmp_path, (0, 7, 0, [1])), strict=True).calls
    assert tokens_in(call.response) == 1


def test_lines_out_of_order_are_sorted_and_counted_or_refused(tmp_path):
    path = written(tmp_path, STRANGER, FIRST, NEXT)
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: its time is before that of the line"):
        read(path, strict=True)
    trace = read(path)
    assert (trace.skipped, trace.reordered) == (0, 1)
    assert [tokens_in(call.prompt) for call in trace.calls] == [FIRST[1], NEXT[1], STRANGER[1]]
    assert trace.calls[1].after == 0


ROOT = (1.5, 35, 20, [0, 1, 2])
TURN = (61.114, 70, 5, [0, 1, 3, 4, 5])


@pytest.mark.parametrize(
    ("parent", "later", "after"),
    [
        (7, TURN, 0),
        (-1, TURN, None),
        (8, TURN, None),
        (7, (61.114, 54, 5, [0, 1, 3, 4]), None),  # has no room for the answer
        (7, (61.114, 70, 5, [0, 6, 3, 4, 5]), None),  # does not hold the prompt
    ],
)
def test_bailians_times_are_seconds_its_blocks_of_16_and_chats_name_their_parent(
    tmp_path, parent, later, after
):
    chats = [{"chat_id": 7, "parent_chat_id": -1}, {"chat_id": 9, "parent_chat_id": parent}]
    path = tmp_path / "qwen_traceA_blksz_16.jsonl"
    rows = (line(*row) | chat for row, chat in zip((ROOT, later), chats, strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read(path, strict=True).calls
    assert (first.at, second.at) == (0, later[0] - ROOT[0])
    assert [tokens_in(call.prompt) for call in (first, second)] == [ROOT[1], later[1]]
    assert (second.after, second.session == first.session) == (after, after is not None)
    said = joined(first.prompt, first.response)
    whole = 16 * sum(one == other for one, other in zip(ROOT[3], later[3], strict=False))
    assert common(second.prompt, said) == (whole if after is None else tokens_in(said))


@needs_traces
def test_the_whole_conversation_trace_is_read():
    trace, lines = read(CONVERSATION, strict=True), decompressed(CONVERSATION).splitlines()
    assert len(trace.calls) == len(lines) == 12_031
    asked = sum(json.loads(each)["input_length"] for each in lines)
    assert sum(tokens_in(call.prompt) for call in trace.calls) == asked
    assert 3536 <= trace.calls[-1].at <= 3540
    # The routing study counts .388 of the prompts' blocks in an infinite cache of 64 tokens.
    infinite = InfiniteCache(64)
    cached = sum(infinite.admit(call) for call in trace.calls)
    assert cached / asked == pytest.approx(0.388, abs=0.001)
