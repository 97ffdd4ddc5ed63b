"""Recordings as traffic: what was alike is alike, and conversations are found again."""

import gzip
import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Prompt
from epp.protocol.recording import (
    KEY_BYTES,
    VERSION,
    PromptWriter,
    Pseudonyms,
    RecordedLoss,
    RecordedRequest,
    RecordingHeader,
    encode_line,
)
from epp.replay.traffic.calls import block_keys, joined, tokens_in
from epp.replay.traffic.formats import read_file

HEADER = RecordingHeader(
    version=VERSION, salt="5a", part=1, started="2026-11-22T20:00:00.000+00:00", pool="p"
)
BLOCK = 16


class Recording:
    """Writes parts as `epp serve --record` does, of prompts that a test knows."""

    def __init__(self, folder, *, exact=True, key=bytes(KEY_BYTES), header=HEADER):
        self.exact = exact
        self.folder = folder
        self.header = header
        self.names = Pseudonyms(key)
        self.number = 0
        self.begin()

    def begin(self):
        """Begin a part."""
        self.writer = PromptWriter(self.names)
        self.lines = [encode_line(self.header)]
        self.header = msgspec.structs.replace(self.header, part=self.header.part + 1)

    def asked(self, at, *messages, tokens=0, generated=None, model="m", marked=True, **more):
        """Record a request: messages are token ids, or texts as bytes.

        The ends of messages are known if `marked`, as in a chat.
        """
        self.number += 1
        marks, data = [], b""
        for message in messages:
            data += b"".join(t.to_bytes(4, "little") for t in message) if self.exact else message
            marks.append(len(data) // 4 if self.exact else len(data))
        prompt = Prompt(data, exact=self.exact, marks=tuple(marks) if marked else ())
        chain = BlockHasher(b"secret").chain(prompt, model, "")
        size = len(data) // 4
        line = RecordedRequest(
            n=self.number,
            at=at,
            prompts=(self.writer.written(chain, size),),
            **{
                "outcome": "completed",
                "model": model,
                "api": "chat",
                "end": 1.0,
                "prompt_tokens": tokens or size,
                "generated_tokens": generated,
            }
            | more,
        )
        self.lines.append(encode_line(line))

    def part(self, name="p-1.jsonl.gz"):
        """Write the part; give its path."""
        path = self.folder / name
        path.write_bytes(b"".join(gzip.compress(line) for line in self.lines))
        return path


def numbered(seed, length):
    """Tokens that other seeds do not have."""
    draw = random.Random(seed)  # noqa: S311 (a test's)
    return [draw.randrange(1 << 31) for _ in range(length)]


@pytest.fixture
def recording(tmp_path):
    return Recording(tmp_path)


HISTORIES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=5),
    min_size=1,
    max_size=12,
)


@given(HISTORIES)
@settings(max_examples=60)
def test_prompts_share_as_many_tokens_as_they_did(tmp_path_factory, histories):
    recording = Recording(tmp_path_factory.mktemp("r"))
    prompts = []
    for number, history in enumerate(histories):
        messages = [numbered(seed, length) for seed, length in history]
        prompts.append([token for message in messages for token in message])
        recording.asked(float(number), *messages, generated=3, end=1e6)
    calls = read_file(recording.part(), strict=True).calls
    assert [tokens_in(call.prompt) for call in calls] == list(map(len, prompts))
    for one in range(len(prompts)):
        for other in range(one):
            pairs = zip(prompts[one], prompts[other], strict=False)
            alike = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            if alike is None:
                alike = min(len(prompts[one]), len(prompts[other]))
            keys = [block_keys(calls[each].prompt, BLOCK) for each in (one, other)]
            shared = sum(a == b for a, b in zip(*keys, strict=False))
            assert shared == alike // BLOCK


