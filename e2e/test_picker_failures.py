"""A picker that is killed or hangs: what Envoy then answers, and that it recovers by itself.

In full duplex Envoy cannot fail open for a request with a body, which it has given away; it can
where it holds the body (BUFFERED), and for requests without one.
"""

import asyncio
import signal

import aiohttp
import pytest
from msgspec.structs import replace

from e2e.corridor import CHAT, DEADLINE, DECISION, SERVER, Plan, chat

SERVERS = ("a", "b")
RUNNING = "llm_d_epp_request_running"
SLOW = {"x-sim-fault": "slow-headers=20"}
CLOSED = Plan(simulators=SERVERS, server_flags=("--faults",))
OPEN = replace(CLOSED, failure_mode_allow=True)
BUFFERED = replace(CLOSED, request_body_mode="BUFFERED", response_body_mode="BUFFERED")

# the plan, and the statuses of a POST and of a GET without a picker
TABLE = {
    "closed": (CLOSED, 500, 500),
    "open": (OPEN, 500, 200),
    "open, by header alone": (replace(OPEN, routing="original_dst"), 500, 503),
    "buffered, closed": (BUFFERED, 500, 500),
    "buffered, open": (replace(BUFFERED, failure_mode_allow=True), 200, 200),
}


async def kill(gateway):
    gateway.signal(gateway.picker, signal.SIGKILL)
    assert await gateway.picker.wait_exit(DEADLINE) == -signal.SIGKILL


@pytest.mark.parametrize("name", TABLE)
async def test_a_picker_that_is_killed(start, name):
    plan, post_status, get_status = TABLE[name]
    async with start(plan) as gateway:
        # With a request under way that has been routed and not been answered,
        waiting = asyncio.create_task(gateway.post(CHAT, chat("hello"), **SLOW))
        await gateway.metric_becomes(1, RUNNING)
        await kill(gateway)
        if post_status == 500:
            answer = await waiting
            assert (answer.status, answer.body) == (500, b"")
        waiting.cancel()
        # ... then without a picker,
        answer = await gateway.post(CHAT, chat("hello"))
        assert answer.status == post_status
        assert (answer.headers.get(SERVER) in SERVERS) == (post_status == 200)
        assert DECISION not in answer.headers
        assert (await gateway.get("/v1/models")).status == get_status
        # ... and with one again.
        await gateway.start_picker()
        answer = await gateway.post(CHAT, chat("hello"))
        assert answer.status == 200
        assert DECISION in answer.headers


@pytest.mark.parametrize("plan", [CLOSED, OPEN])
async def test_a_picker_that_is_killed_amid_a_stream_breaks_it(start, plan):
    async with start(plan) as gateway:
        body = chat("hello", stream=True, max_tokens=100_000)
        async with gateway.stream(CHAT, body) as response:
            assert response.status == 200
            await response.content.readany()
            await kill(gateway)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        await gateway.start_picker()
        assert (await gateway.post(CHAT, chat("hello"))).status == 200


@pytest.mark.parametrize("plan", [CLOSED, OPEN])
async def test_a_picker_that_hangs_is_given_up_at_the_streams_idle_timeout(start, plan):
    async with start(replace(plan, stream_idle_timeout_s=4)) as gateway:
        gateway.signal(gateway.picker, signal.SIGSTOP)
        answer = await gateway.post(CHAT, chat("hello"))
        assert (answer.status, answer.body) == (504, b"stream timeout")
        gateway.signal(gateway.picker, signal.SIGCONT)
        assert (await gateway.post(CHAT, chat("hello"))).status == 200
        await gateway.metric_becomes(0, RUNNING)
