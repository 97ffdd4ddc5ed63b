"""aiperf's sessions: turns with what is new, and pauses between them."""

import json

import pytest

from epp.replay.traffic.calls import block_keys, joined, tokens_in
from epp.replay.traffic.reading import read

TURNS = [
    {"session_id": "a", "timestamp": 5000, "input_length": 600, "output_length": 40},
    {"session_id": "a", "delay": 2000, "input_length": 300, "output_length": 20},
    {"session_id": "b", "timestamp": 5500, "input_length": 600, "output_length": 0},
    {"session_id": "a", "delay": 0, "input_length": 10, "output_length": 7},
    {"timestamp": 6000, "input_length": 9, "output_length": 9},
]


def read_lines(tmp_path, rows, **more):
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read(path, **more)


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


def with_hashes(row, *ids):
    return row | {"hash_ids": list(ids)}


def test_a_turn_comes_a_pause_after_the_answer_before_it_and_holds_all_that_was_said(tmp_path):
    calls = read_lines(tmp_path, TURNS, strict=True).calls
    first, second, third, other, alone = sorted(calls, key=lambda call: (call.session, call.at))[:5]
    told = [(call.at, call.think, tokens_in(call.prompt)) for call in (first, second, third)]
    assert told == [(0.0, 0.0, 600), (0.0, 2.0, 600 + 40 + 300), (0.0, 0.0, 940 + 20 + 10)]
    assert [calls[each.after] for each in (second, third)] == [first, second]
    assert list(second.prompt)[:2] == joined(first.prompt, first.response)
    assert third.marks == (600, 640, 940, 960, 970)
    assert (other.at, other.after, tokens_in(other.response)) == (0.5, None, 1)
    assert (alone.at, alone.after, tokens_in(alone.prompt)) == (1.0, None, 9)
    tokens = [{run.token for run in call.prompt} for call in (first, other, alone)]
    assert len(set.union(*tokens)) == sum(map(len, tokens))


def test_sessions_without_times_begin_at_once(tmp_path):
    trace = read_lines(tmp_path, [without(row, "timestamp") for row in TURNS], strict=True)
    assert [call.at for call in trace.calls] == [0.0] * len(TURNS)


def test_equal_hash_ids_are_equal_blocks_of_what_is_new(tmp_path):
    rows = [
        with_hashes(TURNS[0], 1, 2),
        with_hashes(TURNS[1], 3),
        with_hashes(TURNS[2], 1, 2),
    ]
    calls = read_lines(tmp_path, rows, strict=True).calls
    (first, second), (other,) = (
        [call for call in calls if (call.at > 0) is later] for later in (False, True)
    )
    assert list(first.prompt) == list(other.prompt)
    assert tokens_in(second.prompt) == 940
    assert block_keys(second.prompt, 16)[:37] == block_keys(first.prompt, 16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"delay": -1}, "its `delay` is negative"),
        ({"delay": 1e15}, "more than a year"),
        ({"input_length": 0}, "lengths must be positive"),
        ({"hash_ids": [1, 2]}, "300 tokens are 1 blocks of 512"),
        ({"context_mode": "message_array_with_responses"}, "its `context_mode` is not"),
        ({"input_length": (1 << 20) - 100}, "its session has more than 1,048,576 tokens"),
    ],
)
def test_turns_that_cannot_be_used_are_left_out(tmp_path, change, said):
    trace = read_lines(tmp_path, [TURNS[0], TURNS[1] | change, *TURNS[1:3]])
    assert said in trace.problems[0]
    left = 2 if "session" in said else 3  # a session ends before a prompt that is too long
    assert (len(trace.calls), trace.skipped) == (left, 1)