@pytest.mark.parametrize("exact", [True, False])
def test_the_next_turn_repeats_the_answer(tmp_path, exact):
    recording = Recording(tmp_path, exact=exact)
    say = numbered if exact else lambda seed, length: bytes(numbered_bytes(seed, 4 * length))
    question, answer, more = say(1, 100), say(2, 50), say(3, 30)
    recording.asked(10.0, question, generated=50)
    recording.asked(15.0, question, answer, more, generated=7)
    first, second = read_file(recording.part(), strict=True).calls
    assert (first.at, second.at) == (0.0, 5.0)
    assert (first.after, second.after, second.session) == (None, 0, first.session)
    assert second.think == 4.0  # the answer was there at 11.0
    assert [tokens_in(each.prompt) for each in (first, second)] == [100, 180]
    assert [tokens_in(each.response) for each in (first, second)] == [50, 7]
    repeated = joined(first.prompt, first.response)
    assert block_keys(second.prompt, 10)[:15] == block_keys(repeated, 10)
    assert second.marks == (100, 150, 180)


@pytest.mark.parametrize("outcome", ["unobserved", "aborted"])
def test_a_pause_is_known_only_where_the_answer_was_seen_to_its_end(recording, outcome):
    question, answer, more = numbered(1, 100), numbered(2, 50), numbered(3, 30)
    recording.asked(10.0, question, outcome=outcome, first=0.5, end=0.5, stream=True)
    recording.asked(20.0, question, answer, more)
    first, second = read_file(recording.part(), strict=True).calls
    assert tokens_in(first.response) == 50  # as the next prompt has it
    # Of the 9.5 seconds most may have gone by while the answer was generated.
    assert (second.after, second.at, second.think) == (0, 10.0, 0.0)


def numbered_bytes(seed, length):
    draw = random.Random(seed)  # noqa: S311 (a test's)
    return [draw.randrange(97, 123) for _ in range(length)]


def test_an_answer_that_is_not_said_again_is_nobody_elses(recording):
    question, thought, more = numbered(1, 64), numbered(2, 20), numbered(3, 16)
    recording.asked(0.0, question, generated=500)  # of which 480 were thoughts
    recording.asked(2.0, question, thought, more, generated=1)
    first, second = read_file(recording.part(), strict=True).calls
    assert second.after == 0
    assert tokens_in(first.response) == 500
    tokens = {run.token for run in second.prompt}
    for each in (first, second):
        assert not tokens & {run.token for run in each.response}


def test_who_came_before_the_answer_goes_on_with_nobody(recording):
    question = numbered(1, 64)
    recording.asked(0.0, question, generated=5, end=9.0)
    recording.asked(1.0, question, numbered(2, 5), numbered(3, 5), generated=5)
    assert [call.after for call in read_file(recording.part(), strict=True).calls] == [None, None]


def test_who_shares_no_more_than_a_system_prompt_goes_on_with_nobody(recording):
    system = numbered(1, 64)
    recording.asked(0.0, system, numbered(2, 5), generated=5)
    recording.asked(5.0, system, numbered(3, 7), numbered(4, 20), generated=5)
    assert [call.after for call in read_file(recording.part(), strict=True).calls] == [None, None]


@pytest.mark.parametrize("marked", [True, False])  # of a chat, or of a completion
def test_what_begins_like_an_earlier_prompt_goes_on_with_the_last_such(recording, marked):
    text, answer = numbered(1, 64), numbered(2, 16)
    recording.asked(0.0, text, generated=16, marked=marked)
    recording.asked(5.0, text, answer, numbered(3, 5), generated=1, marked=marked)
    recording.asked(5.5, text, generated=16, marked=marked)
    recording.asked(8.0, text, answer, numbered(4, 5), generated=1, marked=marked)
    calls = read_file(recording.part(), strict=True).calls
    assert [call.after for call in calls] == [None, 0, None, 2]


def test_lengths_that_were_not_seen_are_those_of_others(recording):
    for number, generated in enumerate((7, 9)):
        recording.asked(0.0, numbered(number, 20), generated=generated)
    for number in range(2, 40):
        recording.asked(1.0, numbered(number, 20), outcome="unobserved", max_tokens=8, end=None)
    path = recording.part()
    lengths = [tokens_in(call.response) for call in read_file(path, seed=1).calls]
    assert lengths[:2] == [7, 9]
    assert set(lengths[2:]) == {7, 8}  # of 9 the limit leaves 8
    assert lengths == [tokens_in(call.response) for call in read_file(path, seed=1).calls]
    assert lengths != [tokens_in(call.response) for call in read_file(path, seed=2).calls]


