"""Pods that live and are busy: late pages, none at all, and requests that are shed."""

import asyncio
from contextlib import AsyncExitStack

from aiohttp import web

from e2e.corridor import CHAT, SERVER, Plan, chat
from e2e.serving import serving
from e2e.test_ejections import EJECTED, READY, beside

FAILED_SCRAPES = "warmpick_scrape_failures_total"


async def test_pods_whose_pages_are_late_keep_their_share(start):
    flags = ("--late-page-above", "0", "--late-page-seconds", "60", "--speed", "0.1")
    plan = Plan(simulators=("a", "b"), server_flags=flags)
    async with start(plan) as gateway, AsyncExitStack() as streams:
        await gateway.metric_becomes(2, READY)
        body = chat("hello", stream=True, max_tokens=100_000)
        for _ in range(2):
            response = await streams.enter_async_context(gateway.stream(CHAT, body))
            await response.content.readany()
        late = await gateway.metric(FAILED_SCRAPES)
        while await gateway.metric(FAILED_SCRAPES) < late + 8:
            await asyncio.sleep(0.1)
        assert await gateway.metric(READY) == 2
        assert await gateway.metric(EJECTED) == 0
        answers = [await gateway.post(CHAT, chat(f"{n}", max_tokens=1)) for n in range(4)]
        assert {answer.status for answer in answers} == {200}


async def without_a_page(http):
    await http.read()
    if http.path == "/metrics":
        return web.Response(status=404)
    return web.json_response({"choices": []}, headers={SERVER: "pageless"})


async def test_a_pod_without_a_page_gets_its_share_beside_one_that_has_it(start):
    async with serving(without_a_page) as other, start(beside(other)) as gateway:
        await gateway.metric_becomes(2, READY)
        while await gateway.metric(FAILED_SCRAPES) < 3:
            await asyncio.sleep(0.1)
        answers = [await gateway.post(CHAT, chat(f"{n}")) for n in range(12)]
        assert [answer.headers[SERVER] for answer in answers].count("pageless") == 6
        assert await gateway.metric(READY) == 2


async def test_what_is_shed_is_no_failure(start):
    flags = ("--shed-above", "0", "--shed-retry-after")
    plan = Plan(simulators=("a", "b"), server_flags=flags, picker_flags=("--policy=round-robin",))
    async with start(plan) as gateway:
        await gateway.metric_becomes(2, READY)
        answers = [await gateway.post(CHAT, chat(f"{n}")) for n in range(20)]
        assert [answer.status for answer in answers] == [503] * 20
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
        assert await gateway.metric(EJECTED) == 0
