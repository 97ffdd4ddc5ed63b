"""The simulator's answers, over a real socket."""

import asyncio
import base64
import struct

import pytest
from model_server.simulator.settings import Limits

from .simulated import LONG, chat, events, post, samples, serving, value


async def test_a_chat():
    async with serving(name="pod-1") as (_, client):
        status, headers, body = await post(
            client, "/v1/chat/completions", chat(LONG, max_tokens=9), **{"X-Request-Id": "abc"}
        )
    assert (status, headers["x-sim-name"]) == (200, "pod-1")
    assert (body["id"], body["object"]) == ("chatcmpl-abc", "chat.completion")
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["role"] == "assistant"
    usage = body["usage"]
    assert usage["completion_tokens"] == 9
    assert usage["total_tokens"] == usage["prompt_tokens"] + 9
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_streamed_chat_says_what_the_whole_one_says():
    async with serving() as (_, client):
        request = chat(LONG, max_tokens=9, stream_options={"include_usage": True})
        chunks, done = await events(client, "/v1/chat/completions", request)
        _, _, whole = await post(client, "/v1/chat/completions", chat(LONG, max_tokens=9))
    *content, last = chunks
    assert done
    assert content[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(content) == 10
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in content)
    assert text == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None] * 9 + ["length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 9
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_is_signed_too():
    async with serving(name="pod-2") as (_, client):
        body = chat("hi", max_tokens=1, stream=True)
        async with client.post("/v1/chat/completions", json=body) as response:
            assert response.headers["x-sim-name"] == "pod-2"


async def test_usage_is_streamed_only_when_asked_for():
    async with serving() as (_, client):
        chunks, done = await events(client, "/v1/chat/completions", chat("hi", max_tokens=2))
    assert done
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("asked", [True, False])
async def test_usage_so_far_is_in_every_chunk_when_it_is_asked_for_beside_usage(asked):
    options = {"include_usage": asked, "continuous_usage_stats": True}
    request = {"max_tokens": 2, "stream_options": options}
    async with serving() as (_, client):
        chat_chunks, _ = await events(client, "/v1/chat/completions", chat("hi") | request)
        prompts = {"prompt": [[1, 2], [3]]} | request
        text_chunks, _ = await events(client, "/v1/completions", prompts)
    if not asked:
        assert all("usage" not in chunk for chunk in chat_chunks + text_chunks)
        return
    *content, last = chat_chunks
    assert [chunk["usage"]["completion_tokens"] for chunk in content] == [0, 1, 2]
    assert {chunk["usage"]["prompt_tokens"] for chunk in content} == {
        last["usage"]["prompt_tokens"]
    }
    counted = sorted(
        (chunk["choices"][0]["index"], *chunk["usage"].values()) for chunk in text_chunks[:-1]
    )
    # Of each prompt alone: its tokens, all tokens, those of its answer.
    assert counted == [(0, 2, 3, 1), (0, 2, 4, 2), (1, 1, 2, 1), (1, 1, 3, 2)]
    assert text_chunks[-1]["usage"]["total_tokens"] == 7


async def test_every_turn_finds_the_turn_before_in_the_cache():
    async with serving() as (_, client):
        texts, known = [LONG], 0
        for _ in range(3):
            _, _, body = await post(
                client, "/v1/chat/completions", chat(*texts, max_completion_tokens=50)
            )
            usage = body["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16
            known = usage["total_tokens"] - 1
            texts += [body["choices"][0]["message"]["content"], "Please go on."]
        assert known > 200
        queries = await value(client, "prefix_cache_queries_total")
        hits = await value(client, "prefix_cache_hits_total")
        assert 0 < hits < queries


async def test_an_answer_without_a_limit_ends_by_itself():
    async with serving(output_tokens=20) as (_, client):
        _, _, body = await post(client, "/v1/chat/completions", chat("hi"))
        _, _, forced = await post(
            client, "/v1/chat/completions", chat("hi", max_tokens=100, ignore_eos=True)
        )
    assert body["choices"][0]["finish_reason"] == "stop"
    assert 10 <= body["usage"]["completion_tokens"] <= 30
    assert forced["choices"][0]["finish_reason"] == "length"
    assert forced["usage"]["completion_tokens"] == 100


async def test_the_end_comes_after_the_tokens_that_are_wanted_at_least():
    async with serving(output_tokens=1) as (_, client):
        told = {}
        for most in (5, 6):
            limits = {"min_tokens": 5, "max_tokens": most}
            _, _, body = await post(client, "/v1/completions", {"prompt": "hi"} | limits)
            told[most] = body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]
    assert told == {5: ("length", 5), 6: ("stop", 6)}


async def test_completions_of_text_ids_and_several_prompts():
    async with serving() as (_, client):
        prompts = ["hello there", ["one", "two words"], [5, 6, 7], [[1, 2], [3]]]
        counts = []
        for prompt in prompts:
            _, _, body = await post(client, "/v1/completions", {"prompt": prompt, "max_tokens": 3})
            assert [choice["index"] for choice in body["choices"]] == list(
                range(len(body["choices"]))
            )
            counts.append((body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]))
        assert counts == [(2, 3), (3, 6), (3, 3), (3, 6)]
        chunks, done = await events(
            client, "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2}
        )
    assert done
    assert sorted(chunk["choices"][0]["index"] for chunk in chunks) == [0, 0, 1, 1]


