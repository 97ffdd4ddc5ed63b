"""Traces with text: LMCache's agents, logs of OpenAI's API, vLLM's own log."""

import json

import pytest

from epp.errors import ConfigError
from epp.replay.traffic.calls import InfiniteCache, block_keys, joined, tokens_in
from epp.replay.traffic.reading import read
from tests.public_traces import AGENTS, needs_traces


def lines(folder, *rows, name="log.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def common(one, other):
    """How many tokens two prompts have in common."""
    pairs = enumerate(zip(block_keys(one, 1), block_keys(other, 1), strict=False))
    shorter = min(tokens_in(one), tokens_in(other))
    return next((at for at, (left, right) in pairs if left != right), shorter)


def said(call):
    return joined(call.prompt, call.response)


def agent(at, asked, answer, session="a"):
    return {"timestamp": at * 1_000_000, "input": asked, "output": answer, "session_id": session}


def test_messages_of_agents_are_cut_where_roles_begin(tmp_path):
    head = "system: " + "be good " * 20
    first = agent(0, head + "\nuser: hello", "hi")
    other = agent(4, head + "\nuser: bye", "see you", "b")
    one, two = read(lines(tmp_path, first, other), strict=True).calls
    # 168 characters and the line feed of the next message: 2 chunks of 64, and one of 40.
    assert one.marks[0] == two.marks[0] == 16 + 16 + 10
    assert common(one.prompt, two.prompt) == one.marks[0]
    assert (one.after, two.after) == (None, None)


def test_an_agent_thinks_as_long_as_recorded_up_to_a_bound_in_a_closed_loop(tmp_path):
    rows = [agent(at, "user: " + "x" * 100 * (at + 1), "yes") for at in (0, 3, 60)]
    trace = read(lines(tmp_path, *rows), strict=True)
    assert trace.closed
    assert [call.after for call in trace.calls] == [None, 0, 1]
    assert [call.think for call in trace.calls] == [0, 3, 11]
    assert len({call.at for call in trace.calls}) == 1
    first, second, third = trace.calls
    assert common(first.prompt, second.prompt) == tokens_in(first.prompt)
    assert set(first.marks) <= set(second.marks) <= set(third.marks)


def test_an_agent_without_a_prompt_is_a_bad_line(tmp_path):
    path = lines(tmp_path, agent(0, "user: hello", ""), agent(1, "", "lost"))
    trace = read(path)
    assert (len(trace.calls), trace.skipped) == (1, 1)
    assert tokens_in(trace.calls[0].response) == 1
    with pytest.raises(ConfigError, match=r"log\.jsonl:2: its prompt is empty"):
        read(path, strict=True)


@needs_traces
def test_the_public_agents_reuse_what_the_routing_study_found():
    trace = read(AGENTS)
    assert (len(trace.calls), trace.skipped) == (1566, 53)
    infinite = InfiniteCache(64)
    cached = sum(infinite.admit(call) for call in trace.calls)
    # .890 of the 1,265 requests that the study took.
    asked = sum(tokens_in(call.prompt) for call in trace.calls)
    assert cached / asked == pytest.approx(0.89, abs=0.015)


SYSTEM = {"role": "system", "content": "Answer in one word. " * 10}
QUESTION = {"role": "user", "content": "What is the capital of France?"}
ANSWER = {"role": "assistant", "content": "Paris"}
MORE = {"role": "user", "content": "And of Italy?"}


def chat(at, *messages, answer="Paris", **more):
    reply = {"role": "assistant", "content": answer}
    response = {"choices": [{"message": reply}]}
    return {
        "timestamp": at,
        "request": {"model": "m", "messages": [*messages], **more},
        "response": response,
    }


def test_a_chat_that_quotes_another_goes_on_with_it(tmp_path):
    path = lines(
        tmp_path,
        chat(100, SYSTEM, QUESTION, max_tokens=20, user="me"),
        {"timestamp": 101, "request": {"prompt": [1, 2, 3], "max_tokens": 9}},
        chat(103, SYSTEM, MORE, answer="?"),
        chat(104.5, SYSTEM, QUESTION, ANSWER, MORE, answer="Rome"),
    )
    first, tokens, other, later = calls = read(path, strict=True).calls
    assert [call.at for call in calls] == [0, 1, 3, 4.5]
    assert (first.after, tokens.after, other.after, later.after) == (None, None, None, 0)
    assert first.session == later.session != other.session
    assert (first.max_tokens, first.tenant) == (20, "me")
    # What was said is a prefix of what is said next, the role before the answer included.
    assert common(later.prompt, said(first)) == tokens_in(said(first))
    assert common(other.prompt, first.prompt) >= other.marks[0]
    assert later.marks[1] == first.marks[1]
    assert len(later.marks) == 4


def test_a_request_without_a_time_is_left_out_where_others_have_one(tmp_path):
    timed, untimed = chat(100, QUESTION), chat(None, QUESTION)
    path = lines(tmp_path, timed, untimed, untimed)
    trace = read(path)
    assert [call.at for call in trace.calls] == [0]
    assert trace.problems == tuple(f"{path}:{at}: it has no time, and others have" for at in (2, 3))
    assert [call.at for call in read(lines(tmp_path, untimed, untimed)).calls] == [0, 0]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 30}, 30),
        # Anthropic's: what was cached is not part of `input_tokens`.
        (
            {
                "input_tokens": 30,
                "cache_read_input_tokens": 1000,
                "cache_creation_input_tokens": 200,
            },
            1230,
        ),
        ({"input_tokens": 30, "cache_read_input_tokens": None}, 30),
        # OpenAI's and LiteLLM's: it is.
        ({"input_tokens": 1230, "input_tokens_details": {"cached_tokens": 1000}}, 1230),
        ({"prompt_tokens": 1230, "cache_read_input_tokens": 1000}, 1230),
    ],
)
def test_a_prompt_is_as_long_as_its_usage_says_what_was_cached_included(tmp_path, usage, tokens):
    asked = {"role": "user", "content": "x" * 64 * 100}
    row = chat(0, asked) | {"usage": usage | {"output_tokens": 7}}
    (call,) = read(lines(tmp_path, row), strict=True).calls
    # 100 chunks, each of the tokens that the ratio gives it, between two roles.
    assert tokens_in(call.prompt) - 8 == 100 * max(3, round(tokens / 100))
    flat = {"timestamp": 0, **usage, "output_tokens": 7}
    (call,) = read(lines(tmp_path, flat), strict=True).calls
    assert tokens_in(call.prompt) == tokens


