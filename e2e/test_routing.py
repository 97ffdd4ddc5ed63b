"""Where requests go: to the server that is warm, in turn, and never where a client says."""

import asyncio

import pytest
import pytest_asyncio

from e2e.corridor import CHAT, DEADLINE, MODEL, SERVER, Plan, chat, corridor, decision, until

BLOCK = 16
SERVERS = ("a", "b", "c")
TEXT = "The harbour master wrote down every ship that came in before the fog. " * 60
OTHER = "Nobody had told the gardener that the wall would be moved in spring. " * 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    plan = Plan(simulators=SERVERS, server_flags=("--speed", "20"))
    async with corridor(plan, tmp_path_factory.mktemp("routing")) as made:
        yield made


def usage(answer):
    """Prompt tokens, and how many of them the server had cached."""
    said = answer.json["usage"]
    return said["prompt_tokens"], said["prompt_tokens_details"]["cached_tokens"]


async def asked_of_all(gateway):
    """Ask other questions until every server has answered one; give how many."""
    asked, answered = 0, set[str]()
    async with asyncio.timeout(DEADLINE):
        while answered != set(SERVERS):
            bodies = [chat(f"{asked + number} {OTHER}") for number in range(6)]
            answers = await asyncio.gather(*(gateway.post(CHAT, body) for body in bodies))
            answered |= {answer.headers[SERVER] for answer in answers}
            asked += len(bodies)
    return asked


async def test_the_second_turn_returns_to_the_warm_server(gateway):
    await until(gateway.idle)
    compared = await gateway.metric("warmpick_actual_cached_tokens_count")
    before = await gateway.metric("warmpick_actual_cached_tokens_sum")
    opening = chat(TEXT, max_tokens=24)
    first = await gateway.post(CHAT, opening)
    assert usage(first)[1] == 0
    assert decision(first)["predicted_cached_tokens"] == 0
    others = await asked_of_all(gateway)

    reply = first.json["choices"][0]["message"]["content"]
    second = await gateway.post(CHAT, chat(TEXT, reply, "And then?"))
    assert second.headers[SERVER] == first.headers[SERVER]
    prompt, cached = usage(second)
    assert cached > 0.9 * usage(first)[0]
    said = decision(second)
    # Text is measured in bytes: at each end of the prefix a block may be judged wrongly.
    assert abs(said["predicted_cached_tokens"] - cached) <= 2 * BLOCK
    assert abs(said["prompt_tokens"] - prompt) <= 0.05 * prompt
    assert said["endpoint"] == gateway.targets[second.headers[SERVER]]
    asked = compared + 2 + others
    await gateway.metric_becomes(asked, "warmpick_actual_cached_tokens_count")
    assert await gateway.metric("warmpick_actual_cached_tokens_sum") == before + cached


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/embeddings"])
async def test_other_apis_return_to_the_warm_server_too(gateway, path):
    field = "prompt" if path == "/v1/completions" else "input"
    body = {"model": MODEL, field: f"{path} {TEXT}"}
    answers = [await gateway.post(path, body) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert len({answer.headers[SERVER] for answer in answers}) == 1
    assert [decision(answer)["predicted_cached_tokens"] > 0 for answer in answers] == [
        False,
        *[True] * 3,
    ]


async def test_token_ids_are_counted_and_cached_exactly(gateway):
    body = {"model": MODEL, "prompt": list(range(1000, 1400)), "max_tokens": 1}
    answers = [await gateway.post("/v1/completions", body) for _ in range(2)]
    assert [usage(answer)[1] for answer in answers] == [0, 399 // BLOCK * BLOCK]
    last = decision(answers[1])
    assert (last["prompt_tokens"], last["predicted_cached_tokens"]) == (400, 399 // BLOCK * BLOCK)


async def test_a_cache_salt_keeps_prefixes_apart(gateway):
    answers = [
        await gateway.post(CHAT, chat(f"salted {TEXT}", cache_salt=salt))
        for salt in ("one", "two", "one")
    ]
    assert [usage(answer)[1] > 0 for answer in answers] == [False, False, True]
    assert [decision(answer)["predicted_cached_tokens"] > 0 for answer in answers] == [
        False,
        False,
        True,
    ]
    assert answers[0].headers[SERVER] == answers[2].headers[SERVER]


async def test_a_stream_tells_as_much_as_a_whole_response(gateway):
    ttft = "llm_d_epp_request_ttft_seconds_count"
    before = await gateway.metric(ttft, streaming="true")
    body = chat(f"streamed {TEXT}", stream=True, stream_options={"include_usage": True})
    answers = [await gateway.post(CHAT, body) for _ in range(2)]
    cached = [
        answer.events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers
    ]
    assert cached[0] == 0
    predicted = decision(answers[1])["predicted_cached_tokens"]
    assert abs(predicted - cached[1]) <= 2 * BLOCK
    assert answers[0].headers[SERVER] == answers[1].headers[SERVER]
    await gateway.metric_becomes(before + 2, ttft, streaming="true")


async def test_the_list_of_models_is_routed(gateway):
    answer = await gateway.get("/v1/models")
    assert [model["id"] for model in answer.json["data"]] == [MODEL]
    assert answer.headers[SERVER] in SERVERS


async def test_the_picker_lists_models_if_it_reads_the_lists(start):
    async with start(Plan(simulators=SERVERS, picker_flags=("--poll-models",))) as gateway:

        async def listed():
            return (await gateway.get("/v1/models")).status == 200

        await until(listed)
        answer = await gateway.get("/v1/models")
        (model,) = answer.json["data"]
        assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "warmpick")
        assert SERVER not in answer.headers
        assert (await gateway.get(f"/v1/models/{MODEL}")).headers[SERVER] in SERVERS
        assert (await gateway.post(CHAT, chat("hello"))).status == 200
        assert await gateway.metric("warmpick_exchange_outcomes_total", outcome="answered") >= 1


async def test_an_unknown_model_is_the_servers_own_answer(gateway):
    answer = await gateway.post(CHAT, chat("hello", model="nobody"))
    assert (answer.status, answer.json["error"]["code"]) == (404, 404)
    assert "nobody" in answer.message


async def test_round_robin_takes_turns(start):
    plan = Plan(simulators=SERVERS, picker_flags=("--policy=round-robin",))
    async with start(plan) as gateway:
        answers = [await gateway.post(CHAT, chat("the same prompt")) for _ in range(9)]
        names = [answer.headers[SERVER] for answer in answers]
        assert sorted(names[:3]) == sorted(SERVERS)
        assert names == names[:3] * 3
        await until(gateway.idle)
        assert await gateway.metric("llm_d_epp_scheduler_attempts_total", status="success") == 9
