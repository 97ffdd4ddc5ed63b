"""What an operator does: health, readiness, endpoints that come and go, and the end."""

import asyncio
import signal

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from e2e.corridor import CHAT, DEADLINE, SERVER, TRANSPORT, Plan, chat, until
from e2e.echo import HELD, PIECES, event

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
SERVICES = ("", "readiness", "inference-extension", EXT_PROC)
WORKERS = 4
HELD_STREAM = {PIECES: "3", HELD: "1"}


async def health(port, service=""):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=DEADLINE)
        return answer.status


async def status_of(gateway, path):
    async with gateway.client.get(gateway.operator_url(path)) as response:
        return response.status


async def exits(gateway):
    return await gateway.picker.wait_exit(DEADLINE)


async def test_health_services(start, echo):
    plan = Plan(others=(echo.target,), picker_flags=("--health-checking",))
    async with start(plan) as gateway:
        for service in (*SERVICES, "liveness"):
            assert await health(gateway.health_port, service) == SERVING
            assert await health(gateway.grpc_port, service) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health(gateway.health_port, "nonsense")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


class Traffic:
    """Clients that never stop asking, and the servers that answered them, by turn."""

    def __init__(self, gateway):
        self.begun = 0
        self.served = {}
        self._gateway = gateway
        self._done = False

    async def client(self):
        while not self._done:
            turn, self.begun = self.begun, self.begun + 1
            answer = await self._gateway.post(CHAT, chat(f"turn {turn} " * 50))
            assert answer.status == 200
            self.served[turn] = answer.headers[SERVER]

    def since(self, first):
        """Give the servers that answered this turn or a later one."""
        return {server for turn, server in self.served.items() if turn >= first}

    async def reaches(self, name):
        """Wait for a server's answer to what is asked from here on."""
        first = self.begun

        async def answered():
            return name in self.since(first)

        await until(answered)

    async def settled(self):
        """Wait until all turns that were begun by now are answered; give how many those are."""
        begun = self.begun

        async def answered():
            return self.served.keys() >= set(range(begun))

        await until(answered)
        return begun

    def stop(self):
        self._done = True


async def test_endpoints_come_and_go_under_traffic_and_no_request_fails(start):
    plan = Plan(simulators=("a",), routing="original_dst", server_flags=("--speed", "4"))
    async with start(plan) as gateway, asyncio.TaskGroup() as group:
        traffic = Traffic(gateway)
        for _ in range(WORKERS):
            group.create_task(traffic.client())
        await traffic.reaches("a")
        await gateway.start_server("b")
        gateway.write_endpoints("a", "b")
        await traffic.reaches("b")
        gateway.write_endpoints("b")
        await gateway.metric_becomes(1, "llm_d_epp_ready_endpoints")
        noticed = await traffic.settled()
        await gateway.servers["a"].stop()
        gateway.endpoints_path.write_text("endpoints: [{name: oops")  # what was good stays
        await until(lambda: logged(gateway, "endpoints_file.rejected"))
        await traffic.reaches("b")
        traffic.stop()
    assert traffic.since(noticed) == {"b"}


async def logged(gateway, event_name):
    return event_name in {line["event"] for line in gateway.log_lines()}


@pytest.mark.parametrize("tls", [False, True])
async def test_a_picker_that_is_told_to_stop_serves_what_it_has(start, echo, tls):
    async with start(Plan(others=(echo.target,), tls=tls)) as gateway:
        echo.release.clear()
        async with gateway.stream(CHAT, chat("hello"), **HELD_STREAM) as response:
            first = await response.content.readexactly(len(event(0)))
            gateway.signal(gateway.picker, signal.SIGTERM)
            await gateway.picker.wait_http(gateway.operator_url("/readyz"), DEADLINE, 503)
            assert await status_of(gateway, "/healthz") == 200
            for service in SERVICES:
                assert await health(gateway.health_port, service) == NOT_SERVING
            assert await health(gateway.health_port, "liveness") == SERVING
            # Gateways learn late that a picker leaves: what comes meanwhile is served.
            assert (await gateway.post(CHAT, chat("late"))).status == 200
            echo.release.set()
            assert first + await response.read() == b"".join(map(event, range(3)))
        assert await exits(gateway) == 0
        events = [line["event"] for line in gateway.log_lines()]
        assert [name for name in events if name in {"serving", "draining", "stopped"}] == [
            "serving",
            "draining",
            "stopped",
        ]
        await gateway.start_picker()
        assert (await gateway.post(CHAT, chat("next"))).status == 200


@pytest.mark.skipif(TRANSPORT == "grpcio", reason="it says goodbye only as it closes its port")
async def test_gateways_are_told_at_once_that_a_picker_leaves(start, echo):
    """Else they go on with it until it is gone, and what they send then fails."""
    async with start(Plan(others=(echo.target,))) as gateway:

        async def told():
            # "Total connections closed via notification of HTTP/1.1 connection close or HTTP/2
            # GOAWAY" (Envoy, cluster statistics).
            url = f"http://127.0.0.1:{gateway.admin_port}/stats?filter=upstream_cx_close_notify"
            async with gateway.client.get(url) as response:
                figures = [line.partition(": ") for line in (await response.text()).splitlines()]
            return any(int(value) for _, _, value in figures)

        echo.release.clear()
        async with gateway.stream(CHAT, chat("hello"), **HELD_STREAM) as response:
            first = await response.content.readexactly(len(event(0)))
            assert not await told()
            gateway.signal(gateway.picker, signal.SIGTERM)
            await until(told)
            echo.release.set()
            assert first + await response.read() == b"".join(map(event, range(3)))
        assert await exits(gateway) == 0


async def test_the_drain_is_bounded(start, echo):
    plan = Plan(others=(echo.target,), picker_flags=("--drain-timeout=200ms",))
    async with start(plan) as gateway:
        echo.release.clear()
        async with gateway.stream(CHAT, chat("hello"), **HELD_STREAM) as response:
            await response.content.readexactly(len(event(0)))
            gateway.signal(gateway.picker, signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        echo.release.set()
        assert await exits(gateway) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_picker_stops_at_once_and_well(start, echo, number):
    async with start(Plan(others=(echo.target,))) as gateway:
        gateway.signal(gateway.picker, number)
        assert await exits(gateway) == 0


async def test_a_second_signal_ends_the_wait(start, echo):
    async with start(Plan(others=(echo.target,))) as gateway:
        echo.release.clear()
        async with gateway.stream(CHAT, chat("hello"), **HELD_STREAM) as response:
            await response.content.readexactly(len(event(0)))
            gateway.signal(gateway.picker, signal.SIGTERM)
            await gateway.picker.wait_http(gateway.operator_url("/readyz"), DEADLINE, 503)
            gateway.signal(gateway.picker, signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        echo.release.set()
        assert await exits(gateway) == 128 + signal.SIGTERM


async def test_a_port_that_is_taken_is_said(start, echo):
    async with start(Plan(others=(echo.target,))) as gateway:
        await gateway.spawn_picker()
        assert await exits(gateway) == 2
        assert "cannot listen" in gateway.picker.log_path.read_text()
