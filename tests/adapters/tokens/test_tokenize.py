"""Tokenization by a server without render endpoints: its `/tokenize` is asked."""

import json

import pytest
from structlog.testing import capture_logs

from epp.adapters.tokens.fallback import FallbackCause
from epp.model.request import Api, InferenceRequest, Prompt, RequestId
from tests.adapters.tokens import bodies
from tests.adapters.tokens.bodies import chat, completions, ids
from tests.adapters.tokens.rendering import (
    CHAT,
    COMPLETIONS,
    DEEP,
    NOT_FOUND,
    RESPONSES,
    TOKENIZE,
    Clock,
    image,
    prompts_of,
)


@pytest.mark.parametrize("missing", [(403, {"error": "x"}), NOT_FOUND])
async def test_a_server_without_a_render_endpoint_tokenizes(server, ask, missing):
    server.answers[CHAT] = server.answers[COMPLETIONS] = missing
    server.answers[TOKENIZE] = (200, {"tokens": [1, 2], "count": 2})
    tokenizer = ask(server, model="base")
    fields = {"add_generation_prompt": False, "chat_template_kwargs": {"a": 1}, "temperature": 1}
    asked = chat("hello", **fields)
    with capture_logs() as logs:
        (prompt,) = await prompts_of(tokenizer, asked)
        assert ids(prompt) == [1, 2]
        want = json.loads(asked.body) | {"model": "base"}
        del want["temperature"]
        assert server.heard[-1] == (TOKENIZE, want)
        await prompts_of(tokenizer, chat("hello"))
    assert [path for path, _ in server.heard] == [CHAT, TOKENIZE, TOKENIZE]
    assert [each["event"] for each in logs] == ["tokens.no_render_endpoint"]

    prompts = await prompts_of(tokenizer, completions(["a", [7]], add_special_tokens=False))
    assert [ids(prompt) for prompt in prompts] == [[1, 2], [7]]
    asked_last = {"model": "base", "prompt": "a", "add_special_tokens": False}
    assert server.heard[-1] == (TOKENIZE, asked_last)
    (prompt,) = await prompts_of(tokenizer, completions("hello"))
    assert ids(prompt) == [1, 2]


ONE, TWO = {"a": 1}, {"enable_thinking": False, "reasoning_effort": "high"}
EFFORT, DOCUMENTS = {"reasoning_effort": "low"}, {"documents": [{"title": "t", "text": "x"}]}
THINKS, THINKS_NOT = {"enable_thinking": True}, {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"chat_template_kwargs": ONE | {"b": None}}, ONE),
        (EFFORT, EFFORT | THINKS),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none"} | THINKS_NOT),
        (EFFORT | {"chat_template_kwargs": TWO}, EFFORT | THINKS_NOT),
        (DOCUMENTS | {"chat_template_kwargs": ONE}, DOCUMENTS | ONE),
    ],
    ids=str,
)
async def test_tokenize_is_told_all_that_a_template_is_given(server, ask, fields, variables):
    """vLLM 0.32 `TokenizeChatRequest` has neither `reasoning_effort` nor `documents`."""
    server.answers[TOKENIZE] = (200, {"tokens": [1, 2]})
    asked = chat("hello", chat_template="own", **fields)
    await prompts_of(ask(server), asked)
    want = {"model": "tiny", "chat_template": "own", "chat_template_kwargs": variables}
    assert server.heard[-1] == (TOKENIZE, want | {"messages": json.loads(asked.body)["messages"]})


SAID = {"reasoning": "so"}