@pytest.mark.parametrize("tokens", [3, 3.0, "3"])
async def test_numbers_may_be_written_as_vllm_takes_them(tokens):
    request = {"prompt": "hi", "max_tokens": tokens, "stream_options": {}, "stream": "false"}
    async with serving() as (_, client):
        status, _, body = await post(client, "/v1/completions", request)
    assert (status, body["usage"]["completion_tokens"]) == (200, 3)


async def test_completions_default_to_sixteen_tokens():
    async with serving() as (_, client):
        _, _, body = await post(client, "/v1/completions", {"prompt": "hello"})
    assert body["usage"]["completion_tokens"] == 16


async def test_tokens_per_chunk():
    async with serving(tokens_per_chunk=4) as (_, client):
        chunks, _ = await events(client, "/v1/completions", {"prompt": "hello", "max_tokens": 9})
        _, _, whole = await post(client, "/v1/completions", {"prompt": "hello", "max_tokens": 9})
    assert len(chunks) == 3
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole["choices"][0]["text"]


async def test_embeddings():
    async with serving() as (_, client):
        request = {"model": "sim-model", "input": ["one", [1, 2]]}
        _, _, body = await post(client, "/v1/embeddings", request)
        _, _, packed = await post(client, "/v1/embeddings", request | {"encoding_format": "base64"})
    assert body["usage"]["prompt_tokens"] == 3
    assert [item["index"] for item in body["data"]] == [0, 1]
    for item, small in zip(body["data"], packed["data"], strict=True):
        vector = struct.unpack("<64f", base64.b64decode(small["embedding"]))
        assert vector == pytest.approx(item["embedding"], abs=1e-6)
        assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)


