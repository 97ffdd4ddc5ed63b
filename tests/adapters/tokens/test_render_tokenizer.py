"""Tokenization by a server: a real HTTP peer that responds as vLLM 0.32 does, or fails."""

import asyncio
import json
import time
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from epp.adapters.tokens.fallback import FallbackCause
from epp.adapters.tokens.render.circuit_breaker import CircuitBreaker
from epp.adapters.tokens.render.render_server import RenderSettings
from epp.adapters.tokens.render.render_tokenizer import RenderTokenizer
from epp.model.request import Api, InferenceRequest, Prompt, RequestId
from tests.adapters.tokens import bodies
from tests.adapters.tokens.bodies import chat, completions, ids

CHAT, COMPLETIONS, RESPONSES, MESSAGES, TOKENIZE = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/render",
    "/v1/messages/render",
    "/tokenize",
)
REFUSAL = {"error": {"message": "no", "code": 404}}
NOT_FOUND = (404, {"detail": "Not Found"})


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Server:
    """A server with the test's responses by path; `heard` are paths and bodies of requests.

    `authorized` are the headers of that name that came with them.
    """

    def __init__(self):
        self.answers = {}
        self.heard = []
        self.authorized = []
        self.url = ""
        self.headers = {}

    async def handle(self, request):
        body = await request.read()
        with suppress(ValueError, RecursionError):
            body = json.loads(body)
        self.heard.append((request.path, body))
        self.authorized += request.headers.getall("authorization", [])
        answer = self.answers.get(request.path, (403, {"error": "Forbidden"}))
        status, content = answer(body) if callable(answer) else answer
        if isinstance(content, asyncio.Event):
            await content.wait()
            content = {}
        if isinstance(content, bytes):
            return web.Response(status=status, body=content, headers=self.headers)
        return web.json_response(content, status=status)


@asynccontextmanager
async def serving(port=0, tls=None):
    server = Server()
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest.fixture
async def server():
    async with serving() as made:
        yield made


@pytest.fixture
async def ask():
    """Make tokenizers that ask a server; they are closed in the end."""
    made = []

    def make(server, now=time.monotonic, **settings):
        made.append(RenderTokenizer(RenderSettings(url=server.url, **settings), now))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def prompts_of(tokenizer, asked):
    found = tokenizer.ready(asked)
    return await tokenizer.tokenize(asked) if found is None else found


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


def image(url):
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]


def pictured(body):
    name = body["messages"][0]["content"][0]["image_url"]["url"]
    assert body["mm_payload"] == "none"
    features = {
        "mm_hashes": {"image": [name]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 3}]},
    }
    return 200, {"token_ids": [5, 9, 9, 9, 6], "features": features}


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


@pytest.mark.parametrize(
    ("features", "cause"),
    [
        ({"mm_placeholders": {"image": [{"offset": 0, "length": 1}]}}, FallbackCause.MEDIA),
        (
            {
                "mm_hashes": {"image": [None]},
                "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
            },
            FallbackCause.MEDIA,
        ),
        (
            {
                "mm_hashes": {"image": ["a"]},
                "mm_placeholders": {"image": [{"offset": 0, "length": 9}]},
            },
            FallbackCause.FAILED,
        ),
    ],
)
async def test_media_without_a_hash_stay_text(server, ask, features, cause):
    server.answers[CHAT] = (200, {"token_ids": [1, 2], "features": features})
    tokenizer, asked = ask(server), chat("hello")
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {cause: 1}


async def test_token_ids_are_not_asked_for(server, ask):
    asked = completions([[1, 2], [3]])
    assert ask(server).ready(asked) is asked.prompts


@pytest.mark.parametrize(
    ("status", "content", "cause"),
    [
        (400, REFUSAL, FallbackCause.REFUSED),
        (404, REFUSAL, FallbackCause.REFUSED),
        (413, b"too long", FallbackCause.REFUSED),
        (500, {}, FallbackCause.REFUSED),
        (501, REFUSAL, FallbackCause.REFUSED),
        (502, b"", FallbackCause.UNAVAILABLE),
        (503, b"", FallbackCause.UNAVAILABLE),
        (200, b"hello", FallbackCause.FAILED),
        (200, {"token_ids": "no"}, FallbackCause.FAILED),
        (200, {"token_ids": [-1]}, FallbackCause.FAILED),
        (200, {"token_ids": [1 << 40]}, FallbackCause.FAILED),
        (200, [], FallbackCause.FAILED),
    ],
)
async def test_text_stays_text_for_a_cause(server, ask, status, content, cause):
    server.answers[CHAT] = (status, content)
    tokenizer, asked = ask(server), chat("hello")
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {cause: 1}