REFUSED = {"message": "slow down", "code": 429}


@pytest.mark.parametrize(
    ("failed", "problem"),
    [
        ({"error": "upstream connect error", "response": None}, "upstream connect error"),
        ({"response": {"error": REFUSED}}, "slow down"),
        ({"response": {"status_code": 200, "body": {"error": REFUSED}}}, "slow down"),
        ({"response": json.dumps({"error": ["no", "room"]})}, "noroom"),
        ({"status": 503}, "503"),
        ({"response": {"status_code": "429", "body": {}}}, "429"),
        ({"response": {"statusCode": 400.0}}, "400.0"),
        ({"status": "failure", "response": {}}, "failure"),  # LiteLLM's
        ({"status": None, "response_status_code": 429}, "429"),  # Portkey's
        ({"response": 'data: {"error": {"message": "slow down"}}'}, "slow down"),
        ({"response": 'data: {"response": {"status": "failed"}}'}, "failed"),
    ],
)
def test_a_request_that_failed_is_left_out(tmp_path, failed, problem):
    good = chat(1, QUESTION) | {"status": "200", "error": None}
    good["response"] |= {"status": "completed", "error": {}}
    path = lines(tmp_path, good, chat(2, SYSTEM, MORE) | failed)
    trace = read(path)
    assert (len(trace.calls), trace.problems) == (1, (f"{path}:2: it failed: {problem}",))


