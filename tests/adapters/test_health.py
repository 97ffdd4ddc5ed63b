"""The health services against grpcio's own client of them."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.adapters.health import Health, HealthServices, serve_health

DEADLINE = 10
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
READY = ("", "readiness", "inference-extension", EXT_PROC)
LIVE = "liveness"


@asynccontextmanager
async def asking(services):
    """A client of a server with these services."""
    server, port = await serve_health(services, "127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield health_pb2_grpc.HealthStub(channel)
    await server.stop(0)


def about(name):
    return health_pb2.HealthCheckRequest(service=name)


async def check(stub, name):
    return (await stub.Check(about(name), timeout=DEADLINE)).status


@pytest.mark.parametrize("state", Health)
async def test_each_service_says_how_it_is(state):
    services = HealthServices()
    await services.tell(state)
    async with asking(services) as stub:
        for name in READY:
            assert await check(stub, name) == state.value, name
        assert await check(stub, LIVE) == SERVING


async def test_every_service_follows_a_change():
    services = HealthServices()
    async with asking(services) as stub:
        for state, ready in (
            (Health.SERVING, SERVING),
            (Health.NOT_SERVING, NOT_SERVING),
            (Health.SERVING, SERVING),
        ):
            await services.tell(state)
            assert {name: await check(stub, name) for name in READY} == dict.fromkeys(READY, ready)
            assert await check(stub, LIVE) == SERVING


async def test_a_watch_hears_of_a_change():
    services = HealthServices()
    await services.tell(Health.SERVING)
    async with asking(services) as stub, asyncio.timeout(DEADLINE):
        watch = stub.Watch(about("readiness"))
        assert (await watch.read()).status == SERVING
        await services.tell(Health.NOT_SERVING)
        assert (await watch.read()).status == NOT_SERVING


async def test_a_service_that_does_not_exist():
    services = HealthServices()
    await services.tell(Health.SERVING)
    async with asking(services) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(stub, "nonsense")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_same_services_on_another_server_too():
    services = HealthServices()
    other = grpc.aio.server()
    services.attach(other)
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    await services.tell(Health.SERVING)
    async with asking(services) as stub, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for each in (stub, health_pb2_grpc.HealthStub(channel)):
            assert await check(each, EXT_PROC) == SERVING
    await other.stop(0)


async def test_a_taken_port():
    server, port = await serve_health(HealthServices(), "127.0.0.1:0")
    with pytest.raises(RuntimeError):
        await serve_health(HealthServices(), f"127.0.0.1:{port}")
    await server.stop(0)
