"""The native transport without a port: it serves what another process has accepted."""

import asyncio
import contextlib
import socket

import grpc
import grpc.aio

from epp.adapters.tls import certificate
from tests.adapters.ext_proc_peer import (
    DEADLINE,
    TARGET,
    Director,
    Peer,
    body,
    destination,
    head,
    kind,
    response_body,
    response_head,
    serving,
)
from tests.native.built import needs_native
from tests.tasks import until

pytestmark = needs_native


@contextlib.asynccontextmanager
async def passing(director=None, **settings):
    """A server, and the port of who accepts for it."""
    from epp.adapters.extproc.native import NativeServer  # noqa: PLC0415 (only if it is built)

    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        made = serving(NativeServer, director or Director(), passed=True, **settings)
        async with made as (server, _):
            loop.add_reader(listening, lambda: server.take(listening.accept()[0]))
            try:
                yield server, listening.getsockname()[1]
            finally:
                loop.remove_reader(listening)


def channel(port):
    separate = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=separate)


async def test_a_connection_that_is_passed_is_served():
    async with passing() as (server, port), channel(port) as one, channel(port) as other:
        for each in (one, other):
            assert destination(await Peer(each).ask(head(), body()), "request_headers") == TARGET
        assert server.port == 0
        assert server.open_connections == 2
        await one.close()
        await until(lambda: server.open_connections == 1)


async def test_with_tls_too_and_without_it_nothing_is_left():
    pair = certificate(None)
    async with passing(tls=pair) as (server, port):
        trusting = grpc.ssl_channel_credentials(root_certificates=pair[1])
        async with grpc.aio.secure_channel(f"localhost:{port}", trusting) as secure:
            assert destination(await Peer(secure).ask(head(), body()), "request_headers") == TARGET
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(DEADLINE):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
            await until(lambda: server.open_connections == 1)


async def test_the_newest_connections_are_given_up_and_their_streams_end_in_order():
    async with passing() as (server, port), channel(port) as old, channel(port) as new:
        assert await Peer(old).ask(head(), body())
        peer = Peer(new)
        assert await peer.ask(head(), body())
        server.shed(1)
        assert server.open_connections == 1
        assert kind(await peer.receive()) == "request_body"
        await peer.send(response_head(), response_body())
        assert len(await peer.rest()) == 2
        # Its peer connects anew, and the other one never noticed.
        assert await Peer(new).ask(head(), body())
        assert await Peer(old).ask(head(), body())
        await until(lambda: server.open_connections == 2)


async def test_what_comes_before_it_starts_or_after_it_stops_is_closed():
    async with passing() as (server, port):
        await server.stop(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(DEADLINE):
            assert await reader.read() == b""
        writer.close()
        assert server.open_connections == 0
