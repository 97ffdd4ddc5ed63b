"""gRPC health on the ext_proc port, asked by grpcio's own client of it."""

from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.transports import server_class
from epp.protocol.health import ServingStatus
from tests.adapters.ext_proc_peer import DEADLINE, Peer, body, head, kind, serving
from tests.adapters.raw_peer import greeted
from tests.native import wire
from tests.native.built import needs_native

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


@asynccontextmanager
async def checked(transport, director, *, offered=True):
    services = HealthServices()
    async with serving(transport, director, health=services if offered else None) as (_, channel):
        yield services, channel


def asked(channel, service):
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE)


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code()


@pytest.mark.parametrize("ready", [True, False])
async def test_health_is_served_beside_ext_proc(transport, director, ready):
    state = ServingStatus.SERVING if ready else ServingStatus.NOT_SERVING
    async with checked(transport, director) as (services, channel):
        services.set_ready(ready=ready)
        for service in ("", "readiness", "inference-extension"):
            assert (await asked(channel, service)).status == state.value
        assert (await asked(channel, "liveness")).status == ServingStatus.SERVING.value
        assert kind(await Peer(channel).ask(head(), body())) == "request_headers"


async def test_an_unknown_service_is_not_found(transport, director):
    async with checked(transport, director) as (services, channel):
        services.set_ready(ready=True)
        code = await refusal(asked(channel, "nonsense"))
        assert code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("method", [CHECK, WATCH])
async def test_bytes_that_are_no_request(transport, director, method):
    async with checked(transport, director) as (_, channel):
        call = channel.stream_stream(method)(timeout=DEADLINE)
        await call.write(b"\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@needs_native  # grpcio waits for the deadline
@pytest.mark.parametrize("method", [CHECK, WATCH])
async def test_a_call_without_a_request(director, method):
    async with checked(server_class("native"), director) as (_, channel):
        call = channel.stream_stream(method)(iter(()), timeout=DEADLINE)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@needs_native  # grpcio passes over further requests
async def test_a_watch_goes_by_its_first_request(director):
    services = HealthServices()
    made = serving(server_class("native"), director, health=services)
    async with made as (server, _), greeted(server) as peer:
        for stream, first in ((1, b"\xff"), (3, b"")):
            said = wire.message(first) + wire.message(b"")
            peer.say(wire.headers(stream, wire.request(path=WATCH.encode())))
            peer.say(wire.data(stream, said))
        await peer.read_until(lambda: 1 in peer.ended and peer.came(3))
        assert peer.came(3) == len(wire.message(b"\x08\x03"))
        assert len(services._watchers) == 1


@needs_native  # grpcio passes over further requests
async def test_a_watch_that_is_ended_for_a_long_request_is_forgotten(director):
    async with checked(server_class("native"), director) as (services, channel):
        watch = channel.stream_stream(WATCH)(timeout=DEADLINE)
        await watch.write(b"")
        await watch.read()
        await watch.write(bytes(3 << 20))
        assert await watch.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not services._watchers


async def test_health_is_not_served_beside_ext_proc_by_default(transport, director):
    async with checked(transport, director, offered=False) as (_, channel):
        assert await refusal(asked(channel, "")) is grpc.StatusCode.UNIMPLEMENTED
