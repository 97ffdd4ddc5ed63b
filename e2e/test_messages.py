"""Anthropic's Messages API: conversations stay where they are cached, under a rewrite, streamed."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from e2e.corridor import WATCHED, Plan, corridor, decision
from e2e.serving import serving

PATH = "/v1/messages"
MODEL, TARGET = "claude-mine", "org/the-model-that-is-served"
REWRITE = {"x-llm-d-model-name-rewrite": TARGET}
MODES = {
    "full duplex": Plan(),
    "streamed": Plan(
        request_body_mode="BUFFERED", response_body_mode="STREAMED", picker_flags=WATCHED
    ),
}
LONG = "These are the rules of the house. " * 400


class AnthropicServer:
    """Answers as a model server with Anthropic's API, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def answer(self, http: web.Request) -> web.StreamResponse:
        if http.path == "/metrics":
            return web.Response(text="# nothing to tell\n")
        body = json.loads(await http.read())
        self.asked.append((http.path, body))
        if http.path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": 3000})
        usage = {"input_tokens": 952, "cache_read_input_tokens": 2048, "output_tokens": 1}
        message = {"type": "message", "role": "assistant", "model": body["model"]}
        if not body.get("stream"):
            return web.json_response(message | {"usage": usage | {"output_tokens": 7}})
        return await self._stream(http, message | {"usage": usage})

    async def _stream(self, http: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        said = {"type": "text_delta", "text": f'"model":"{TARGET}"'}
        parts = [{"type": "content_block_delta", "index": 0, "delta": said}] * 5
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            *parts,
            {"type": "message_delta", "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ]
        text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
        for at in range(0, len(text), 41):
            await response.write(text[at : at + 41].encode())
            await asyncio.sleep(0)
        await response.write_eof()
        return response


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def gateway(request, tmp_path_factory):
    servers = [AnthropicServer() for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(serving(each.answer)) for each in servers]
        plan = Plan(
            others=tuple(targets),
            request_body_mode=MODES[request.param].request_body_mode,
            response_body_mode=MODES[request.param].response_body_mode,
        )
        made = await stack.enter_async_context(corridor(plan, tmp_path_factory.mktemp("messages")))
        yield made, servers


def asking(name, *texts, **more):
    roles = ("user", "assistant")
    turns = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(texts)]
    marked = {"type": "text", "text": texts[-1], "cache_control": {"type": "ephemeral"}}
    turns[-1] = {"role": "user", "content": [marked]}
    return {
        "model": MODEL,
        "max_tokens": 50,
        "system": f"{name}: {LONG}",
        "messages": turns,
        **more,
    }


async def test_every_event_of_a_stream_names_the_clients_model(gateway):
    way, servers = gateway
    answer = await way.post(PATH, asking("stream", "hello", stream=True), **REWRITE)
    assert answer.status == 200
    data = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in data]
    assert events[0]["message"]["model"] == MODEL
    assert events[1]["delta"]["text"] == f'"model":"{TARGET}"'
    assert events[-1] == {"type": "message_stop"}
    asked = [body for each in servers for _, body in each.asked if body["system"][:6] == "stream"]
    assert [body["model"] for body in asked] == [TARGET]


async def test_a_whole_answer_names_the_clients_model(gateway):
    way, _ = gateway
    answer = await way.post(PATH, asking("whole", "hello"), **REWRITE)
    assert answer.json["model"] == MODEL
    assert answer.json["usage"]["output_tokens"] == 7


async def test_usage_is_counted_for_the_model(gateway):
    way, _ = gateway
    for stream in (True, False):
        labels = {"target_model_name": TARGET}
        name = "llm_d_epp_request_cached_tokens_sum"
        before = await way.metric(name, **labels)
        await way.post(PATH, asking(f"usage {stream}", "hello", stream=stream), **REWRITE)
        await way.metric_becomes(before + 2048, name, **labels)


async def test_conversations_stay_where_they_are_cached(gateway):
    way, _ = gateway
    homes: list[list[str]] = []
    for turns in (["a"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]):
        asked = [way.post(PATH, asking(f"{name}", *turns, stream=True)) for name in range(6)]
        homes.append([decision(each)["endpoint"] for each in await asyncio.gather(*asked)])
    assert homes[0] == homes[1] == homes[2]
    assert len({*homes[0]}) > 1


@pytest.mark.parametrize("path", [PATH + "/count_tokens", PATH + "/count_tokens?beta=true"])
async def test_counting_tokens_names_the_target(gateway, path):
    way, servers = gateway
    answer = await way.post(path, asking("count", "hello"), **REWRITE)
    assert answer.json == {"input_tokens": 3000}
    (model,) = {body["model"] for each in servers for asked, body in each.asked if "count" in asked}
    assert model == TARGET


async def test_a_body_without_messages_is_refused(gateway):
    way, _ = gateway
    answer = await way.post(PATH, {"model": MODEL, "max_tokens": 5})
    assert answer.status == 400
    assert "`messages` is missing" in answer.message
