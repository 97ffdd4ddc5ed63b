"""Behind Envoy Gateway: the picker killed or hung, model servers gone, and what retries do.

`docs/gateway.md` has it as tables.
"""

import asyncio
import signal

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from e2e.corridor import CHAT, DEADLINE, DECISION, REASON, SERVER, chat, quiet_port, until
from e2e.echo import HELD, PIECES, event
from e2e.envoy_gateway_corridor import (
    BUFFER_BYTES,
    PICKER_CLUSTER,
    ROUTE_CLUSTER,
    PolicyPlan,
    envoy_gateway_corridor,
)
from e2e.serving import serving
from e2e.test_envoy_gateway import WAYS, becomes, planned

RUNNING = "llm_d_epp_request_running"
READY = "llm_d_epp_ready_endpoints"
OUTCOMES = "warmpick_exchange_outcomes_total"
REFUSED = "upstream connect error or disconnect/reset before headers. {}: remote connection failure"
STREAM = b"".join(map(event, range(3)))
KNOWN = [way for way in WAYS if WAYS[way][2] is not None]
"""Those of which a test can tell whether the picker watches an answer."""
LEFT = "streamed, first chunk"
"""Where the picker has left an answer that has begun, which goes on without it."""
EITHER = (LEFT, "full duplex")
UNPINGED = {"messageTimeout": "2s", "backendSettings": {"http2": {"connectionKeepalive": None}}}
SOON_IDLE = {"timeout": {"http": {"streamIdleTimeout": "2s"}}}
PINGS = {"http2": {"connectionKeepalive": {"interval": "3s", "timeout": "2s"}}}
# Laid over the BackendTrafficPolicy; Envoy then tries so often at most.
ONCE: dict[str, object] = {}
THRICE: dict[str, object] = {"retry": {}}


class Begun:
    """A streamed answer that has begun and does not end before the echo is released."""

    def __init__(self, gateway, echo):
        echo.release.clear()
        headers = {PIECES: "3", HELD: "1"}
        self.request = gateway.stream(CHAT, chat("a stream", stream=True), **headers)

    async def __aenter__(self):
        self.response = await self.request.__aenter__()
        assert self.response.status == 200
        self.first = await self.response.content.readexactly(len(event(0)))
        return self

    async def __aexit__(self, *error):
        await self.request.__aexit__(*error)

    async def comes_to(self, way):
        """Check that it comes whole where the picker had left it, and breaks off elsewhere."""
        if way == LEFT:
            assert self.first + await self.response.read() == STREAM
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await self.response.read()


async def asked(gateway):
    """Ask for something with a body and for something without one."""
    return await asyncio.gather(gateway.post(CHAT, chat("hello")), gateway.get("/v1/models"))


@pytest.mark.parametrize("way", KNOWN)
async def test_a_picker_that_is_killed(echo, tmp_path, way):
    plan = planned(way, others=(echo.target,))
    async with envoy_gateway_corridor(plan, tmp_path) as gateway, Begun(gateway, echo) as stream:
        await becomes(gateway, WAYS[way][2], PICKER_CLUSTER)
        waiting = asyncio.create_task(gateway.post(CHAT, chat("hello"), **{HELD: "1"}))
        await becomes(gateway, 2, ROUTE_CLUSTER)
        gateway.signal(gateway.picker, signal.SIGKILL)
        assert await gateway.picker.wait_exit(DEADLINE) == -signal.SIGKILL
        # What has been routed and not been answered,
        answer = await waiting
        assert (answer.status, answer.body) == (503, b"")
        # ... what has begun,
        echo.release.set()
        await stream.comes_to(way)
        # ... what comes while there is no picker,
        for answer in await asked(gateway):
            assert (answer.status, answer.body, REASON in answer.headers) == (503, b"", False)
        # ... and when there is one again.
        await gateway.start_picker()
        for answer in await asked(gateway):
            assert (answer.status, DECISION in answer.headers) == (200, True)


@pytest.mark.parametrize("way", KNOWN)
async def test_a_picker_that_hangs_unseen(echo, tmp_path, way):
    plan = planned(way, UNPINGED, others=(echo.target,), traffic=SOON_IDLE)
    async with envoy_gateway_corridor(plan, tmp_path) as gateway, Begun(gateway, echo) as stream:
        await becomes(gateway, WAYS[way][2], PICKER_CLUSTER)
        gateway.signal(gateway.picker, signal.SIGSTOP)
        echo.release.set()
        await stream.comes_to(way)
        for answer in await asked(gateway):
            assert (answer.status, SERVER in answer.headers) == (504, False)
        gateway.signal(gateway.picker, signal.SIGCONT)
        assert (await gateway.post(CHAT, chat("hello"))).status == 200
        await gateway.metric_becomes(0, RUNNING)


