"""Tokenization by a server: a real HTTP peer that responds as vLLM 0.32 does."""

import json

import pytest

from epp.adapters.tokens.fallback import FallbackCause
from epp.model.request import Api
from tests.adapters.tokens import bodies
from tests.adapters.tokens.bodies import chat, completions, ids
from tests.adapters.tokens.rendering import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NOT_FOUND,
    RESPONSES,
    image,
    prompts_of,
)


async def test_a_chat_is_rendered(server, ask):
    server.answers[CHAT] = (200, {"token_ids": [1, 2, 70_000], "features": None, "model": "m"})
    tokenizer = ask(server)
    asked = chat("hello", tools=[{"type": "function", "function": {"name": "f"}}])
    (prompt,) = await prompts_of(tokenizer, asked)
    assert ids(prompt) == [1, 2, 70_000]
    assert server.heard == [(CHAT, json.loads(asked.body))]
    assert tokenizer.counts == {}


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.RESPONSES])
async def test_other_apis_are_rendered(server, ask, api):
    server.answers[COMPLETIONS] = (200, [{"token_ids": [1]}, {"token_ids": [2, 3]}])
    server.answers[RESPONSES] = (200, {"token_ids": [4]})
    more = {"prompt": ["a", "b"]} if api is Api.COMPLETIONS else {"input": "a"}
    prompts = await prompts_of(ask(server), bodies.asked(api, **more))
    want = {Api.COMPLETIONS: [[1], [2, 3]], Api.RESPONSES: [[4]]}
    assert [ids(prompt) for prompt in prompts] == want[api]


async def test_messages_of_anthropics_are_rendered_as_they_are(server, ask):
    server.answers[MESSAGES] = (200, {"token_ids": [1, 2]})
    asked = bodies.asked(Api.MESSAGES, messages=[{"role": "user", "content": "hello"}])
    (prompt,) = await prompts_of(ask(server), asked)
    assert ids(prompt) == [1, 2]
    assert server.heard == [(MESSAGES, json.loads(asked.body))]


async def test_messages_are_rendered_as_a_chat_by_an_older_server(server, ask):
    server.answers[CHAT], server.answers[MESSAGES] = (200, {"token_ids": [1, 2]}), NOT_FOUND
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    tokenizer = ask(server, model="base")
    (prompt,) = await prompts_of(tokenizer, bodies.asked(Api.MESSAGES, messages=messages))
    assert ids(prompt) == [1, 2]
    wanted = {"model": "base", "messages": [{"role": "user", "content": "hello"}]}
    assert server.heard[1:] == [(CHAT, wanted)]


async def test_the_server_may_know_the_model_by_another_name(server, ask):
    server.answers[CHAT] = (200, {"token_ids": [1]})
    await prompts_of(ask(server, model="base"), chat("hello"))
    assert server.heard[0][1]["model"] == "base"


def pictured(body):
    name = body["messages"][0]["content"][0]["image_url"]["url"]
    assert body["mm_payload"] == "none"
    features = {
        "mm_hashes": {"image": [name]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 3}]},
    }
    long = "x" * (1 << 20)  # as no response to text may be
    return 200, {"token_ids": [5, 9, 9, 9, 6], "features": features, "more": long}


async def test_media_are_identified_by_their_hash(server, ask):
    server.answers[CHAT] = pictured
    tokenizer = ask(server)
    asked = [chat(image(url)) for url in ("a", "b", "a")]
    prompts = [(await prompts_of(tokenizer, each))[0] for each in asked]
    assert all(prompt.multimodal for prompt in prompts)
    one, other, same = map(ids, prompts)
    assert one == same
    assert [len(one), one[0], one[4]] == [5, 5, 6]
    assert not set(one[1:4]) & set(other[1:4])
    assert len(set(one[1:4])) == 3


async def test_token_ids_are_not_asked_for(server, ask):
    asked = completions([[1, 2], [3]])
    assert ask(server).ready(asked) is asked.prompts


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (bodies.asked(Api.EMBEDDINGS, input="x"), FallbackCause.API),
        (chat("x" * 2000), FallbackCause.LARGE),
    ],
)
async def test_requests_that_are_not_sent_to_the_server(server, ask, asked, cause):
    tokenizer = ask(server, most_bytes=1000)
    assert tokenizer.ready(asked) is asked.prompts
    assert tokenizer.counts == {cause: 1}
    assert server.heard == []
