"""A pod that fails is left out after five requests in a row, whatever Envoy makes of it."""

import asyncio
import time

import pytest
from aiohttp import web

from e2e.corridor import CHAT, SERVER, Plan, chat, decision, until
from e2e.serving import serving
from epp.gateway.envoy import retries

EJECTED = "warmpick_ejected_endpoints"
EJECTIONS = "warmpick_endpoint_ejections_total"
READY = "llm_d_epp_ready_endpoints"


async def answers_503(_):
    return web.Response(status=503, text="the engine is dead")


async def answers_nothing(_):
    return web.Response(headers={"content-type": "application/json"})


async def resets(http):
    http.transport.abort()
    return web.Response()


def scraped(fail):
    """Have a pod answer scrapes, and fail requests."""

    async def answer(http):
        await http.read()
        if http.path == "/metrics":
            return web.Response(text="# nothing to tell\n")
        return await fail(http)

    return answer


def beside(bad, *flags):
    """Plan a good pod beside a bad one, which are asked in turn."""
    flags = ("--policy=round-robin", *flags)
    return Plan(simulators=("a",), others=(bad,), picker_flags=flags)


@pytest.mark.parametrize("fail", [answers_503, answers_nothing, resets])
async def test_a_pod_that_fails_five_times_in_a_row_is_left_out(start, fail):
    async with serving(scraped(fail)) as bad, start(beside(bad)) as gateway:
        await gateway.metric_becomes(2, READY)
        answers = [await gateway.post(CHAT, chat(f"{n}")) for n in range(20)]
        served = [answer.headers.get(SERVER) for answer in answers]
        # Round robin: every second request, until five have failed.
        assert served.count(None) == 5
        assert served[10:] == ["a"] * 10
        await gateway.metric_becomes(1, EJECTED)
        await gateway.metric_becomes(1, READY)
        await gateway.metric_becomes(1, EJECTIONS, reason="consecutive_failures")


async def test_a_pod_whose_failures_a_gateway_makes_good_is_left_out_too(start):
    async def fails_later(http):
        served = b"served" in await http.read()
        return web.json_response({}) if served else web.Response(status=503)

    def retry(manager):
        (host,) = manager["route_config"]["virtual_hosts"]
        host["include_attempt_count_in_response"] = True
        host["routes"][0]["route"]["retry_policy"] = retries("5xx")

    async with serving(scraped(fails_later)) as bad, start(beside(bad)) as gateway:
        await gateway.metric_becomes(2, READY)
        await gateway.reconfigure(retry)
        for number in range(4):  # the gateway knows both
            assert (await gateway.post(CHAT, chat(f"served {number}"))).status == 200
        answers = [await gateway.post(CHAT, chat(f"{n}")) for n in range(20)]
        assert [answer.headers.get(SERVER) for answer in answers] == ["a"] * 20
        await gateway.metric_becomes(1, EJECTIONS, reason="consecutive_failures")
        # Round robin: every second request, until five have failed.
        assert [decision(answer)["endpoint"] for answer in answers].count(bad) == 5


async def test_a_pod_that_sheds_all_its_requests_gets_one_a_second(start):
    async def answers_429(_):
        return web.Response(status=429, headers={"retry-after": "1"})

    async with serving(scraped(answers_429)) as bad, start(beside(bad)) as gateway:
        await gateway.metric_becomes(2, READY)
        began = time.monotonic()
        answers = [await gateway.post(CHAT, chat(f"{n}")) for n in range(40)]
        seconds = time.monotonic() - began
        # Round robin: every second request, until five were shed.
        assert [answer.status for answer in answers[:10]].count(429) == 5
        assert [answer.status for answer in answers[10:]].count(429) <= seconds
        await gateway.metric_becomes(0, EJECTED)


async def test_nobody_is_left_out_where_that_is_switched_off(start):
    async with (
        serving(scraped(answers_503)) as bad,
        start(beside(bad, "--eject-after=0")) as gateway,
    ):
        await gateway.metric_becomes(2, READY)
        answers = [await gateway.post(CHAT, chat(f"{n}")) for n in range(20)]
        assert [answer.status for answer in answers].count(503) == 10
        await gateway.metric_becomes(0, EJECTED)


async def test_a_first_pod_of_an_empty_pool_that_is_not_ready_fails_few_of_those_that_wait(start):
    loaded = asyncio.Event()

    async def loads(_):
        return web.json_response({}, status=200 if loaded.is_set() else 503)

    async with serving(scraped(loads)) as pod:
        plan = Plan(others=(pod,), picker_flags=("--hold-empty-timeout=60s",))
        async with start(plan) as gateway:
            await gateway.metric_becomes(1, READY)
            gateway.write_endpoints()
            await gateway.metric_becomes(0, READY)
            asked = [asyncio.create_task(gateway.post(CHAT, chat(f"{n}"))) for n in range(50)]
            await gateway.metric_becomes(50, "warmpick_flow_waiting_requests")
            began = time.monotonic()
            gateway.write_endpoints("other-0")

            async def tried_again():
                return sum(each.done() for each in asked) > 5

            await until(tried_again)
            loaded.set()
            statuses = [answer.status for answer in await asyncio.gather(*asked)]
            assert set(statuses) == {200, 503}
            assert statuses.count(503) <= 5 + time.monotonic() - began
