"""What is read of OpenAI's bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.request_json import parse_request

TEXT = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}


def parse(api: Api, **body):
    return parse_request(api, json.dumps({"model": "m"} | body).encode())


def test_a_longer_conversation_starts_with_the_shorter_one():
    turns = [TEXT, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "why?"}]
    short = parse(Api.CHAT, messages=turns[:1]).prompts[0].data
    long = parse(Api.CHAT, messages=turns).prompts[0].data
    assert long.startswith(short)


def test_order_of_keys_and_white_space_do_not_matter():
    one = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
    two = b'{ "stream": true, "messages": [ {"content": "hi" , "role": "user"} ], "model": "m" }'
    assert parse_request(Api.CHAT, one) == parse_request(Api.CHAT, two)


LOW = {"effort": "low"}


@pytest.mark.parametrize(
    ("api", "more"),
    [
        (Api.CHAT, {"messages": [{"role": "system", "content": "hi"}]}),
        (Api.CHAT, {"messages": [{"role": "user", "content": "hi!"}]}),
        (Api.CHAT, {"tools": [{"type": "function"}]}),
        (Api.CHAT, {"documents": [{"title": "a", "text": "b"}]}),
        (Api.CHAT, {"chat_template": "{{ messages }}"}),
        (Api.CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
        (Api.CHAT, {"reasoning_effort": "high"}),
        (Api.CHAT, {"messages": [TEXT | {"tool_calls": [{"id": "x"}]}]}),
        (Api.CHAT, {"messages": [TEXT | {"reasoning_content": "hm"}]}),
        (Api.CHAT, {"messages": [TEXT | {"reasoning": "hm"}]}),
        (Api.CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}),
        (Api.RESPONSES, {"reasoning": LOW}),
        (Api.RESPONSES, {"chat_template_kwargs": {"enable_thinking": False}}),
        (Api.MESSAGES, {"thinking": {"type": "disabled"}}),
        (Api.MESSAGES, {"output_config": LOW}),
        (Api.MESSAGES, {"output_config": LOW, "thinking": {"type": "adaptive"}}),
        (Api.MESSAGES, {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_fields_that_reach_the_engines_prompt_change_this_one(api, more):
    assert prompts(api, **more) != prompts(api)


@pytest.mark.parametrize(
    ("api", "one", "other"),
    [
        # A server may leave out the tools (`--exclude-tools-when-tool-choice-none`): not by default
        (Api.CHAT, {"tools": [5]}, {"tools": [5], "tool_choice": "none"}),
        (Api.CHAT, {}, {"response_format": {"type": "json_object"}}),
        (Api.CHAT, {}, {"tools": None, "chat_template": None, "reasoning_effort": None}),
        (Api.CHAT, {}, {"tools": [], "documents": [], "chat_template_kwargs": {}}),
        (Api.RESPONSES, {"reasoning": LOW}, {"reasoning": {"summary": "auto", **LOW}}),
        (Api.RESPONSES, {}, {"reasoning": {"summary": "auto", "effort": None}}),
        (Api.RESPONSES, {}, {"text": {"format": {"type": "json_object"}}}),
        (Api.MESSAGES, {}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (Api.MESSAGES, {}, {"thinking": {"type": "adaptive"}}),
        (Api.MESSAGES, {}, {"output_config": {"format": {"effort": "low"}}}),
        (
            Api.MESSAGES,
            {"thinking": {"type": "disabled"}},
            {"output_config": LOW, "thinking": {"type": "disabled"}},
        ),
    ],
)
def test_fields_that_do_not_reach_the_engines_prompt_leave_this_one(api, one, other):
    assert prompts(api, **one) == prompts(api, **other)


def prompts(api, **more):
    return parse(api, **{"messages": [TEXT], "input": "hi"} | more).prompts


def test_the_effort_of_a_response_is_before_its_instructions():
    one, other = (
        prompts(Api.RESPONSES, instructions="be", reasoning={"effort": effort})[0]
        for effort in ("low", "high")
    )
    assert len(one.data) == len(other.data)
    assert one.data[:16] != other.data[:16]
    assert one.data[16:] == prompts(Api.RESPONSES, instructions="be")[0].data


def test_parts_of_text_are_text_and_media_count_as_one_picture():
    parts = [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": {"url": "a" * 9999}},
    ]
    plain = parse(Api.CHAT, messages=[TEXT]).prompts[0].data
    mixed = parse(Api.CHAT, messages=[{"role": "user", "content": parts}]).prompts[0].data
    assert mixed.startswith(plain)
    assert len(mixed) == len(plain) + 900


def test_a_template_is_no_text_of_the_prompt():
    plain = parse(Api.CHAT, messages=[TEXT], documents=["x"]).prompts[0]
    templated = parse(Api.CHAT, messages=[TEXT], documents=["x"], chat_template="t" * 9999).prompts[
        0
    ]
    assert len(templated.data) == len(plain.data) + 16
    assert templated.data.endswith(plain.data)


@pytest.mark.parametrize(
    ("api", "more", "skips"),
    [
        (Api.CHAT, {}, False),
        (Api.CHAT, {"logprobs": True, "top_logprobs": 5}, False),
        (Api.CHAT, {"prompt_logprobs": 0}, True),
        (Api.CHAT, {"prompt_logprobs": None}, False),
        (Api.CHAT, {"echo": True}, True),
        (Api.CHAT, {"echo": True, "top_logprobs": None}, False),
        (Api.CHAT, {"echo": False, "top_logprobs": 5}, False),
        (Api.COMPLETIONS, {"prompt_logprobs": 1}, True),
        (Api.COMPLETIONS, {"echo": True}, False),
        (Api.COMPLETIONS, {"echo": "true", "logprobs": 0}, True),
        (Api.COMPLETIONS, {"logprobs": 1}, False),
        (Api.GENERATE, {"sampling_params": {"prompt_logprobs": 1}}, True),
        (Api.GENERATE, {"sampling_params": {"skip_reading_prefix_cache": True}}, True),
        (
            Api.GENERATE,
            {"sampling_params": {"prompt_logprobs": 1, "skip_reading_prefix_cache": False}},
            False,
        ),
        (Api.GENERATE, {"sampling_params": {"logprobs": 1}}, False),
    ],
)
def test_where_an_engine_reads_no_cache(api, more, skips):
    body = {"messages": [TEXT], "prompt": "hi", "token_ids": [1, 2]} | more
    data = json.dumps({"model": "m"} | body).encode()
    assert parse_request(api, data).skip_reading_prefix_cache is skips
    arriving = Body(api)
    arriving.feed(data)
    assert arriving.parse().skip_reading_prefix_cache is skips


def test_limits_and_salt():
    parsed = parse(
        Api.CHAT,
        messages=[TEXT],
        stream=True,
        max_tokens=5,
        max_completion_tokens=7,
        cache_salt="s",
    )
    assert (parsed.stream, parsed.max_tokens, parsed.cache_salt) == (True, 7, "s")
    assert parse(Api.RESPONSES, input="x", max_output_tokens=9).max_tokens == 9
    assert parse(Api.CHAT, messages=[TEXT], stream=None).stream is False


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", (Prompt(b'"ab'),)),
        (["a", "b"], (Prompt(b'"a'), Prompt(b'"b'))),
        ([1, 258], (Prompt(b"\x01\0\0\0\x02\x01\0\0", True),)),
        ([[1], [2]], (Prompt(b"\x01\0\0\0", True), Prompt(b"\x02\0\0\0", True))),
        ([[1], "a"], (Prompt(b"\x01\0\0\0", True), Prompt(b'"a'))),
    ],
)
@pytest.mark.parametrize(("api", "field"), [(Api.COMPLETIONS, "prompt"), (Api.EMBEDDINGS, "input")])
def test_forms_of_a_prompt(api, field, prompt, expected):
    assert parse(api, **{field: prompt}).prompts == expected


@pytest.mark.parametrize(
    ("api", "text", "embeds"),
    [
        (Api.COMPLETIONS, "prompt", "prompt_embeds"),
        (Api.SGLANG_GENERATE, "text", "input_embeds"),
    ],
)
def test_embeddings_are_no_text_and_hide_none(api, text, embeds):
    assert parse(api, **{text: "ab", embeds: "AAAA"}).prompts == (Prompt(b'"ab'),)
    assert parse(api, **{text: None, embeds: "AAAA"}).prompts == ()
    with pytest.raises(MalformedRequest):
        parse(api, **{text: None, embeds: None})


@pytest.mark.parametrize("field", ["messages", "input"])
def test_chats_may_be_embedded_together(field):
    first, second = [TEXT], [{"role": "system", "content": "be brief"}, TEXT]
    together = parse(Api.EMBEDDINGS, **{field: [first, second]}).prompts
    alone = [parse(Api.EMBEDDINGS, messages=chat).prompts[0] for chat in (first, second)]
    assert together == tuple(alone)
    spaced = b'{"model":"m","%s": [ [ {"role":"user","content":"x"} ] ]}' % field.encode()
    assert [each.data for each in parse_request(Api.EMBEDDINGS, spaced).prompts] == [b'\n<user>"x"']
    odd = parse(Api.EMBEDDINGS, **{field: [[{"role": "system", "content": []}], None]}).prompts
    assert [each.data for each in odd] == [b"\n<system>", b""]
    assert parse(Api.EMBEDDINGS, **{field: first}).prompts == tuple(alone[:1])


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, {}),
        (Api.CHAT, {"messages": []}),
        (Api.CHAT, {"messages": None}),
        (Api.CHAT, {"messages": [1]}),
        (Api.CHAT, {"messages": [{"role": 1}]}),
        (Api.COMPLETIONS, {}),
        (Api.COMPLETIONS, {"prompt": 1}),
        (Api.COMPLETIONS, {"prompt": []}),
        (Api.COMPLETIONS, {"prompt": [1, "a"]}),
        (Api.COMPLETIONS, {"prompt": [1.5]}),
        (Api.COMPLETIONS, {"prompt": [-1]}),
        (Api.COMPLETIONS, {"prompt": [2**32]}),
        (Api.COMPLETIONS, {"prompt": [10**30]}),
        (Api.COMPLETIONS, {"prompt": ["a", {}]}),
        (Api.COMPLETIONS, {"prompt": [[1, "a"]]}),
        (Api.EMBEDDINGS, {"input": None}),
        (Api.EMBEDDINGS, {"messages": 1}),
        (Api.EMBEDDINGS, {"messages": [[]]}),
        (Api.EMBEDDINGS, {"messages": [[TEXT], TEXT]}),
        (Api.RESPONSES, {}),
    ],
)
def test_bodies_that_do_not_fit_their_path(api, body):
    with pytest.raises(MalformedRequest) as caught:
        parse(api, **body)
    assert caught.value.status == 400
    assert str(caught.value)


@pytest.mark.parametrize("name", [None, ""])
def test_a_body_without_a_models_name_is_read(name):
    parsed = parse(Api.CHAT, messages=[TEXT], model=name)
    assert (parsed.model, len(parsed.prompts)) == ("", 1)


def test_responses_input_items_render_as_messages():
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    parsed = parse(Api.RESPONSES, input=[item, call], instructions="be brief")
    data = parsed.prompts[0].data
    assert data.startswith(b'"be brief"\n<user>"hi"')
    assert b'"function_call"' in data
    head, *ends = len(b'"be brief"'), len(b'"be brief"\n<user>"hi"'), len(data)
    assert parsed.prompts[0].marks == [head, *ends]
    bare = parse(Api.RESPONSES, input=[item, call]).prompts[0]
    assert bare.marks == [end - head for end in ends]
    longer = parse(Api.RESPONSES, input=[item, call, item], instructions="be brief")
    assert longer.prompts[0].data.startswith(data)


@given(st.binary(max_size=80), st.sampled_from([each for each in Api if each is not Api.OTHER]))
def test_any_bytes_are_refused_or_read(data, api):
    try:
        parse_request(api, data)
    except MalformedRequest as error:
        assert error.status == 400  # noqa: PT017 (either outcome will do)


BLOCK = {"type": "image", "source": {"type": "base64", "data": "eA=="}}


@pytest.mark.parametrize(
    ("api", "content", "multimodal"),
    [
        (Api.CHAT, "an image", False),
        (Api.CHAT, [{"type": "text", "text": "image_url"}], False),
        (Api.CHAT, [{"type": "text", "text": "this:"}, IMAGE], True),
        (Api.CHAT, [{"type": "input_audio", "input_audio": {"data": "eA=="}}], True),
        (Api.CHAT, [{"type": "video_url", "video_url": {"url": "data:,x"}}], True),
        (Api.MESSAGES, [{"type": "text", "text": "image"}], False),
        (Api.MESSAGES, [BLOCK], True),
        (Api.MESSAGES, [{"type": "tool_result", "tool_use_id": "t", "content": [BLOCK]}], True),
        (Api.MESSAGES, [{"type": "tool_result", "tool_use_id": "t", "content": "x"}], False),
        (Api.RESPONSES, [{"type": "input_text", "text": "x"}], False),
        (Api.RESPONSES, [{"type": "input_image", "image_url": "data:,x"}], True),
    ],
)
def test_media_are_noticed(api, content, multimodal):
    field = "input" if api is Api.RESPONSES else "messages"
    body = json.dumps({"model": "m", field: [{"role": "user", "content": content}]}).encode()
    assert parse_request(api, body).multimodal is multimodal
    read = Body(api)
    read.feed(body)
    assert read.parse().multimodal is multimodal


@pytest.mark.parametrize("hashes", [["a"], []])
def test_media_of_token_ids_are_noticed(hashes):
    places = [{"offset": 1, "length": 2} for _ in hashes]
    features = {"mm_hashes": {"image": hashes}, "mm_placeholders": {"image": places}}
    body = json.dumps({"token_ids": [1, 2, 3, 4], "features": features}).encode()
    assert parse_request(Api.GENERATE, body).multimodal is bool(hashes)