def test_what_a_call_is_besides(recording):
    for model in ("llama", "llama", "lora-a"):
        recording.asked(
            0.0,
            numbered(1, 20),
            model=model,
            tenant="7f",
            priority=-1,
            max_tokens=40,
            outcome="rejected",
            end=None,
        )
    calls = read_file(recording.part(), strict=True).calls
    assert [call.adapter for call in calls] == ["", "", "lora-a"]
    assert {(call.tenant, call.priority, call.max_tokens) for call in calls} == {("7f", -1, 40)}
    # Nothing was generated anywhere: the limit is what is known.
    assert {tokens_in(call.response) for call in calls} == {40}


def test_long_prompts_are_few_runs(recording):
    shared = numbered(1, 100_000)
    for number in range(4):
        recording.asked(float(number), shared, numbered(number + 2, 100), generated=5)
    for call in read_file(recording.part(), strict=True).calls:
        assert len(call.prompt) <= 3


def test_parts_follow_each_other(recording):
    question, answer = numbered(1, 64), numbered(2, 40)
    recording.asked(0.0, question, generated=40)
    recording.part("p-1.jsonl.gz")
    recording.begin()
    recording.asked(5.0, question, answer, numbered(3, 5), generated=4)
    recording.part("p-2.jsonl.gz")
    first, second = read_file(recording.folder, strict=True).calls
    assert (second.after, tokens_in(first.response)) == (0, 40)
    assert block_keys(second.prompt, 8)[:13] == block_keys(joined(first.prompt, first.response), 8)


def test_a_missing_part_is_a_problem_and_one_that_was_removed_first_is_none(recording):
    for number in (1, 2, 4):
        recording.header = msgspec.structs.replace(HEADER, part=number + 1)
        recording.begin()
        recording.asked(float(number), numbered(number, 20), generated=1)
        recording.part(f"p-{number}.jsonl.gz")
    trace = read_file(recording.folder)
    assert (len(trace.calls), trace.skipped) == (3, 1)
    assert trace.problems[0].endswith("p-4.jsonl.gz:1: it is part 5, after part 3")


def other_run(recording, name="p-2.jsonl.gz", **more):
    """Record what a picker does that was started again a minute later, with the same prompts."""
    more = {"salt": "c3", "started": "2026-11-22T20:01:00.000+00:00"} | more
    again = Recording(
        recording.folder,
        header=msgspec.structs.replace(HEADER, **more),
        key=bytes(range(KEY_BYTES)),
    )
    again.asked(5.0, numbered(1, 64), generated=4)
    again.asked(8.0, numbered(1, 64), numbered(2, 40), numbered(3, 5), generated=4)
    return again.part(name)


def test_runs_of_one_picker_are_one_traffic_that_shares_nothing(recording):
    recording.asked(10.0, numbered(1, 64), generated=40)
    recording.part("p-1.jsonl.gz")
    other_run(recording)
    first, second, third = read_file(recording.folder, strict=True).calls
    assert [first.at, second.at, third.at] == [0.0, 55.0, 58.0]
    assert [each.after for each in (first, second, third)] == [None, None, 1]
    keys = [block_keys(each.prompt, 8) for each in (first, second, third)]
    assert not set(keys[0]) & {*keys[1], *keys[2]}
    assert keys[2][: len(keys[1])] == keys[1]


def test_runs_whose_files_are_in_no_order_are_read_alike(recording):
    recording.asked(10.0, numbered(1, 64), generated=40)
    recording.part("p-2.jsonl.gz")
    other_run(recording, "p-1.jsonl.gz")
    recording.begin()
    recording.asked(70.0, numbered(1, 64), numbered(4, 9), generated=4)
    recording.part("p-3.jsonl.gz")
    calls = read_file(recording.folder, strict=True).calls
    assert [each.at for each in calls] == [0.0, 55.0, 58.0, 60.0]
    assert [each.after for each in calls] == [None, None, 1, 0]


