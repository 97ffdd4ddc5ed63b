"""Late and missing pages, shedding, and a cold start."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from model_server.simulator.cli import parse
from model_server.simulator.settings import Speed
from model_server.simulator.strain import Strain

from .simulated import chat, post, serving

PATH = "/v1/chat/completions"
SLOW = Speed(factor=0.01)
ENDLESS = chat("hi", max_tokens=10_000, stream=True, ignore_eos=True)


def test_decisions():
    strain = Strain(late_above=2, late_seconds=3.0, shed_above=2, cold_requests=1)
    assert [strain.page_seconds(running) for running in range(5)] == [0, 0, 0, 3, 3]
    assert [strain.sheds(unfinished) for unfinished in range(4)] == [False, False, True, True]
    assert [strain.wait_seconds(before) for before in range(3)] == [10, 0, 0]


def test_without_flags_there_is_none():
    none = Strain()
    assert parse([]).strain == none
    assert not none.sheds(10**9)
    assert none.page_seconds(10**9) == none.wait_seconds(0) == 0


def test_flags():
    text = (
        "--late-page-above 3 --late-page-seconds 0.5 --no-metrics-page --shed-above 4"
        " --shed-retry-after --cold-requests 5 --cold-seconds 6"
    )
    expected = Strain(
        late_above=3,
        late_seconds=0.5,
        no_page=True,
        shed_above=4,
        shed_retry_after=True,
        cold_requests=5,
        cold_seconds=6,
    )
    assert parse(text.split()).strain == expected


async def running(stack, client, count):
    """Have so many requests run for as long as the stack is open."""
    for _ in range(count):
        await stack.enter_async_context(client.post(PATH, json=ENDLESS))


async def test_a_page_is_late_while_many_run():
    strain = Strain(late_above=1, late_seconds=60.0)
    async with serving(strain=strain, speed=SLOW) as (server, client), AsyncExitStack() as stack:
        await running(stack, client, 1)
        assert server.engine.unfinished == 1
        async with client.get("/metrics") as page:
            assert page.status == 200
        await running(stack, client, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), client.get("/metrics"):
                pass


@pytest.mark.parametrize("said", [False, True])
async def test_what_is_too_much_is_shed(said):
    strain = Strain(shed_above=2, shed_retry_after=said)
    async with serving(strain=strain, speed=SLOW) as (server, client), AsyncExitStack() as stack:
        await running(stack, client, 2)
        assert server.engine.unfinished == 2
        status, headers, body = await post(client, PATH, chat("hi"))
        assert (status, body["error"]["code"], "Retry-After" in headers) == (503, 503, said)


async def test_the_first_requests_take_their_time():
    async with serving(strain=Strain(cold_requests=1, cold_seconds=60.0)) as (_, client):
        both = [asyncio.create_task(post(client, PATH, chat("hi", max_tokens=3))) for _ in "ab"]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert (await post(client, PATH, chat("hi", max_tokens=3)))[0] == 200
        (second,) = [each for each in both if each.done()]  # the first one to come still waits
        assert second.result()[0] == 200
        for each in both:
            each.cancel()
        await asyncio.wait(both)


async def test_there_may_be_no_page():
    async with serving(strain=Strain(no_page=True)) as (_, client):
        async with client.get("/metrics") as page:
            assert page.status == 404
        assert (await post(client, PATH, chat("hi", max_tokens=3)))[0] == 200
