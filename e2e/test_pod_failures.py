"""Model servers that refuse, break off or are gone: what clients get, and what comes after."""

import asyncio
import json

import aiohttp
import pytest
import pytest_asyncio

from e2e.corridor import CHAT, REASON, SERVER, Plan, chat, corridor, quiet_port

OUTCOMES = "warmpick_exchange_outcomes_total"
RUNNING = "llm_d_epp_request_running"
READY = "llm_d_epp_ready_endpoints"
UPSTREAM = "upstream connect error or disconnect/reset before headers"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    plan = Plan(simulators=("a", "b"), server_flags=("--faults",))
    async with corridor(plan, tmp_path_factory.mktemp("pods")) as made:
        yield made


@pytest.fixture(params=["override_host", "original_dst"])
def routing(request):
    return request.param


async def serves(gateway):
    assert (await gateway.post(CHAT, chat("hello"))).status == 200
    await gateway.metric_becomes(0, RUNNING)


def endless(**more):
    return chat("hello", stream=True, max_tokens=100_000, **more)


async def test_a_server_that_hangs_up_is_a_503(gateway):
    answer = await gateway.post(CHAT, chat("hello"), **{"x-sim-fault": "refuse"})
    assert answer.status == 503
    assert answer.body.decode().startswith(UPSTREAM)
    await serves(gateway)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_servers_own_error_passes_and_is_counted(gateway, status):
    name, code = "llm_d_epp_request_error_total", "ModelServerError"
    before = await gateway.metric(name, error_code=code)
    answer = await gateway.post(CHAT, chat("hello"), **{"x-sim-fault": f"status={status}"})
    assert (answer.status, answer.message) == (status, "asked for by the client")
    assert REASON not in answer.headers
    await gateway.metric_becomes(before + 1, name, error_code=code)
    await serves(gateway)


async def test_a_stream_that_breaks_off_is_broken_for_the_client_too(gateway):
    before = await gateway.metric(OUTCOMES, outcome="aborted")
    body = chat("hello", stream=True, max_tokens=1000)
    # What is still on its way when the server dies is lost: what is read here comes long before.
    async with gateway.stream(CHAT, body, **{"x-sim-fault": "die-after=400"}) as response:
        assert response.status == 200
        for _ in range(3):
            assert (await response.content.readuntil(b"\n\n")).startswith(b"data: {")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await gateway.metric_becomes(before + 1, OUTCOMES, outcome="aborted")
    await serves(gateway)


async def test_a_client_that_leaves_amid_a_stream(gateway):
    before = await gateway.metric(OUTCOMES, outcome="aborted")
    async with gateway.stream(CHAT, endless()) as response:
        await response.content.readany()
        await gateway.metric_becomes(1, RUNNING)
        response.close()
    await gateway.metric_becomes(0, RUNNING)
    await gateway.metric_becomes(before + 1, OUTCOMES, outcome="aborted")
    await serves(gateway)


async def test_a_client_that_leaves_before_the_answer(gateway):
    before = await gateway.metric(OUTCOMES, outcome="aborted")
    waiting = asyncio.create_task(gateway.post(CHAT, chat("hello"), **{"x-sim-fault": "hang"}))
    await gateway.metric_becomes(1, RUNNING)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await gateway.metric_becomes(before + 1, OUTCOMES, outcome="aborted")
    await serves(gateway)


async def test_a_port_where_nobody_listens(start, routing):
    dead = f"127.0.0.1:{quiet_port()}"
    plan = Plan(others=(dead,), simulators=("a",), routing=routing)
    async with start(plan) as gateway:
        # Beside a live one, the dead one is found out and left alone.
        await gateway.metric_becomes(1, READY)
        answers = await asyncio.gather(*(gateway.post(CHAT, chat(f"{n}")) for n in range(12)))
        assert [(answer.status, answer.headers[SERVER]) for answer in answers] == [(200, "a")] * 12

        # Alone, it is asked all the same: the scrape may be wrong, Envoy says how it is.
        gateway.write_endpoints("other-0")
        await gateway.metric_becomes(0, READY)
        answer = await gateway.post(CHAT, chat("hello"))
        assert answer.status == 503
        assert answer.body.decode() == f"{UPSTREAM}. reset reason: remote connection failure"

        gateway.write_endpoints("a")
        await gateway.metric_becomes(1, READY)
        await serves(gateway)


async def test_a_server_that_is_killed_is_left_alone(start, routing):
    plan = Plan(simulators=("a", "b"), routing=routing)
    async with start(plan) as gateway:
        async with gateway.stream(CHAT, endless()) as response:
            await response.content.readany()
            await gateway.kill_server_of(response)
        assert await gateway.metric(OUTCOMES, outcome="aborted") == 1


async def test_without_endpoints_the_picker_answers(start, routing):
    async with start(Plan(routing=routing)) as gateway:
        for request in (gateway.post(CHAT, chat("hello")), gateway.get("/v1/models")):
            answer = await request
            assert answer.status == 503
            assert answer.headers[REASON] == "no-endpoints"
            assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json == {
                "type": "error",
                "error": {
                    "message": "no endpoint is ready in the pool",
                    "type": "service_unavailable_error",
                    "param": None,
                    "code": "no-endpoints",
                },
            }
        await gateway.metric_becomes(2, OUTCOMES, outcome="rejected")
        assert (
            await gateway.metric("llm_d_epp_request_error_total", error_code="ServiceUnavailable")
            == 2
        )


async def test_a_hundred_clients_that_leave_at_once_leave_nothing(gateway):
    before = await gateway.metric(OUTCOMES, outcome="aborted")
    connections = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(100)]
    body = json.dumps(endless()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for _, writer in connections:
        writer.write(head + body)
    for reader, _ in connections:
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    for _, writer in connections:
        writer.close()
    await gateway.metric_becomes(before + 100, OUTCOMES, outcome="aborted")
    await serves(gateway)
