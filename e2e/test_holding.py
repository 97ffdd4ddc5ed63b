"""Requests that wait in the picker, through Envoy: until there is room, or their end comes."""

import asyncio
import contextlib
import signal
import time
from collections import Counter

import pytest
import pytest_asyncio
from msgspec.structs import replace

from e2e.corridor import CHAT, DEADLINE, REASON, SERVER, TRANSPORT, UNTESTED, Plan, until
from e2e.kube_corridor import kube_corridor
from e2e.small_server import NUMBER, large, small_server
from tests.native.built import needs

WAITING = "warmpick_flow_waiting_requests"
WAITED = "warmpick_flow_wait_seconds_count"
NO_ROOM = "warmpick_flow_no_room_total"
REFUSED = "warmpick_flow_refused_total"
RUNNING = "llm_d_epp_request_running"
OUTCOMES = "warmpick_exchange_outcomes_total"
ERRORS = "llm_d_epp_request_error_total"
SHORT = "x-short"
MESSAGE_TIMEOUT = 0.2
"""Envoy's default; `epp serve` takes it for granted."""
BODY_MODES = {"BUFFERED": 1, "STREAMED": 0}
"""How many wait for a moment: where a body is streamed, the head is all that is decided on."""
SLOW = ("--num-gpu-blocks-override=101", "--speed=0.25")
"""A simulator whose cache holds one prompt of `large`, and that takes a while for its answer."""
SPIKE = 12


@pytest_asyncio.fixture(loop_scope="module")
async def server():
    async with small_server() as made:
        yield made


@pytest.fixture
def plan(server):
    return Plan(others=(server.target,), message_timeout_s=MESSAGE_TIMEOUT)


def ask(gateway, number, **headers):
    """Send a request that fills a server."""
    sent = {NUMBER: str(number), **headers}
    return asyncio.create_task(gateway.post(CHAT, large(number), **sent))


async def comes(server, number):
    """Wait until a request is at the server."""

    async def there():
        return number in server.numbers

    await until(there)


async def waits(gateway, count):
    """Wait until so many requests wait in the picker."""
    await gateway.metric_becomes(count, WAITING)


async def one_waits(gateway, server):
    """Send two requests, of which the second one waits; return both."""
    first = ask(gateway, 1)
    await comes(server, 1)
    second = ask(gateway, 2)
    await waits(gateway, 1)
    return first, second


async def lasts(seconds):
    """Wait for a time to pass."""
    ends = time.monotonic() + seconds

    async def over():
        return time.monotonic() > ends

    await until(over)


async def statuses(*tasks):
    return [answer.status for answer in await asyncio.gather(*tasks)]


async def test_a_request_waits_for_longer_than_the_message_timeout(start, plan, server):
    async with start(plan) as gateway:
        first, second = await one_waits(gateway, server)
        await lasts(3 * MESSAGE_TIMEOUT)
        assert server.numbers == [1]
        server.let_go(1)
        await comes(server, 2)
        server.let_go(2)
        assert await statuses(first, second) == [200, 200]
        await waits(gateway, 0)
        assert await gateway.metric(WAITED) == 1
        assert await gateway.metric(NO_ROOM, axis="memory") == 1
        assert await gateway.metric(REFUSED) == 0


@pytest.mark.parametrize("mode", BODY_MODES)
async def test_where_the_message_timeout_runs_a_request_is_sent_before_it(
    start, plan, server, mode
):
    plan = replace(plan, request_body_mode=mode, response_body_mode=mode)
    async with start(plan) as gateway:
        first = ask(gateway, 1)
        await comes(server, 1)
        second = ask(gateway, 2)
        await comes(server, 2)  # there is no room for it
        assert await gateway.metric(WAITED) == BODY_MODES[mode]
        assert not first.done()
        server.let_go(1, 2)
        assert await statuses(first, second) == [200, 200]


async def test_a_client_that_goes_while_its_request_waits_leaves_nothing(start, plan, server):
    async with start(plan) as gateway:
        first, second = await one_waits(gateway, server)
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await second
        await waits(gateway, 0)
        server.let_go(1)
        assert await statuses(first) == [200]
        await gateway.metric_becomes(0, RUNNING)
        assert server.numbers == [1]


@needs("epp.adapters.extproc.http2.session", "a gateway's own answer to a request that waits")
@pytest.mark.skipif(
    TRANSPORT != "native",
    reason=UNTESTED % ("answers of a gateway's own", "reads nothing while a request waits"),
)
@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED"])
async def test_a_gateways_own_answer_to_a_request_that_waits_passes_at_once(
    start, plan, server, mode
):
    def limit(manager):
        (host,) = manager["route_config"]["virtual_hosts"]
        match = {"prefix": "/", "headers": [{"name": SHORT, "present_match": True}]}
        limit = {"max_stream_duration": {"max_stream_duration": "1s"}}
        host["routes"].insert(0, {"match": match, "route": host["routes"][0]["route"] | limit})

    async with start(replace(plan, response_body_mode=mode)) as gateway:
        await gateway.reconfigure(limit)
        first = ask(gateway, 1)
        await comes(server, 1)
        answer = await ask(gateway, 2, **{SHORT: "1"})
        assert (answer.status, answer.body) == (504, b"downstream duration timeout")
        await waits(gateway, 0)
        server.let_go(1)
        assert await statuses(first) == [200]
        assert server.numbers == [1]
        await gateway.metric_becomes(1, OUTCOMES, outcome="aborted")
        await gateway.metric_becomes(0, RUNNING)
        assert await gateway.metric(ERRORS) == 0


