"""Several processes that serve as one picker, behind real Envoy."""

import asyncio
import signal
from collections import Counter
from itertools import count

import aiohttp
import psutil
import pytest
from msgspec.structs import replace

from e2e.corridor import CHAT, DEADLINE, TRANSPORT, UNTESTED, Plan, chat, until
from tests.strategies import text

pytestmark = pytest.mark.skipif(
    TRANSPORT != "native", reason=UNTESTED % ("workers", "cannot be passed connections")
)

SERVERS = ("a", "b", "c")
WORKERS = 2
PLAN = Plan(
    simulators=SERVERS,
    envoy_threads=2,
    picker_flags=("--workers=2", "--log-level=debug"),
)
RETRIED = replace(
    PLAN,
    request_body_mode="BUFFERED",
    response_body_mode="BUFFERED",
    failure_mode_allow=True,
)
PROMPT = text(4000)


async def ask(gateway, body):
    """Ask over a connection of its own, which any thread of Envoy's may be given."""
    async with aiohttp.ClientSession() as client, client.post(gateway.url + CHAT, json=body) as got:
        await got.read()
        return got.status


def said(gateway, event):
    """What the processes logged of an event."""
    return [each for each in gateway.log_lines() if each["event"] == event]


def decided(gateway):
    """How many requests each worker decided on."""
    return Counter(each["worker"] for each in said(gateway, "exchange.decided"))


async def seen(gateway, path):
    """A page of the operators' port, read."""
    async with gateway.client.get(gateway.operator_url(path)) as response:
        assert response.status == 200
        return await response.json()


def processes(gateway):
    """The workers' processes."""
    return psutil.Process(gateway.picker.pid).children()


async def sent_by_all(gateway, prompt):
    """Send a prompt until each worker has decided on one; return how often it was sent."""
    for sent in count(1):
        assert await ask(gateway, chat(prompt)) == 200
        if sent > 20 and len(decided(gateway)) == WORKERS:
            return sent
    raise AssertionError


@pytest.mark.parametrize("tls", [False, True])
async def test_what_one_worker_sends_is_warm_for_the_other_and_all_is_counted(start, tls):
    async with start(replace(PLAN, tls=tls)) as gateway:
        sent = await sent_by_all(gateway, PROMPT)
        await gateway.metric_becomes(sent, "llm_d_epp_request_total")
        await gateway.metric_becomes(0, "llm_d_epp_request_running")
        assert await gateway.metric("warmpick_exchange_outcomes_total") >= sent
        assert await gateway.metric("warmpick_replica_dropped_total") == 0
        page = await seen(gateway, "/debug/decisions?limit=20")
        assert page["last"] == sent
        numbers = [each["number"] for each in page["decisions"]]
        assert numbers == list(range(sent - 19, sent + 1))
        # Whoever decides sends it where the prompt is.
        last = [each["profiles"][-1] for each in page["decisions"]]
        assert len({each["winner"] for each in last}) == 1
        for each in last:
            assert each["candidates"][0]["cached_tokens"] > 0.8 * each["prompt_tokens"]
        for each in page["decisions"]:
            found = await seen(gateway, f"/debug/decisions?request={each['request']}")
            assert [one["request"] for one in found["decisions"]] == [each["request"]]
        console = await seen(gateway, "/debug/console")
        assert console["decisions"] == sent
        assert console["totals"]["responses"] == sent
        endpoints = await seen(gateway, "/debug/endpoints")
        assert sum(each["responses"] for each in endpoints["endpoints"]) == sent
        assert endpoints["decisions"] == sent


async def test_a_worker_that_is_killed_is_started_again_warm_and_loses_nothing(start):
    async with start(RETRIED) as gateway:
        before = await sent_by_all(gateway, PROMPT)
        await gateway.metric_becomes(before, "llm_d_epp_request_total")
        statuses, stop = [], asyncio.Event()

        async def load():
            while not stop.is_set():
                statuses.append(await ask(gateway, chat(PROMPT)))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(load())
            processes(gateway)[0].kill()

            async def back():
                """Whether it took what the other one knows, and decides again."""
                ended = said(gateway, "worker.ended")
                if not ended:
                    return False
                lines = gateway.log_lines()
                number, later = ended[0]["worker"], lines[lines.index(ended[0]) :]
                events = [each["event"] for each in later if each.get("worker") == number]
                return {"replicas.warm", "exchange.decided"} <= set(events)

            await until(back)  # the other one has given a connection up for it
            stop.set()
        assert set(statuses) == {200}
        assert [each["status"] for each in said(gateway, "worker.ended")] == [128 + signal.SIGKILL]
        assert len(processes(gateway)) == WORKERS
        assert not said(gateway, "not_ready")
        # What the one that is gone had counted when it was last asked still counts.
        assert await gateway.metric("llm_d_epp_request_total") >= before


async def test_all_drain(start):
    async with start(PLAN) as gateway:
        body = chat(PROMPT, stream=True, max_tokens=200)
        async with gateway.stream(CHAT, body) as response:
            assert response.status == 200
            await response.content.readany()
            gateway.signal(gateway.picker, signal.SIGTERM)
            rest = await response.read()
            assert rest.endswith(b"data: [DONE]\n\n")
        assert await gateway.picker.wait_exit(DEADLINE) == 0
        assert len(said(gateway, "stopped")) == WORKERS + 1


async def test_a_second_signal_ends_all_at_once(start):
    endless = chat(PROMPT, stream=True, max_tokens=100_000)
    async with start(PLAN) as gateway, gateway.stream(CHAT, endless) as response:
        await response.content.readany()
        children = processes(gateway)
        gateway.signal(gateway.picker, signal.SIGTERM)

        async def drains():
            return len(said(gateway, "draining")) == WORKERS + 1

        await until(drains)
        gateway.signal(gateway.picker, signal.SIGTERM)
        assert await gateway.picker.wait_exit(DEADLINE) == 128 + signal.SIGTERM
        gone, _ = await asyncio.to_thread(psutil.wait_procs, children, DEADLINE)
        assert len(gone) == WORKERS
