"""The health services, on each server that offers them, against grpcio's own client of them."""

import asyncio
import struct
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import example, given
from hypothesis import strategies as st

from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.transports import health_server
from epp.protocol import health
from tests.adapters.raw_peer import connected
from tests.native import wire
from tests.native.built import needs_native
from tests.native.wire import Kind

DEADLINE = 10
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
READY = ("", "readiness", "inference-extension", EXT_PROC)
LIVE = "liveness"
STATES = {True: SERVING, False: NOT_SERVING}


@pytest.fixture(params=["grpcio", pytest.param("native", marks=needs_native)])
def asking(request):
    """Make a client of a server with these services."""

    @asynccontextmanager
    async def made(services):
        async with (
            serving(request.param, services) as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            yield health_pb2_grpc.HealthStub(channel)

    return made


@asynccontextmanager
async def serving(transport, services):
    """Start a server; it is stopped on the way out."""
    server = health_server(transport, services)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


def about(name):
    return health_pb2.HealthCheckRequest(service=name)


async def check(stub, name):
    return (await stub.Check(about(name), timeout=DEADLINE)).status


@pytest.mark.parametrize(("ready", "status"), STATES.items())
async def test_each_service_reports_its_status(asking, ready, status):
    services = HealthServices()
    services.set_ready(ready=ready)
    async with asking(services) as stub:
        for name in READY:
            assert await check(stub, name) == status, name
        assert await check(stub, LIVE) == SERVING
        listed = await stub.List(health_pb2.HealthListRequest(), timeout=DEADLINE)
    found = {name: answer.status for name, answer in listed.statuses.items()}
    assert found == dict.fromkeys(READY, status) | {LIVE: SERVING}


async def test_every_service_follows_a_change(asking):
    services = HealthServices()
    async with asking(services) as stub:
        for ready in (True, False, True):
            services.set_ready(ready=ready)
            expected = dict.fromkeys(READY, STATES[ready])
            assert {name: await check(stub, name) for name in READY} == expected
            assert await check(stub, LIVE) == SERVING


async def test_a_watch_is_sent_every_change_and_nothing_else(asking):
    services = HealthServices()
    async with asking(services) as stub, asyncio.timeout(DEADLINE):
        ready, live = stub.Watch(about("readiness")), stub.Watch(about(LIVE))
        assert (await ready.read()).status == SERVICE_UNKNOWN
        assert (await live.read()).status == SERVICE_UNKNOWN
        for is_ready in (True, False, False, True):
            services.set_ready(ready=is_ready)
        heard = [(await ready.read()).status for _ in range(3)]
        assert heard == [SERVING, NOT_SERVING, SERVING]
        assert (await live.read()).status == SERVING


async def test_an_unknown_service_is_not_found(asking):
    services = HealthServices()
    services.set_ready(ready=True)
    async with asking(services) as stub, asyncio.timeout(DEADLINE):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(stub, "nonsense")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(about("nonsense"))
        assert (await watch.read()).status == SERVICE_UNKNOWN
        watch.cancel()


async def test_a_watch_that_ended_is_removed(asking):
    services = Observed()
    async with asking(services) as stub, asyncio.timeout(DEADLINE):
        watch = stub.Watch(about(""))
        await watch.read()
        watch.cancel()
        await services.left.wait()
        services.set_ready(ready=True)
        assert await check(stub, "") == SERVING


class Observed(HealthServices):
    """Services that say when somebody has stopped watching."""

    def __init__(self):
        super().__init__()
        self.left = asyncio.Event()

    def unwatch(self, send):
        super().unwatch(send)
        self.left.set()


async def test_stop_does_not_wait_for_watches(asking):
    async with asyncio.timeout(DEADLINE):
        async with asking(HealthServices()) as stub:
            watch = stub.Watch(about(""))
            await watch.read()
        assert await watch.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("transport", ["grpcio", pytest.param("native", marks=needs_native)])
async def test_a_port_in_use_is_an_error(transport):
    other = health_server(transport, HealthServices())
    async with serving(transport, HealthServices()) as server:
        with pytest.raises((OSError, RuntimeError)):
            await other.start("127.0.0.1", server.port)


@pytest.mark.parametrize("transport", ["grpcio", pytest.param("native", marks=needs_native)])
async def test_a_connection_has_few_calls_at_a_time(transport):
    served = serving(transport, HealthServices())
    async with served as server, connected(server, wire.greeting()) as peer:
        await peer.heard(Kind.SETTINGS)
    settings = dict(struct.iter_unpack(">HI", peer.seen(Kind.SETTINGS)[0]))  # then it acknowledges
    assert settings[3] == 16, "the most streams (RFC 9113 §6.5.2)"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_requests_are_read_as_protobuf_reads_them(service):
    assert health.service_of(about(service).SerializeToString()) == service


@example(b"\x80\x80\x80\x80\x10\x00")  # a field number of 30 bits
@example(b"\x90\x80\x80\x80\x80\x00\x00")  # a tag of 6 bytes
@example(b"\x12\x80\x80\x80\x80\x80\x00")  # a length of 6 bytes
@example(b"\x10" + b"\x80" * 10 + b"\x00")  # a number of 11 bytes
@example(b"\x0a\x01\xff\x0a\x00")  # a name that is not UTF-8, and another one
@given(st.binary(max_size=30))
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused(data):
    try:
        service = health.service_of(data)
    except ValueError:
        return
    assert health_pb2.HealthCheckRequest.FromString(data).service == service


@pytest.mark.parametrize(
    "data",
    [b"\x0a\x05abc", b"\x0a", b"\x80", b"\xff" * 12, b"\x0b\x0c", b"\x0a\x01\xff", b"\x02\x00"],
)
def test_a_malformed_request_is_invalid_argument(data):
    with pytest.raises(ValueError, match=r"message|field|wire|decode"):
        health.service_of(data)


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(b"\x10" + b"\xff" * 9 + b"\x01", id="-1"),
        pytest.param(b"\x19" + b"x" * 8, id="64 bits"),
        pytest.param(b"\x25" + b"x" * 4, id="32 bits"),
        pytest.param(b"\x2a\xc8\x01" + b"\xff" * 200, id="long"),
        pytest.param(b"\xf8\xff\xff\xff\x0f\x00", id="the last number of a field"),
        pytest.param(b"\x08\x05" + b"\x0d" + b"x" * 4, id="another type"),
    ],
)
def test_unknown_fields_are_skipped(later):
    known = about("liveness").SerializeToString()
    assert health.service_of(later + known + later) == "liveness"