async def test_responses():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": LONG}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "output": "fine", "call_id": "1"},
    ]
    request = {"instructions": "Be kind.", "input": items, "max_output_tokens": 5}
    async with serving() as (_, client):
        _, _, whole = await post(client, "/v1/responses", request)
        streamed, done = await events(client, "/v1/responses", request)
        _, _, ended = await post(client, "/v1/responses", {"input": "hi"})
    assert not done
    assert (whole["status"], whole["object"]) == ("incomplete", "response")
    assert ended["status"] == "completed"
    names = [event["type"] for event in streamed]
    assert names[0] == "response.created"
    assert names[-1] == "response.incomplete"
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    text = "".join(
        event["delta"] for event in streamed if event["type"] == "response.output_text.delta"
    )
    assert text == whole["output"][0]["content"][0]["text"]
    first, last = whole["usage"], streamed[-1]["response"]["usage"]
    assert first["input_tokens_details"] == {"cached_tokens": 0}
    assert last["input_tokens_details"] == {"cached_tokens": (first["input_tokens"] - 1) // 16 * 16}
    assert last["output_tokens"] == 5


async def test_a_stored_response_can_be_gone_on_from_and_read():
    async with serving(responses_store=True) as (_, client):
        _, _, first = await post(client, "/v1/responses", {"input": LONG})
        streamed, _ = await events(
            client, "/v1/responses", {"input": "go on", "previous_response_id": first["id"]}
        )
        second = streamed[-1]["response"]
        async with client.get(f"/v1/responses/{second['id']}") as response:
            read = (response.status, await response.json())
        cancelled, _, _ = await post(client, f"/v1/responses/{first['id']}/cancel", {})
    assert read == (200, second)
    assert cancelled == 400
    usage = second["usage"]
    assert usage["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] >= first["usage"]["input_tokens"] - 1


@pytest.mark.parametrize(("enabled", "store"), [(True, False), (False, True)])
async def test_a_response_that_is_not_stored_is_not_found(enabled, store):
    async with serving(responses_store=enabled) as (_, client):
        _, _, first = await post(client, "/v1/responses", {"input": "hi", "store": store})
        asked = {"input": "go on", "previous_response_id": first["id"]}
        status, _, body = await post(client, "/v1/responses", asked)
        async with client.get(f"/v1/responses/{first['id']}") as response:
            assert (status, response.status) == (404, 404)
    assert body["error"]["message"] == f"Response with id '{first['id']}' not found."


async def test_adapters_and_salts_are_apart_and_adapters_are_listed():
    async with serving(lora_modules={"a": "a", "b": "hub/b"}) as (_, client):
        cached = []
        for options in (
            *({}, {"model": "a"}, {"model": "b"}, {"cache_salt": "s"}),
            *({}, {"model": "a"}, {"model": "b"}, {"cache_salt": "s"}),
        ):
            request = chat(LONG, max_tokens=1) | options
            _, _, body = await post(client, "/v1/chat/completions", request)
            assert body["model"] == options.get("model", "sim-model")
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        async with client.get("/v1/models") as response:
            models = (await response.json())["data"]
        info = [key for key in await samples(client) if key[0] == "vllm:lora_requests_info"]
    assert cached == [False] * 4 + [True] * 4
    assert [(model["id"], model["root"], model["parent"]) for model in models] == [
        ("sim-model", "sim-model", None),
        *(("a", "a", "sim-model"), ("b", "hub/b", "sim-model")),
    ]
    assert {dict(labels)["max_lora"] for _, labels in info} == {"1"}


async def test_an_adapter_loaded_in_place_from_elsewhere_hits_nothing_of_the_one_before():
    request = chat(LONG, model="a", max_tokens=1)
    cached = []
    async with serving(runtime_loras=True) as (_, client):
        for path in ("hub/1", "hub/1", "hub/2", "hub/1"):
            body = {"lora_name": "a", "lora_path": path, "load_inplace": True}
            async with client.post("/v1/load_lora_adapter", json=body) as response:
                assert response.status == 200
            _, _, body = await post(client, "/v1/chat/completions", request)
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, True, False, True]


async def test_the_small_endpoints():
    async with serving() as (_, client):
        async with client.get("/health") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with client.get("/version") as response:
            assert (await response.json())["version"].startswith("0.32")
        _, _, body = await post(client, "/tokenize", {"prompt": "hello world"})
        assert (body["count"], len(body["tokens"])) == (2, 2)
        _, _, chat_ids = await post(client, "/tokenize", chat("hello world"))
        assert chat_ids["tokens"][1:3] == body["tokens"]
        _, _, rendered = await post(client, "/v1/chat/completions/render", chat("hello world"))
        assert rendered == {"token_ids": chat_ids["tokens"]}
        _, _, each = await post(client, "/v1/completions/render", {"prompt": ["hello world", [7]]})
        assert each == [{"token_ids": body["tokens"]}, {"token_ids": [7]}]
        _, _, answer = await post(client, "/v1/chat/completions", chat("hello world"))
        assert answer["usage"]["prompt_tokens"] == chat_ids["count"] == 5


async def test_the_cache_can_be_reset_while_nothing_runs():
    async with serving() as (_, client):
        cached = []
        for _ in range(2):
            await post(client, "/v1/completions", {"prompt": LONG})
            _, _, body = await post(client, "/v1/completions", {"prompt": LONG})
            cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
            _, _, reset = await post(client, "/reset_prefix_cache", {})
            assert reset == {"success": True}
        _, _, body = await post(client, "/v1/completions", {"prompt": LONG})
    assert cached == [True, True]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_details_can_be_left_out():
    async with serving(prompt_tokens_details=False) as (_, client):
        _, _, body = await post(client, "/v1/completions", {"prompt": "hi"})
    assert body["usage"]["prompt_tokens_details"] is None


async def test_many_at_once_all_get_their_own_answer():
    async with serving(limits=Limits(num_gpu_blocks=64, max_num_seqs=8)) as (_, client):
        alone = {}
        for number in range(3):
            _, _, body = await post(client, "/v1/completions", {"prompt": f"say {number}"})
            alone[number] = body["choices"][0]["text"]
        bodies = await asyncio.gather(
            *(post(client, "/v1/completions", {"prompt": f"say {n % 3}"}) for n in range(40))
        )
        assert await value(client, "num_requests_waiting") == 0
    for number, (status, _, body) in enumerate(bodies):
        assert (status, body["choices"][0]["text"]) == (200, alone[number % 3])