@pytest.mark.parametrize(
    "sent", [{"reasoning_content": "so"}, SAID, SAID | {"reasoning_content": "not"}, {}], ids=str
)
async def test_tokenize_is_told_of_reasoning_by_the_name_it_knows(server, ask, sent):
    server.answers[TOKENIZE] = (200, {"tokens": [1, 2]})
    turn = {"role": "assistant", "content": "yes"} | sent
    await prompts_of(ask(server), bodies.asked(Api.CHAT, messages=[turn]))
    told = dict.fromkeys(sent and ("reasoning",), "so")
    assert server.heard[-1][1]["messages"] == [turn | told]


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (chat(image("a")), FallbackCause.MEDIA),
        (bodies.asked(Api.RESPONSES, input="x"), FallbackCause.API),
        (chat("hello", truncate_prompt_tokens=5), FallbackCause.FIELD),
        (completions("hello", truncate_prompt_tokens=5), FallbackCause.FIELD),
        (completions("hello", suffix="x"), FallbackCause.FIELD),
        (chat("hello", chat_template_kwargs=[1]), FallbackCause.FIELD),
    ],
)
async def test_requests_that_tokenize_does_not_cover(server, ask, asked, cause):
    server.answers[TOKENIZE] = (200, {"tokens": [1, 2]})
    tokenizer = ask(server)
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {cause: 1}


async def test_a_server_with_neither(server, ask):
    tokenizer, asked = ask(server), chat("hello")
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.UNAVAILABLE: 1}


@pytest.mark.parametrize(
    "missing", [NOT_FOUND, (404, b"default backend - 404"), (405, b""), (501, b"")]
)
async def test_a_path_that_is_not_served_leaves_the_others_and_is_tried_again(server, ask, missing):
    server.answers[RESPONSES], server.answers[CHAT] = missing, (200, {"token_ids": [1]})
    clock = Clock()
    tokenizer, asked = ask(server, now=clock), bodies.asked(Api.RESPONSES, input="x")
    for _ in range(2):
        assert await prompts_of(tokenizer, asked) is asked.prompts
    (prompt,) = await prompts_of(tokenizer, chat("hello"))
    assert ids(prompt) == [1]
    assert [path for path, _ in server.heard] == [RESPONSES, CHAT]
    server.answers[RESPONSES] = (200, {"token_ids": [2]})
    clock.now += 30
    (prompt,) = await prompts_of(tokenizer, asked)
    assert ids(prompt) == [2]


async def test_a_server_with_neither_is_tried_again(server, ask):
    server.answers[CHAT] = server.answers[TOKENIZE] = NOT_FOUND
    clock = Clock()
    tokenizer, asked = ask(server, now=clock), chat("hello")
    with capture_logs() as logs:
        for _ in range(2):
            clock.now += 30
            for _ in range(5):
                assert await prompts_of(tokenizer, asked) is asked.prompts
    assert [path for path, _ in server.heard] == [CHAT, TOKENIZE] * 2
    events = ["tokens.no_render_endpoint", "tokens.text_instead"]
    assert [each["event"] for each in logs] == events
    server.answers[CHAT] = (200, {"token_ids": [1]})
    clock.now += 30
    (prompt,) = await prompts_of(tokenizer, asked)
    assert ids(prompt) == [1]


ODD_BODIES = {
    "no JSON": (Api.CHAT, b'{"model":"m","messages":['),
    "no UTF-8": (Api.CHAT, b'{"messages":[{"role":"user","content":"\xff"}]}'),
    "arrays in arrays": (Api.CHAT, b'{"messages":' + DEEP),
    "messages that are a number": (Api.CHAT, b'{"messages":1.5}'),
    "no messages": (Api.CHAT, b"{}"),
    "another number of prompts": (Api.COMPLETIONS, b'{"prompt":["a","b"]}'),
}


@pytest.mark.parametrize(("api", "body"), ODD_BODIES.values(), ids=ODD_BODIES)
async def test_a_body_that_cannot_be_read_leaves_text(server, ask, api, body):
    server.answers[TOKENIZE] = (200, {"tokens": [1]})
    server.answers[CHAT] = server.answers[COMPLETIONS] = NOT_FOUND
    asked = InferenceRequest(id=RequestId("r"), api=api, prompts=(Prompt(b"a"),), body=body)
    tokenizer = ask(server)
    assert await prompts_of(tokenizer, asked) == asked.prompts
    assert tokenizer.counts == {FallbackCause.MALFORMED: 1}
