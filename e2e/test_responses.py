"""Follow-ups of OpenAI's Responses API reach the server that has the response."""

import asyncio

import aiohttp
import pytest
import pytest_asyncio

from e2e.corridor import SERVER, TRANSPORT, UNTESTED, Plan, corridor, until

RESPONSES = "/v1/responses"
SERVERS = ("a", "b", "c", "d")
PLANS = {
    "full duplex": Plan(simulators=SERVERS),
    "streamed": Plan(simulators=SERVERS, response_body_mode="STREAMED"),
    "buffered": Plan(
        simulators=SERVERS, request_body_mode="BUFFERED", response_body_mode="BUFFERED"
    ),
    "several processes": Plan(simulators=SERVERS, envoy_threads=2, picker_flags=("--workers=2",)),
}
TURNS = 4
CONVERSATIONS = 12


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLANS)
async def gateway(request, tmp_path_factory):
    if request.param == "several processes" and TRANSPORT != "native":
        pytest.skip(UNTESTED % ("workers", "cannot be passed connections"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
        directory = tmp_path_factory.mktemp("responses")
        async with corridor(PLANS[request.param], directory) as made:
            yield made


async def converse(gateway, number, *, stream):
    """Have a conversation of several turns; return its servers, and what was asked of the last."""
    servers, previous = [], None
    async with aiohttp.ClientSession() as client:
        for turn in range(TURNS):
            body = {"model": "sim-model", "input": f"{number}, {turn}?", "stream": stream}
            if previous is not None:
                body["previous_response_id"] = previous
            async with client.post(gateway.url + RESPONSES, json=body) as answer:
                assert answer.status == 200, await answer.text()
                said = await answer.text()
                servers.append(answer.headers[SERVER])
            previous = "resp_" + said.split('"id":"resp_')[1].split('"')[0]
        of_it = f"{gateway.url}{RESPONSES}/{previous}"
        async with client.get(of_it) as read:
            assert (await read.json())["id"] == previous  # whole: the connection is free again
        async with client.post(of_it + "/cancel") as cancelled:
            asked = [(each.status, each.headers[SERVER]) for each in (read, cancelled)]
    return servers, asked


@pytest.mark.parametrize("stream", [False, True])
async def test_each_turn_finds_the_one_before(gateway, stream):
    talks = (converse(gateway, number, stream=stream) for number in range(CONVERSATIONS))
    found = await asyncio.gather(*talks)
    for servers, asked in found:
        assert servers == servers[:1] * TURNS
        assert asked == [(200, servers[0]), (400, servers[0])]
    assert len({servers[0] for servers, _ in found}) > 1


async def found_anew(gateway, response):
    """Ask for a response over a new connection, which any process of the picker may get."""
    url = f"{gateway.url}{RESPONSES}/{response}"
    async with aiohttp.ClientSession() as client, client.get(url) as answer:
        return answer.status == 200


async def test_every_process_of_the_picker_knows_where_a_response_is(gateway):
    response = (await gateway.post(RESPONSES, {"model": "sim-model", "input": "hi"})).json["id"]

    async def known():
        return all([await found_anew(gateway, response) for _ in range(16)])

    await until(known)


@pytest.mark.parametrize("previous", ["resp_nobody_has_this", "x" * 10_000, 7])
async def test_what_no_server_has_is_for_a_server_to_refuse(gateway, previous):
    asked = {"model": "sim-model", "input": "hi", "previous_response_id": previous}
    assert (await gateway.post(RESPONSES, asked)).status in {400, 404}
