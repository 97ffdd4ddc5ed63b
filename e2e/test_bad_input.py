"""What clients get for what cannot be served, and that the next request is."""

import asyncio
import json

import pytest
import pytest_asyncio

from e2e.corridor import CHAT, DEADLINE, MODEL, REASON, SERVER, Plan, chat, corridor

COMPLETIONS, EMBEDDINGS, RESPONSES = "/v1/completions", "/v1/embeddings", "/v1/responses"
DEEP = 100_000
USER = '"messages": [{"role": "user", "content": "hi"}]'

# name: path, body, status, reason (none: the model server's own answer), part of the message
TABLE = {
    "empty": (CHAT, b"", 400, "empty-body", "the body is empty"),
    "white space": (CHAT, b" \n", 400, "malformed-request", "the body is empty"),
    "cut short": (CHAT, b'{"model": "sim', 400, "malformed-request", "not valid JSON"),
    "not JSON": (CHAT, b"model=sim-model", 400, "malformed-request", "not valid JSON"),
    "two objects": (CHAT, b"{}{}", 400, "malformed-request", "not valid JSON"),
    "an array": (CHAT, b"[1, 2]", 400, "malformed-request", "Expected `object`, got `array`"),
    "null": (CHAT, b"null", 400, "malformed-request", "Expected `object`, got `null`"),
    "no model": (CHAT, b"{%s}" % USER.encode(), 400, "missing-model", "`model` is missing"),
    "empty model": (
        CHAT,
        b'{"model": "", %s}' % USER.encode(),
        400,
        "missing-model",
        "`model` is missing",
    ),
    "model is a number": (CHAT, b'{"model": 5}', 400, "malformed-request", "`model`"),
    "model is null": (
        CHAT,
        b'{"model": null, %s}' % USER.encode(),
        400,
        "missing-model",
        "`model`",
    ),
    "messages is text": (
        CHAT,
        b'{"model": "sim-model", "messages": "hi"}',
        400,
        "malformed-request",
        "$.messages",
    ),
    "message is text": (
        CHAT,
        b'{"model": "sim-model", "messages": ["hi"]}',
        400,
        "malformed-request",
        "$.messages[0]",
    ),
    "role is a number": (
        CHAT,
        b'{"model": "sim-model", "messages": [{"role": 1}]}',
        400,
        "malformed-request",
        "$.messages[0].role",
    ),
    "no messages": (CHAT, b'{"model": "sim-model"}', 400, "missing-prompt", "`messages`"),
    "stream is text, which the server refuses": (
        CHAT,
        b'{"model": "sim-model", "stream": "yes", %s}' % USER.encode(),
        400,
        None,
        "",
    ),
    "max_tokens is a word, which the server refuses": (
        CHAT,
        b'{"model": "sim-model", "max_tokens": "nine", %s}' % USER.encode(),
        400,
        None,
        "",
    ),
    "no prompt": (COMPLETIONS, b'{"model": "sim-model"}', 400, "missing-prompt", "`prompt`"),
    "prompt is an object": (
        COMPLETIONS,
        b'{"model": "sim-model", "prompt": {}}',
        400,
        "missing-prompt",
        "`prompt`",
    ),
    "prompt is empty": (
        COMPLETIONS,
        b'{"model": "sim-model", "prompt": []}',
        400,
        "missing-prompt",
        "`prompt` is empty",
    ),
    "token id below zero": (
        COMPLETIONS,
        b'{"model": "sim-model", "prompt": [-1]}',
        400,
        "malformed-request",
        "token id",
    ),
    "token id is a fraction": (
        COMPLETIONS,
        b'{"model": "sim-model", "prompt": [1.5]}',
        400,
        "malformed-request",
        "Expected `int`, got `float`",
    ),
    "prompt of mixed things": (
        COMPLETIONS,
        b'{"model": "sim-model", "prompt": ["a", 1]}',
        400,
        "malformed-request",
        "neither text nor token ids",
    ),
    "no input": (EMBEDDINGS, b'{"model": "sim-model"}', 400, "missing-prompt", "`input`"),
    "no input to respond to": (
        RESPONSES,
        b'{"model": "sim-model"}',
        400,
        "missing-prompt",
        "`input` is missing",
    ),
    "not UTF-8": (
        CHAT,
        b'{"model": "\xff\xfe", %s}' % USER.encode(),
        400,
        "malformed-request",
        "not valid JSON",
    ),
    "UTF-16": (CHAT, json.dumps(chat("hi")).encode("utf-16"), 400, "malformed-request", "not "),
    "nested too deeply": (
        CHAT,
        b'{"model": "sim-model", "messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        400,
        "nested-too-deeply",
        "nested too deeply",
    ),
    "nested too deeply where nobody looks": (
        CHAT,
        b'{"model": "sim-model", %s, "odd": ' % USER.encode() + b"[" * DEEP + b"]" * DEEP + b"}",
        400,
        "nested-too-deeply",
        "nested too deeply",
    ),
    "a number too large, which the server refuses": (
        CHAT,
        b'{"model": "sim-model", "max_tokens": 1e999, %s}' % USER.encode(),
        400,
        None,
        "",
    ),
    "unknown model": (CHAT, json.dumps(chat("hi", model="x")).encode(), 404, None, "`x`"),
    "unknown path": ("/v1/nowhere", b"anything", 404, None, ""),
    "unknown path without a body": ("/v1/nowhere", b"", 404, None, ""),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    plan = Plan(simulators=("a", "b"), server_flags=("--speed", "20"))
    async with corridor(plan, tmp_path_factory.mktemp("bad")) as made:
        yield made


async def serves(gateway):
    """The next request is served, and nothing is left of the one before."""
    answer = await gateway.post(CHAT, chat("hello"))
    assert answer.status == 200
    assert answer.json["choices"][0]["finish_reason"] == "length"
    await gateway.metric_becomes(0, "llm_d_epp_request_running")


@pytest.mark.parametrize("name", TABLE)
async def test_the_client_is_told_what_is_wrong(gateway, name):
    path, body, status, reason, message = TABLE[name]
    answer = await gateway.post(path, body)
    assert answer.status == status
    assert answer.headers.get(REASON) == reason
    if reason:
        error = answer.json["error"]
        assert message in error["message"]
        assert (error["type"], error["code"]) == ("invalid_request_error", reason)
        assert answer.headers["content-type"] == "application/json"
    else:
        assert answer.headers[SERVER] in gateway.servers
        assert message in answer.body.decode()
    await serves(gateway)


async def test_the_same_in_every_body_mode(start):
    for mode in ("BUFFERED", "STREAMED", "NONE"):
        directory = f"mode {mode}"
        plan = Plan(simulators=("a",), request_body_mode=mode, response_body_mode=mode)
        async with start(plan, directory) as gateway:
            answer = await gateway.post(CHAT, b'{"model": 5}')
            assert answer.status == 400
            # Where the picker does not see the body before it must answer, the server complains.
            assert answer.headers.get(REASON) == (
                "malformed-request" if mode == "BUFFERED" else None
            )
            await serves(gateway)


async def test_prompts_of_token_ids_are_served(gateway):
    for prompt in ([1, 2, 3], [[1, 2, 3], [4, 5, 6]][:1], "text", ["text"]):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        answer = await gateway.post(COMPLETIONS, body)
        assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 2)