def test_counted_tokens_set_the_scale(tmp_path):
    row = chat(0, {"role": "user", "content": "x" * 640})
    row["usage"] = {"prompt_tokens": 320, "completion_tokens": 50}
    (call,) = read(lines(tmp_path, row), strict=True).calls
    # Half a token a character, and what the template writes about two messages.
    assert tokens_in(call.prompt) == 320 + 2 * 4
    assert tokens_in(call.response) == 50


def event(**fields):
    return f"data: {json.dumps(fields)}\n\n"


STREAM = (
    event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    + event(choices=[{"delta": {"content": "four"}}])
    + event(choices=[{"delta": {"content": "five"}}])
    + "data: [DONE]\n\n"
)
USED = event(choices=[], usage={"prompt_tokens": 16, "completion_tokens": 9})
SAID = {"output": [{"content": [{"text": "four"}]}], "usage": {"output_tokens": 9}}
BEGUN = event(type="response.created", response={"status": "in_progress", "output": []})
BEGUN += event(type="response.output_text.delta", delta="four")


@pytest.mark.parametrize(
    ("row", "prompt", "response"),
    [
        ({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}, None, 256),
        ({"time": "2026-01-02T03:04:05Z", "response": {"output": "x" * 64}}, None, 16),
        ({"ts": 1.5, "usage": {"completion_tokens": 3}}, None, 3),
        ({"body": {"prompt": list(range(40)), "max_tokens": 9}}, 40, 9),
        ({"body": {"prompt": "y" * 128}}, 32, 256),
        ({"body": {"input": [{"role": "user", "content": [{"text": "z" * 64}]}]}}, 24, 256),
        ({"request": json.dumps({"messages": [{"role": "user", "content": "z" * 64}]})}, 24, 256),
        ({"request": {"body": {"prompt": "y" * 128, "max_tokens": 9}}}, 32, 9),
        ({"response": {"status_code": 200, "body": {"choices": [{"text": "four"}]}}}, None, 1),
        ({"response": "x" * 64}, None, 16),
        ({"response": "", "output": "x" * 64}, None, 16),
        ({"response": {}, "prompt_tokens": 16, "completion_tokens": 5}, None, 5),
        ({"response": STREAM}, None, 2),
        ({"response": ": ping\n\n" + STREAM}, None, 2),
        ({"response": "kind: ConfigMap\ndata:\n  key: " + "x" * 99}, None, 32),
        ({"response": {"status": 200, "body": STREAM + USED}}, None, 9),
        ({"response": BEGUN + event(type="response.completed", response=SAID)}, None, 9),
    ],
)
def test_logs_of_many_kinds(tmp_path, row, prompt, response):
    row = {"body": {"messages": [{"role": "user", "content": "w" * 64}]}} | row
    if "request" in row:
        del row["body"]
    (call,) = read(lines(tmp_path, row), strict=True).calls
    assert tokens_in(call.prompt) == (24 if prompt is None else prompt)
    assert tokens_in(call.response) == response


@pytest.mark.parametrize(
    "when",
    [
        lambda at: {"created_at": f"2026-01-01T00:00:{at:02}Z"},  # Portkey's and Cloudflare's
        lambda at: {"request_created_at": f"2026-01-01T00:00:{at:02}Z"},  # Helicone's
        lambda at: {"response": {"created": 1_767_225_600 + at}},
        lambda at: {"response": event(created=1_767_225_600 + at, choices=[])},
    ],
)
def test_when_a_request_came(tmp_path, when):
    rows = [{"request": {"messages": [QUESTION]}} | when(at) for at in (0, 7)]
    assert [call.at for call in read(lines(tmp_path, *rows), strict=True).calls] == [0, 7]


def test_a_log_line_without_a_prompt(tmp_path):
    path = lines(tmp_path, chat(0, QUESTION), {"request": {"messages": []}}, chat(1, QUESTION))
    with pytest.raises(ConfigError, match=r"log\.jsonl:2: its request has no `messages`"):
        read(path, strict=True)
    assert (len(read(path).calls), read(path).skipped) == (2, 1)


