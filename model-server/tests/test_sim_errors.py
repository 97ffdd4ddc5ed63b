"""Bad requests and clients that leave."""

import asyncio

import pytest
from model_server.simulator.settings import Limits, Speed

from .simulated import LONG, chat, post, serving, until, value

BAD = [
    ("/v1/chat/completions", b'{"messages": [', 400, "JSON decode error"),
    ("/v1/chat/completions", b"", 400, "JSON decode error"),
    ("/v1/chat/completions", b"\xff\xfe", 400, "JSON decode error"),
    (
        "/v1/chat/completions",
        b'{"messages": [], "tools": ' + b"[" * 100_000,
        400,
        "JSON decode error",
    ),
    ("/v1/chat/completions", b"{}", 400, "messages"),
    ("/v1/chat/completions", b'{"messages": "hi"}', 400, "messages"),
    ("/v1/chat/completions", b'{"messages": []}', 400, "must not be empty"),
    ("/v1/chat/completions", b'{"messages": [{"role": 1}]}', 400, "role"),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        *(400, "text only"),
    ),
    ("/v1/completions", b'{"prompt": "hi", "n": 2}', 400, "n must be 1"),
    ("/v1/completions", b'{"prompt": "hi", "max_tokens": 0}', 400, "at least 1"),
    ("/v1/completions", b'{"prompt": "hi", "max_tokens": 500}', 400, "maximum context length"),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "min_tokens": 6}',
        *(400, "min_tokens must be less than or equal to max_tokens=5, got 6"),
    ),
    ("/v1/completions", b'{"prompt": "hi", "min_tokens": 17}', 400, "max_tokens=16, got 17"),
    ("/v1/completions", b'{"prompt": "hi", "min_tokens": -1}', 400, "min_tokens must be greater"),
    ("/v1/completions", b'{"prompt": "hi", "cache_salt": ""}', 400, "cache_salt"),
    (
        "/v1/completions",
        b'{"prompt": "hi", "stream_options": {"include_usage": true}}',
        *(400, "only be defined when `stream=True`"),
    ),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user"}], "stream_options": {"include_usage": true}}',
        *(400, "only be defined when `stream=True`"),
    ),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "hi"}], "tools": []}',
        *(400, "must not be an empty array"),
    ),
    ("/v1/completions", b'{"prompt": ""}', 400, "cannot be empty"),
    ("/v1/completions", b'{"prompt": []}', 400, "at least one"),
    ("/v1/completions", b'{"prompt": [1, "a"]}', 400, "not a list of token ids"),
    ("/v1/completions", b'{"prompt": [-1]}', 400, "not a list of token ids"),
    ("/v1/completions", b'{"prompt": [{}]}', 400, "a string or a list"),
    ("/v1/completions", b'{"prompt": 5}', 400, "prompt"),
    ("/v1/completions", b'{"prompt": "hi", "model": "other"}', 404, "`other` does not exist"),
    ("/v1/responses", b'{"input": "hi", "previous_response_id": "x"}', 404, "not found"),
    ("/v1/embeddings", b'{"input": [[]]}', 400, "cannot be empty"),
    ("/tokenize", b"{}", 400, "prompt or messages"),
    ("/v1/nothing", b"{}", 404, "Not Found"),
    ("/health", b"{}", 405, "Method Not Allowed"),
]


@pytest.fixture(name="small_server", scope="module")
def small_server_loop():
    """One loop and one small server for the whole table of bad requests."""
    with asyncio.Runner() as runner:
        context = serving(limits=Limits(max_model_len=256))
        _, client = runner.run(context.__aenter__())
        yield runner, client
        runner.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize(("path", "data", "status", "message"), BAD)
def test_bad_requests_are_told_so_in_openais_form(small_server, path, data, status, message):
    runner, client = small_server

    async def send():
        async with client.post(path, data=data) as response:
            return response.status, await response.json()

    got, body = runner.run(send())
    assert got == status
    assert body["error"]["code"] == status
    assert message in body["error"]["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_body_that_is_not_compressed_as_it_says_is_told_so():
    headers = {"content-encoding": "gzip"}
    async with serving() as (_, client):
        request = client.post("/v1/completions", data=b'{"prompt": "hi"}', headers=headers)
        async with request as response:
            assert response.status == 400
            assert "gzip" in (await response.json())["error"]["message"]


async def test_a_prompt_longer_than_the_context_is_refused_and_the_next_request_served():
    async with serving(limits=Limits(num_gpu_blocks=9)) as (_, client):
        status, _, body = await post(client, "/v1/completions", {"prompt": "word " * 200})
        assert (status, body["error"]["type"]) == (400, "BadRequestError")
        assert "128 tokens" in body["error"]["message"]
        status, _, _ = await post(client, "/v1/completions", {"prompt": "word " * 100})
        assert status == 200


async def test_a_disconnected_client_frees_its_blocks_which_stay_cached():
    async with serving(speed=Speed()) as (server, client):
        request = chat(LONG, max_tokens=2000, ignore_eos=True, stream=True)
        async with client.post("/v1/chat/completions", json=request) as response:
            await response.content.readany()
            assert await value(client, "num_requests_running") == 1
            assert await value(client, "kv_cache_usage_perc") > 0
            response.close()

        async def idle():
            return await value(client, "num_requests_running") == 0

        await until(idle)
        assert await value(client, "kv_cache_usage_perc") == 0
        assert await value(client, "request_success_total", finished_reason="abort") == 0
        assert not server.engine.scheduler.busy
        _, _, body = await post(client, "/v1/chat/completions", chat(LONG, max_tokens=1))
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_client_that_leaves_before_the_first_token_is_aborted_too():
    async with serving(speed=Speed(step_ms=60_000)) as (server, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await post(client, "/v1/completions", {"prompt": "hello"})

        async def idle():
            return not server.engine.scheduler.busy

        await until(idle)
        assert server.engine.scheduler.pool.usage == 0
