"""A model served under another name: clients read the name that they asked for."""

import pytest_asyncio

from e2e.corridor import CHAT, Plan, chat, corridor

HEADER = "x-gateway-model-name-rewrite"
TARGET = "the-model-with-a-name-of-another-length"
MODES = {
    "full duplex": Plan(),
    "streamed response": Plan(response_body_mode="STREAMED"),
    "buffered": Plan(request_body_mode="BUFFERED", response_body_mode="BUFFERED"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def gateway(request, tmp_path_factory):
    plan = Plan(
        simulators=("a",),
        server_flags=("--served-model-name", TARGET),
        request_body_mode=MODES[request.param].request_body_mode,
        response_body_mode=MODES[request.param].response_body_mode,
    )
    async with corridor(plan, tmp_path_factory.mktemp("rewrite")) as made:
        yield made


async def test_without_a_rewrite_the_server_does_not_know_the_name(gateway):
    assert (await gateway.post(CHAT, chat("hello", model="mine"))).status == 404


async def test_json_names_the_clients_model(gateway):
    answer = await gateway.post(CHAT, chat("hello", model="mine"), **{HEADER: TARGET})
    assert answer.status == 200
    assert answer.json["model"] == "mine"
    assert TARGET.encode() not in answer.body


async def test_every_event_of_a_stream_names_the_clients_model(gateway):
    body = chat("hello", model="mine", stream=True, max_tokens=30)
    answer = await gateway.post(CHAT, body, **{HEADER: TARGET})
    assert answer.status == 200
    assert {event["model"] for event in answer.events} == {"mine"}
    assert len(answer.events) >= 30