async def test_fewer_prompts_than_were_sent(server, ask):
    server.answers[COMPLETIONS] = (200, [{"token_ids": [1]}])
    tokenizer, asked = ask(server), completions(["a", "b"])
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.FAILED: 1}


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


@pytest.mark.parametrize("media", [False, True])
async def test_a_server_that_does_not_answer_in_time(server, ask, media):
    server.answers[CHAT] = (200, asyncio.Event())
    limits = {"timeout": 30, "media_timeout": 0.01} if media else {"timeout": 0.01}
    tokenizer = ask(server, **limits)
    asked = chat(image("a") if media else "hello")
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.SLOW: 1}


@pytest.mark.parametrize("missing", [(403, {"error": "x"}), (404, {"detail": "Not Found"})])
async def test_a_server_without_a_render_endpoint_tokenizes(server, ask, missing):
    server.answers[CHAT] = server.answers[COMPLETIONS] = missing
    server.answers[TOKENIZE] = (200, {"tokens": [1, 2], "count": 2})
    tokenizer = ask(server)
    fields = {"add_generation_prompt": False, "chat_template_kwargs": {"a": 1}, "temperature": 1}
    asked = chat("hello", **fields)
    with capture_logs() as logs:
        (prompt,) = await prompts_of(tokenizer, asked)
        assert ids(prompt) == [1, 2]
        want = json.loads(asked.body)
        del want["temperature"]
        assert server.heard[-1] == (TOKENIZE, want)
        await prompts_of(tokenizer, chat("hello"))
    assert [path for path, _ in server.heard] == [CHAT, TOKENIZE, TOKENIZE]
    assert [each["event"] for each in logs] == ["tokens.no_render_endpoint"]

    prompts = await prompts_of(tokenizer, completions(["a", [7]], add_special_tokens=False))
    assert [ids(prompt) for prompt in prompts] == [[1, 2], [7]]
    asked_last = {"model": "tiny", "prompt": "a", "add_special_tokens": False}
    assert server.heard[-1] == (TOKENIZE, asked_last)


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


@pytest.mark.parametrize("sent", [{"reasoning_content": "so"}, {"reasoning": "so"}, {}], ids=str)
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


async def test_an_unreachable_server_is_retried_after_a_pause(ask):
    async with serving() as server:
        port = int(server.url.rpartition(":")[2])
    with capture_logs() as logged:
        tokenizer, asked = ask(server), chat("hello")
        for _ in range(2):
            assert tokenizer.ready(asked) is None
            assert await tokenizer.tokenize(asked) is asked.prompts
        assert tokenizer.ready(asked) is asked.prompts  # without asking
        assert tokenizer.counts == {FallbackCause.UNAVAILABLE: 3}
        async with serving(port) as server, asyncio.timeout(30):
            server.answers[CHAT] = (200, {"token_ids": [1]})
            while (found := await prompts_of(tokenizer, asked)) is asked.prompts:
                await asyncio.sleep(0.05)  # until the pause is over
    assert ids(found[0]) == [1]
    assert [each["event"] for each in logged] == ["tokens.text_instead", "tokens.render_recovered"]


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
    for _ in range(5):
        assert await prompts_of(tokenizer, asked) is asked.prompts
    assert [path for path, _ in server.heard] == [CHAT, TOKENIZE]
    server.answers[CHAT] = (200, {"token_ids": [1]})
    clock.now += 30
    (prompt,) = await prompts_of(tokenizer, asked)
    assert ids(prompt) == [1]


@pytest.mark.parametrize(("status", "pauses"), [(500, 0), (501, 0), (504, 0), (502, 1), (503, 1)])
async def test_only_a_server_that_is_not_there_has_others_wait(server, ask, status, pauses):
    server.answers[CHAT] = (status, REFUSAL)
    clock = Clock()
    tokenizer, asked = ask(server, now=clock), chat("hello")
    for _ in range(3):
        await prompts_of(tokenizer, asked)
        clock.now += 0.1
    assert len(server.heard) == 3 - pauses


