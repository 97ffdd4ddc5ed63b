"""Envoy as Envoy Gateway configures it: 1,500 answers at once, and every kind of request."""

import asyncio
import collections
import signal

import pytest
import pytest_asyncio

from e2e.corridor import CHAT, DEADLINE, DECISION, REASON, SERVER, chat, until
from e2e.envoy_gateway_corridor import (
    PICKER_CLUSTER,
    ROUTE_CLUSTER,
    PolicyPlan,
    envoy_gateway_corridor,
)
from e2e.test_many_at_once import AT_ONCE, all_at_once

ALL, FIRST = ("--observe-responses=all",), ("--observe-responses=first",)
PODS = ("a", "b")
CONVERSATIONS = 8
"""As the first turn of each goes to either pod, all go to one once in 128 runs, were it chance."""
OUTCOMES = "warmpick_exchange_outcomes_total"
RUNNING = "llm_d_epp_request_running"
READY = "llm_d_epp_ready_endpoints"
ACTIVE = "upstream_rq_active"
LARGE = 3_000_000

# response body mode, flags, the picker's streams for each streamed answer (None: its own business)
WAYS = {
    "streamed, by default": ("Streamed", (), None),
    "streamed, to the end": ("Streamed", ALL, 1),
    "streamed, first chunk": ("Streamed", FIRST, 0),
    "full duplex": ("FullDuplexStreamed", ALL, 1),
}


def planned(way, ext_proc=None, **more):
    mode, flags, _ = WAYS[way]
    laid_over = {"processingMode": {"response": {"body": mode}}, **(ext_proc or {})}
    return PolicyPlan(ext_proc=laid_over, picker_flags=flags, **more)


async def becomes(gateway, wanted, cluster, name=ACTIVE):
    async def is_so():
        return await gateway.stat(cluster, name) == wanted

    await until(is_so)


@pytest.mark.parametrize("way", WAYS)
async def test_1500_streamed_answers_at_once(echo, tmp_path, way):
    watched = WAYS[way][2]
    async with envoy_gateway_corridor(planned(way, others=(echo.target,)), tmp_path) as gateway:

        async def the_picker_watches_or_has_left():
            if watched is not None:
                await becomes(gateway, AT_ONCE * watched, PICKER_CLUSTER)
            assert await gateway.stat(ROUTE_CLUSTER, ACTIVE) == AT_ONCE

        await all_at_once(gateway.client, gateway.url, echo, the_picker_watches_or_has_left)
        await gateway.metric_becomes(AT_ONCE, OUTCOMES)
        completed = await gateway.metric(OUTCOMES, outcome="completed")
        unobserved = await gateway.metric(OUTCOMES, outcome="unobserved")
        assert completed + unobserved == AT_ONCE
        assert watched in {None, completed / AT_ONCE}


async def test_1500_answers_outlive_a_picker_that_had_left_them(echo, tmp_path):
    plan = planned("streamed, first chunk", others=(echo.target,))
    async with envoy_gateway_corridor(plan, tmp_path) as gateway:

        async def the_picker_is_killed():
            await becomes(gateway, 0, PICKER_CLUSTER)
            gateway.signal(gateway.picker, signal.SIGKILL)
            assert await gateway.picker.wait_exit(DEADLINE) == -signal.SIGKILL

        await all_at_once(gateway.client, gateway.url, echo, the_picker_is_killed)
        assert (await gateway.post(CHAT, chat("anyone?"))).status == 503
        await gateway.start_picker()
        assert (await gateway.post(CHAT, chat("anyone?"))).status == 200


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS)
async def gateway(request, tmp_path_factory):
    """Two simulated model servers, and a picker."""
    directory = tmp_path_factory.mktemp("gateway")
    async with envoy_gateway_corridor(planned(request.param, simulators=PODS), directory) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS)
async def echoing_gateway(request, echo, tmp_path_factory):
    """A model server that answers with what it was sent, and a picker."""
    directory = tmp_path_factory.mktemp("echo")
    plan = planned(request.param, others=(echo.target,))
    async with envoy_gateway_corridor(plan, directory) as made:
        yield made


async def test_conversations_stay_on_their_pod(gateway):
    homes = collections.defaultdict(set)
    for number in range(CONVERSATIONS):
        said = [f"{number}: " + f"a fact about {number}, and another one. " * 100]
        for turn in range(3):
            body = chat(*said, stream=True, stream_options={"include_usage": True})
            answer = await gateway.post(CHAT, body)
            assert answer.status == 200
            homes[number].add(answer.headers[SERVER])
            *events, last = answer.events
            usage = last["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 0.9 * usage["prompt_tokens"]) == (turn > 0)
            text = "".join(each["choices"][0]["delta"].get("content", "") for each in events)
            said += [text, f"turn {turn}"]
    assert all(len(home) == 1 for home in homes.values())
    assert set.union(*homes.values()) == set(PODS)


async def test_other_requests(gateway):
    models = await gateway.get("/v1/models")
    assert (models.status, models.headers[SERVER] in PODS) == (200, True)
    broken = await gateway.post(CHAT, b'{"model": "sim')
    assert (broken.status, broken.headers[REASON]) == (400, "malformed-request")
    assert "not valid JSON" in broken.message
    assert SERVER not in broken.headers


async def test_a_client_cannot_choose_where_it_goes(gateway):
    there = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
    answer = await gateway.post(CHAT, chat("hello"), **there)
    assert (answer.status, answer.headers[SERVER] in PODS) == (200, True)


async def test_a_client_that_goes_away_ends_everything(gateway):
    body = chat("hello", stream=True, max_tokens=100_000)
    async with gateway.stream(CHAT, body) as response:
        assert response.status == 200
        await response.content.readany()
        assert await gateway.stat(ROUTE_CLUSTER, ACTIVE) == 1
        response.close()
    await becomes(gateway, 0, ROUTE_CLUSTER)
    await becomes(gateway, 0, PICKER_CLUSTER)
    await gateway.metric_becomes(0, RUNNING)


async def test_a_large_prompt_passes_the_small_buffers_both_ways(echoing_gateway, echo):
    body = chat("x" * LARGE)
    answer = await echoing_gateway.post(CHAT, body)
    assert (answer.status, answer.json) == (200, body)
    assert DECISION in answer.headers
    assert len(echo.seen[-1].body) > LARGE


async def test_without_endpoints_the_picker_answers(gateway):
    gateway.write_endpoints()
    await gateway.metric_becomes(0, READY)
    try:
        for answer in await asyncio.gather(
            gateway.post(CHAT, chat("hello")), gateway.get("/v1/models")
        ):
            assert (answer.status, answer.headers[REASON]) == (503, "no-endpoints")
            assert answer.message == "no endpoint is ready in the pool"
    finally:
        gateway.write_endpoints(*PODS)
        await gateway.metric_becomes(2, READY)
    assert (await gateway.post(CHAT, chat("hello"))).status == 200