async def test_an_unknown_path_without_a_body_is_the_servers_answer(gateway):
    answer = await gateway.get("/v1/nowhere?x=1")
    assert answer.status == 404
    assert answer.headers[SERVER] in gateway.servers
    await serves(gateway)


async def test_a_post_to_an_api_without_any_body(gateway):
    async with gateway.client.post(gateway.url + CHAT) as response:
        assert response.status == 400
        assert response.headers[REASON] == "empty-body"
        assert "JSON is expected" in (await response.json())["error"]["message"]
    await serves(gateway)


async def test_bodies_over_the_limit(echo, start):
    plan = Plan(others=(echo.target,), picker_flags=("--max-body-bytes=1Mi",))
    async with start(plan) as gateway:
        for size in (20_000_000, (1 << 20) + 1):
            answer = await gateway.post(CHAT, b" " * size)
            assert (answer.status, answer.headers[REASON]) == (413, "body-too-large")
            assert answer.message == "the body is larger than 1048576 bytes, the picker's limit"
            at_the_limit = json.dumps(chat("x" * 1_000_000)).encode()
            fits = at_the_limit + b" " * ((1 << 20) - len(at_the_limit))
            assert (await gateway.post(CHAT, fits)).body == fits
        passed = await gateway.post("/v1/files", b" " * 2_000_000)
        assert passed.status == 200  # what is not read is not held, and not limited


async def test_a_body_that_stops_coming_ends_by_the_gateways_idle_timeout(start):
    plan = Plan(simulators=("a",), stream_idle_timeout_s=4)
    async with start(plan) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        writer.write(head.encode() + b'{"model": "sim-')
        status = await asyncio.wait_for(reader.readline(), DEADLINE)
        assert status == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        await gateway.metric_becomes(1, "warmpick_exchange_outcomes_total")
        await serves(gateway)


async def test_a_client_that_leaves_amid_its_body(gateway):
    await serves(gateway)
    before = await gateway.metric("warmpick_exchange_outcomes_total", outcome="aborted")
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    writer.write(head.encode() + b'{"model": "sim-')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await gateway.metric_becomes(before + 1, "warmpick_exchange_outcomes_total", outcome="aborted")
    await serves(gateway)


async def test_no_prompt_text_is_ever_logged(gateway):
    await gateway.post(CHAT, chat("the password is swordfish"))
    await gateway.post(CHAT, b'{"model": "the password is swordfish')
    assert "swordfish" not in gateway.picker.log_path.read_text()
