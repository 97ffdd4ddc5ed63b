"""What a client asks, a server answers or a gateway shows is between no request and its release."""

import asyncio
import json

import pytest
from aiohttp import web

from e2e.corridor import CHAT, TRANSPORT, UNTESTED, WATCHED, Plan, chat
from e2e.echo import HELD
from e2e.serving import serving
from tests.native.built import needs

OUTCOMES = "warmpick_exchange_outcomes_total"
TOKENS = 20


async def unlimited(http):
    """Answer as llama.cpp's server does, for which a `max_tokens` of -1 is not a limit."""
    if http.path == "/metrics":
        return web.Response(text="# nothing to tell\n")
    asked = json.loads(await http.read())
    assert asked["max_tokens"] < 1
    return await streamed(http)


async def unending(http):
    """Answer to the last event, but end no body; until the client leaves."""
    if http.path == "/metrics":
        return web.Response(text="# nothing to tell\n")
    await http.read()
    response = await streamed(http)
    await asyncio.Event().wait()
    return response


async def streamed(http):
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(http)
    for _ in range(TOKENS):
        await response.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    usage = {"prompt_tokens": 9, "completion_tokens": TOKENS}
    await response.write(b"data: %s\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
    await response.write(b"data: [DONE]\n\n")
    return response


@pytest.mark.parametrize("limit", [-1, 0])
async def test_a_request_without_a_limit_ends(start, limit):
    async with (
        serving(unlimited) as one,
        serving(unlimited) as other,
        start(Plan(others=(one, other), picker_flags=WATCHED)) as gateway,
    ):
        for number in range(20):
            asked = chat(f"{number}", max_tokens=limit, stream=True)
            answer = await gateway.post(CHAT, asked)
            assert answer.status == 200
            assert len(answer.events) == TOKENS + 1
        await gateway.metric_becomes(20, OUTCOMES, outcome="completed")
        assert await gateway.idle()


async def test_a_client_that_leaves_at_the_last_event_has_its_whole_answer(start):
    async with (
        serving(unending) as server,
        start(Plan(others=(server,), picker_flags=WATCHED)) as gateway,
    ):
        async with gateway.stream(CHAT, chat("hello", stream=True)) as response:
            async for line in response.content:
                if line == b"data: [DONE]\n":
                    break
            response.close()
        await gateway.metric_becomes(1, OUTCOMES, outcome="completed")
        assert await gateway.metric(OUTCOMES, outcome="aborted") == 0
        assert await gateway.idle()


@needs("epp.adapters.extproc.http2.session", "requests whose response is not shown")
@pytest.mark.skipif(
    TRANSPORT != "native",
    reason=UNTESTED % ("responses that are not shown", "tells no reset from a half-close"),
)
@pytest.mark.parametrize("request_mode", ["FULL_DUPLEX_STREAMED", "NONE"])
async def test_a_request_whose_response_is_not_shown_counts_as_load(start, echo, request_mode):
    plan = Plan(
        others=(echo.target,),
        request_body_mode=request_mode,
        response_body_mode="NONE",
        response_headers=False,
    )
    echo.release.clear()
    async with start(plan) as gateway:
        asked = chat("hello", max_tokens=10_000)
        sent = asyncio.create_task(gateway.post(CHAT, asked, **{HELD: "1"}))
        await gateway.metric_becomes(1, OUTCOMES, outcome="unobserved")
        assert await gateway.metric(OUTCOMES, outcome="aborted") == 0
        assert await gateway.metric("llm_d_epp_inflight_requests") == 1
        echo.release.set()
        assert (await sent).status == 200