def test_two_pools_are_refused_with_their_names(recording):
    recording.asked(0.0, numbered(1, 20), generated=1)
    recording.part("p-1.jsonl.gz")
    other_run(recording, pool="q")
    with pytest.raises(ConfigError, match=r"p-2.jsonl.gz:1: it is of the pool q, and .*p-1"):
        read_file(recording.folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "of version 2; this reads version 1"),
        ({"salt": 3}, "the file is not a recording"),
        ({"started": "at noon"}, "Invalid isoformat string"),
    ],
)
def test_another_version_is_refused(change, said, tmp_path):
    (tmp_path / "p").write_text(json.dumps(msgspec.to_builtins(HEADER) | change))
    with pytest.raises(ConfigError, match=said):
        read_file(tmp_path / "p")


def test_a_part_that_is_cut_off_in_the_middle_is_read_up_to_there(recording):
    for number in range(20):
        recording.asked(float(number), numbered(number, 50), generated=1)
    path = recording.part()
    whole = path.read_bytes()
    for length in range(len(whole) // 2, len(whole) // 2 + 60):
        path.write_bytes(whole[:length])
        trace = read_file(path)
        assert 5 < len(trace.calls) < 15
        assert trace.skipped <= 1
    with pytest.raises(ConfigError, match="cut off"):
        read_file(path, strict=True)


SHORT = {"number": 1, "size": 2, "tokens": 5, "hashes": "AAAAAAAAAAA=", "lengths": [9]}
BAD = [
    ({"at": -1.0}, "request 1 has a time that is negative"),
    ({"decided": 1e300}, "request 1 has a time that is negative, or beyond a year"),
    ({"endpoint": "pod-0"}, "`pod-0` is not an endpoint's name"),
    ({"endpoint": "a/b", "prefill": "c"}, "`c` is not an endpoint's name"),
    (
        {
            "kind": "endpoints",
            "at": 0.0,
            "endpoints": [{"id": "", "kv_tokens": 1, "block_tokens": 1}],
        },
        "`` is not an endpoint's name",
    ),
    ({"prompts": [{"number": 1, "size": -5, "tokens": 4}]}, "request 1 has an empty prompt"),
    ({"prompts": [{"number": 1, "size": 20, "tokens": 5, "like": 9}]}, "like prompt 9"),
    ({"prompts": [{"number": 1, "size": 20, "tokens": 5, "hashes": "AA"}]}, "padding"),
    (
        {
            "prompts": [
                {"number": 1, "size": 2, "tokens": 5, "hashes": "AAAAAAAAAAA=", "lengths": [9]}
            ]
        },
        "longer than the prompt, by 7",
    ),
    ({"kind": "bill"}, "Invalid value 'bill'"),
    ({"n": "one"}, "Expected `int`, got `str`"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_a_bad_line_is_named_and_left_out(change, said, recording):
    recording.asked(0.0, numbered(1, 20), generated=1)
    line = json.loads(recording.lines[1])
    recording.lines.insert(1, json.dumps(line | change).encode() + b"\n")
    path = recording.part()
    trace = read_file(path)
    assert (len(trace.calls), trace.skipped) == (1, 1)
    assert f"{path}:2: " in trace.problems[0]
    assert said in trace.problems[0]
    with pytest.raises(ConfigError, match=f"{path}:2: "):
        read_file(path, strict=True)


def test_a_reference_beyond_what_is_there_is_a_bad_line(recording):
    recording.asked(0.0, numbered(1, 32), generated=1)
    recording.asked(1.0, numbered(1, 64), generated=1)
    line = json.loads(recording.lines[2])
    line["prompts"][0]["shared"] = 5
    recording.lines[2] = json.dumps(line).encode() + b"\n"
    trace = read_file(recording.part())
    assert trace.problems[0].endswith(":3: it has no 5 blocks")


def test_lost_requests_are_a_problem(recording):
    recording.lines.append(encode_line(RecordedLoss(at=1.0, requests=12)))
    recording.asked(2.0, numbered(1, 20), generated=1)
    assert read_file(recording.part()).problems[0].endswith(":2: 12 requests before it were lost")


def test_a_recording_without_a_prompt_holds_no_traffic(recording):
    line = RecordedRequest(n=1, at=0.0, outcome="rejected", reason="malformed-request")
    recording.lines.append(encode_line(line))
    with pytest.raises(ConfigError, match="holds no request that can be used"):
        read_file(recording.part())