@pytest.mark.parametrize("way", EITHER)
async def test_pings_find_out_a_picker_that_hangs(echo, tmp_path, way):
    """Without them it takes the idle timeout of a stream, which is minutes."""
    plan = planned(way, {"backendSettings": PINGS}, others=(echo.target,))
    async with envoy_gateway_corridor(plan, tmp_path) as gateway, Begun(gateway, echo) as stream:
        await becomes(gateway, WAYS[way][2], PICKER_CLUSTER)
        gateway.signal(gateway.picker, signal.SIGSTOP)
        for answer in await asked(gateway):
            assert (answer.status, answer.body) == (503, b"")
        echo.release.set()
        await stream.comes_to(way)
        gateway.signal(gateway.picker, signal.SIGCONT)
        assert (await gateway.post(CHAT, chat("hello"))).status == 200


@pytest.mark.parametrize("way", EITHER)
async def test_a_model_server_that_is_killed_is_left_alone(tmp_path, way):
    plan = planned(way, simulators=("a", "b"))
    async with envoy_gateway_corridor(plan, tmp_path) as gateway:
        body = chat("hello", stream=True, max_tokens=100_000)
        async with gateway.stream(CHAT, body) as response:
            await response.content.readany()
            await becomes(gateway, WAYS[way][2], PICKER_CLUSTER)
            await gateway.kill_server_of(response)


async def test_an_endpoint_that_leaves_the_pool_finishes_what_it_has_begun(echo, tmp_path):
    plan = planned(LEFT, others=(echo.target,), simulators=("a",))
    async with envoy_gateway_corridor(plan, tmp_path) as gateway:
        gateway.write_endpoints("other-0")
        await gateway.metric_becomes(1, READY)
        async with Begun(gateway, echo) as stream:
            gateway.write_endpoints("a")

            async def a_answers():
                return (await gateway.post(CHAT, chat("hello"))).headers.get(SERVER) == "a"

            await until(a_answers)
            echo.release.set()
            assert stream.first + await stream.response.read() == STREAM


@pytest_asyncio.fixture(loop_scope="module")
async def busy():
    """A model server that takes no requests; gives its address and what it was asked."""
    seen = []

    async def refuse(http):
        if http.path == "/metrics":
            return web.Response(text="# nothing to tell\n")
        seen.append(await http.read())
        return web.Response(status=503, text="busy")

    async with serving(refuse) as target:
        yield target, seen


# BackendTrafficPolicy, characters of the prompt; how often the pod is asked that was picked
ATTEMPTS = {
    "none is configured": (ONCE, 10, 1),
    "two": (THRICE, 10, 3),
    "none of what Envoy cannot hold": (THRICE, 2 * BUFFER_BYTES, 1),
}


@pytest.mark.parametrize("retries", ATTEMPTS)
async def test_retries_stay_where_the_picker_sent_the_request(busy, echo, tmp_path, retries):
    target, seen = busy
    traffic, size, attempts = ATTEMPTS[retries]
    plan = planned(LEFT, others=(target, echo.target), traffic=traffic)
    async with envoy_gateway_corridor(plan, tmp_path) as gateway:
        gateway.write_endpoints("other-0")
        await gateway.metric_becomes(1, READY)
        echoed = len(echo.seen)
        answer = await gateway.post(CHAT, chat("x" * size))
        assert (answer.status, answer.body) == (503, b"busy")
        assert (len(seen), len(set(seen))) == (attempts, 1)
        assert await gateway.stat(ROUTE_CLUSTER, "upstream_rq_retry") == attempts - 1
        assert len(echo.seen) == echoed


@pytest.mark.parametrize(("traffic", "attempts"), [(ONCE, 1), (THRICE, 3)])
async def test_nobody_listens_where_the_picker_sent_the_request(tmp_path, traffic, attempts):
    dead = f"127.0.0.1:{quiet_port()}"
    plan = PolicyPlan(others=(dead,), simulators=("a",), traffic=traffic)
    async with envoy_gateway_corridor(plan, tmp_path) as gateway:
        await gateway.metric_becomes(1, READY)  # beside a live one it is left alone
        answers = await asyncio.gather(*(gateway.post(CHAT, chat(f"{n}")) for n in range(12)))
        assert [(each.status, each.headers[SERVER]) for each in answers] == [(200, "a")] * 12
        gateway.write_endpoints("other-0")
        await gateway.metric_becomes(0, READY)
        answer = await gateway.post(CHAT, chat("hello"))
        reason = "retried and the latest reset reason" if traffic == THRICE else "reset reason"
        assert (answer.status, answer.body.decode()) == (503, REFUSED.format(reason))
        assert await gateway.stat(ROUTE_CLUSTER, "upstream_cx_connect_fail") == attempts