async def test_media_that_are_slow_have_no_others_wait(server, ask):
    server.answers[CHAT] = (200, asyncio.Event())
    tokenizer = ask(server, media_timeout=0.01)
    for _ in range(3):
        await prompts_of(tokenizer, chat(image("a")))
    assert tokenizer.ready(chat("hello")) is None


async def test_requests_that_fail_together_are_one_failure(server, ask):
    server.answers[CHAT] = (503, b"")
    clock = Clock()
    tokenizer = ask(server, now=clock)
    tasks = [asyncio.create_task(tokenizer.tokenize(chat("hello"))) for _ in range(5)]
    await asyncio.sleep(0)  # they are sent
    clock.now += 0.1
    await asyncio.gather(*tasks)
    assert tokenizer.counts == {FallbackCause.UNAVAILABLE: 5}
    assert tokenizer.ready(chat("hello")) is None


def test_the_pause_doubles_up_to_a_limit_and_ends_with_an_answer():
    breaker = CircuitBreaker()
    breaker.record_failure(0, 0)
    assert not breaker.is_open(0)
    now, pauses = 0.0, []
    for _ in range(8):
        breaker.record_failure(now, now)
        pauses.append(next(second for second in range(100) if not breaker.is_open(now + second)))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert breaker.record_success()
    assert not breaker.record_success()
    breaker.record_failure(now, now)
    assert not breaker.is_open(now)


_DEEP = b"[" * 50_000
_TWICE = [{"offset": 0, "length": 2}] * 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        _DEEP,
        b'{"token_ids":' + _DEEP,
        b'{"token_ids":[1],"more":' + _DEEP,
        b'{"token_ids":[1],"features":{"mm_hashes":{"\xff":["\xff"]}}}',
        b'{"token_ids":[' + b"1," * (5 << 20) + b"1]}",
        {"token_ids": [99999999999999999999]},
        {"token_ids": [-1]},
        {"token_ids": [1.5]},
        {
            "token_ids": [1, 2],
            "features": {"mm_hashes": {"a": ["x", "y"]}, "mm_placeholders": {"a": _TWICE}},
        },
        {
            "token_ids": [1, 2],
            "features": {
                "mm_hashes": {"a": ["x"], "b": ["y"]},
                "mm_placeholders": {"a": _TWICE[1:], "b": _TWICE[1:]},
            },
        },
    ],
    ids=lambda content: str(content)[:40],
)
async def test_an_answer_that_is_none_leaves_text(server, ask, content):
    server.answers[CHAT] = (200, content)
    tokenizer, asked = ask(server), chat("hello")
    assert await prompts_of(tokenizer, asked) == asked.prompts
    assert tokenizer.counts == {FallbackCause.FAILED: 1}


async def test_prompts_go_nowhere_else(server, ask):
    async with serving() as other:
        server.headers = {"location": other.url + CHAT}
        server.answers[CHAT] = (307, b"")
        tokenizer, asked = ask(server), chat("hello")
        assert await prompts_of(tokenizer, asked) == asked.prompts
        assert other.heard == []
    assert tokenizer.counts == {FallbackCause.REFUSED: 1}


ODD_BODIES = {
    "no JSON": (Api.CHAT, b'{"model":"m","messages":['),
    "no UTF-8": (Api.CHAT, b'{"messages":[{"role":"user","content":"\xff"}]}'),
    "arrays in arrays": (Api.CHAT, b'{"messages":' + _DEEP),
    "messages that are a number": (Api.CHAT, b'{"messages":1.5}'),
    "no messages": (Api.CHAT, b"{}"),
    "another number of prompts": (Api.COMPLETIONS, b'{"prompt":["a","b"]}'),
}


@pytest.mark.parametrize(("api", "body"), ODD_BODIES.values(), ids=ODD_BODIES)
async def test_a_body_that_cannot_be_read_leaves_text(server, ask, api, body):
    server.answers[TOKENIZE] = (200, {"tokens": [1]})
    server.answers[CHAT] = server.answers[COMPLETIONS] = (404, {"detail": "Not Found"})
    asked = InferenceRequest(id=RequestId("r"), api=api, prompts=(Prompt(b"a"),), body=body)
    tokenizer = ask(server)
    assert await prompts_of(tokenizer, asked) == asked.prompts
    assert tokenizer.counts == {FallbackCause.MALFORMED: 1}