# As vllm/entrypoints/serve/utils/request_logger.py of vLLM 0.32 writes it, and that of 0.10.
VLLM = r"""
(APIServer pid=1) INFO 11-22 10:00:00 [api_server.py:1] Started server process [1]
(APIServer pid=1) DEBUG 11-22 10:00:01 [request_logger.py:54] Request cmpl-1 details: prompt: 'Say \'it\'\nplease "now"', prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.
(APIServer pid=1) INFO 11-22 10:00:01 [request_logger.py:65] Received request cmpl-1: params: SamplingParams(n=1, top_p=1.0, max_tokens=16, min_tokens=0), lora_request: None.
(APIServer pid=1) DEBUG 11-22 10:00:02 [request_logger.py:54] Request cmpl-4 details: prompt: None, prompt_token_ids: [1, 2, 3, 4], prompt_embeds shape: None.
(APIServer pid=1) INFO 11-22 10:00:02 [request_logger.py:65] Received request cmpl-4: params: SamplingParams(n=1, max_tokens=16, min_tokens=0), lora_request: None.
(APIServer pid=1) DEBUG 11-22 10:00:02 [request_logger.py:97] Generated response cmpl-4 details: output_token_ids: [7, 8]
(APIServer pid=1) INFO 11-22 10:00:02 [request_logger.py:110] Generated response cmpl-4: output: 'it', finish_reason: length
(APIServer pid=1) DEBUG 11-22 10:00:02 [request_logger.py:97] Generated response cmpl-1 (streaming complete) details: output_token_ids: None
(APIServer pid=1) INFO 11-22 10:00:02 [request_logger.py:110] Generated response cmpl-1 (streaming complete): output: "It's 12345678", finish_reason: stop
INFO 11-22 10:00:05 [logger.py:39] Received request cmpl-2: prompt: 'Say more of it', params: SamplingParams(n=1, max_tokens=7), prompt_token_ids: None, lora_request: LoRARequest(lora_name='sql', lora_int_id=1, lora_path='/x').
INFO 11-22 10:00:06 [logger.py:39] Received request cmpl-3: params: SamplingParams(n=1, max_tokens=7), lora_request: None.
"""  # noqa: E501


def test_vllms_own_log(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(VLLM.lstrip())
    trace = read(path, seed=3)
    first, by_ids, second = trace.calls
    assert (tokens_in(by_ids.prompt), tokens_in(by_ids.response)) == (4, 2)
    assert tokens_in(first.prompt) == 3
    assert tokens_in(first.response) == 3  # 13 characters
    assert (first.max_tokens, first.adapter) == (16, "")
    assert tokens_in(second.prompt) == round(len("Say more of it") / 4)
    assert tokens_in(second.response) == 7  # of which only the limit is known
    assert (second.max_tokens, second.adapter) == (7, "sql")
    assert 0 <= first.at < 1
    assert 4 <= second.at < 5
    assert trace.skipped == 1
    assert "vllm.log:11: nothing is known of its prompt" in trace.problems[0]
    with pytest.raises(ConfigError, match="VLLM_LOGGING_LEVEL=DEBUG"):
        read(path, strict=True)


def test_vllms_log_goes_on_in_the_new_year(tmp_path):
    times = (
        "12-31 23:59:50",
        "12-31 23:59:58",
        "01-01 00:00:01",
        "01-01 00:00:00",
        "01-01 00:00:07",
    )
    text = "INFO {} [logger.py:39] Received request {}: prompt: 'it', params: SamplingParams()."
    path = tmp_path / "vllm.log"
    path.write_text("".join(f"{text.format(at, number)}\n" for number, at in enumerate(times)))
    trace = read(path)
    assert [int(call.at) for call in trace.calls] == [0, 8, 10, 11, 17]
    assert (trace.skipped, trace.reordered) == (0, 1)