async def test_a_picker_that_is_told_to_stop_lets_requests_wait_and_serves_them(
    start, plan, server
):
    async with start(plan) as gateway:
        first, second = await one_waits(gateway, server)
        gateway.signal(gateway.picker, signal.SIGTERM)
        await gateway.picker.wait_http(gateway.operator_url("/readyz"), DEADLINE, 503)
        server.let_go(1, 2)
        assert await statuses(first, second) == [200, 200]
        assert await gateway.picker.wait_exit(DEADLINE) == 0


async def test_a_request_that_still_waits_when_the_picker_ends_is_told_so(start, plan, server):
    plan = replace(plan, picker_flags=("--drain-timeout=200ms",))
    async with start(plan) as gateway:
        first, second = await one_waits(gateway, server)
        gateway.signal(gateway.picker, signal.SIGTERM)
        answer = await second
        assert (answer.status, answer.headers[REASON]) == (503, "shutting-down")
        assert int(answer.headers["retry-after"]) > 0
        assert "shutting down" in answer.message
        server.let_go(1)
        with contextlib.suppress(Exception):
            await first
        assert await gateway.picker.wait_exit(DEADLINE) == 0
        assert server.numbers == [1]


async def test_a_request_is_sent_at_its_latest_time(start, plan, server):
    plan = replace(plan, picker_flags=("--hold-timeout=500ms",))
    async with start(plan) as gateway:
        first, second = await one_waits(gateway, server)
        await comes(server, 2)
        server.let_go(1, 2)
        assert await statuses(first, second) == [200, 200]


async def test_nothing_waits_where_holding_is_off_and_it_is_counted(start, plan, server):
    async with start(replace(plan, picker_flags=("--hold=off",))) as gateway:
        asked = [ask(gateway, number) for number in range(3)]
        for number in range(3):
            await comes(server, number)
        server.let_go(0, 1, 2)
        assert await statuses(*asked) == [200] * 3
        assert await gateway.metric(NO_ROOM, axis="memory") == 2
        assert await gateway.metric(WAITED) == 0


def slow(number, tokens=40):
    return large(number) | {"max_tokens": tokens}


async def test_a_spike_past_what_servers_hold_is_served_and_none_is_refused(start):
    async with start(Plan(simulators=("a", "b"), server_flags=SLOW)) as gateway:
        asked = [gateway.post(CHAT, slow(number)) for number in range(SPIKE)]
        spike = asyncio.gather(*asked)
        await until(lambda: many_wait(gateway))
        answers = await spike
        assert [answer.status for answer in answers] == [200] * SPIKE
        assert {answer.headers[SERVER] for answer in answers} == {"a", "b"}
        await waits(gateway, 0)
        await gateway.metric_becomes(0, RUNNING)
        assert await gateway.metric(WAITED) >= SPIKE / 2


async def many_wait(gateway):
    return await gateway.metric(WAITING) >= SPIKE / 2


async def test_those_that_wait_for_an_endpoint_that_dies_go_elsewhere(start):
    async with start(Plan(simulators=("a", "b"), server_flags=SLOW)) as gateway:
        asked = [asyncio.create_task(gateway.post(CHAT, slow(number))) for number in range(SPIKE)]
        await until(lambda: many_wait(gateway))
        gateway.signal(gateway.servers["a"], signal.SIGKILL)
        answers = await asyncio.gather(*asked)
        lost = [answer for answer in answers if answer.status != 200]
        assert all(answer.status == 503 for answer in lost)
        # What ran there is lost, and what was sent there until it was known.
        assert len(lost) <= SPIKE / 2
        served = Counter(answer.headers.get(SERVER) for answer in answers)
        assert served["b"] > served["a"]  # which may have ended one before it died
        await waits(gateway, 0)
        await gateway.metric_becomes(0, RUNNING)


async def test_a_negative_priority_waits_behind_the_others(tmp_path):
    plan = Plan(routing="original_dst", server_flags=SLOW)
    async with kube_corridor(plan, tmp_path) as gateway:
        gateway.put_pool()
        gateway.api.put(
            {
                "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
                "kind": "InferenceObjective",
                "metadata": {"name": "batch"},
                "spec": {"priority": -1, "poolRef": {"name": "pool"}},
            }
        )
        await gateway.start_pod("a")
        await gateway.start()
        await gateway.endpoints_become(1)
        ended: list[str] = []

        async def client(name, number, tokens=40, **headers):
            answer = await gateway.post(CHAT, slow(number, tokens), **headers)
            ended.append(name)
            return answer.status

        objective = {"x-gateway-inference-objective": "batch"}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client("first", 0, 300))]
            await gateway.metric_becomes(1, RUNNING)
            tasks += [group.create_task(client("batch", number, **objective)) for number in (1, 2)]
            await gateway.metric_becomes(2, WAITING, priority="-1")
            tasks.append(group.create_task(client("chat", 3)))
        assert [task.result() for task in tasks] == [200] * 4
        assert ended == ["first", "chat", "batch", "batch"]
