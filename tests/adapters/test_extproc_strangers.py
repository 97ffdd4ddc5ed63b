"""Either ext_proc port against peers that never become a client, or are one no longer."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.transports import server_class
from epp.adapters.tls import certificate
from epp.protocol.extproc.record import Outcome
from tests.adapters.ext_proc_peer import DEADLINE, Peer, body, head, kind, serving
from tests.adapters.raw_peer import connected
from tests.native import wire
from tests.native.built import needs_native
from tests.tasks import until

SERVER = """
import asyncio, sys, time
import uvloop
from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.extproc.transports import server_class
from epp.adapters.tls import certificate
from tests.adapters.ext_proc_peer import Director

async def serve():
    settings = ExtProcSettings(address="127.0.0.1", port=0, tls=certificate(None))
    server = server_class(sys.argv[1])(Director().exchange, time.monotonic, settings)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()

uvloop.run(serve())
"""
HANDSHAKES = 2_000
"""With grpcio's dynamic credentials, the process was gone after 100 to 800 of them."""


def abandon(port, count):
    """Begin handshakes and hang up: amid a ClientHello, after it, at its answer, by a reset."""
    hello = wire.client_hello()
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port), DEADLINE) as peer:
            peer.sendall(hello[:40] if number % 4 == 0 else hello)
            if number % 4 == 1:
                peer.recv(10)
            elif number % 4 == 2:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + bytes(7))


async def test_handshakes_that_are_broken_off(transport):
    """They end nothing but themselves."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, transport.transport), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        attacks = (asyncio.to_thread(abandon, port, HANDSHAKES // 4) for _ in range(4))
        await asyncio.gather(*attacks)
        chain = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        trusting = grpc.ssl_channel_credentials(root_certificates=chain.encode())
        async with grpc.aio.secure_channel(f"localhost:{port}", trusting) as channel:
            assert kind(await Peer(channel).ask(head(), body())) == "request_headers"
        assert process.returncode is None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


HELLO = wire.client_hello()
PARTS = ["nothing", "half", "all"]
QUICK = PeerLimits(handshake_seconds=0.3)


@pytest.mark.parametrize("said", [b"", wire.PREFACE[:9], wire.PREFACE], ids=PARTS)
async def test_who_sends_no_settings_is_disconnected(serve, director, said):
    async with serve(director, limits=QUICK) as (server, channel):
        await disconnected(server.port, said)
        assert kind(await Peer(channel).ask(head(), body())) == "request_headers"


@needs_native  # grpcio does not say it
async def test_who_has_gone_is_not_said_to_send_no_settings(director):
    made = serving(server_class("native"), director, limits=QUICK)
    with capture_logs() as logs:
        async with made as (server, _):
            async with connected(server, wire.PREFACE):
                pass
            async with connected(server, wire.PREFACE) as peer:
                own = peer._writer.get_extra_info("sockname")[1]
                await peer.lost()
    assert [line["peer"] for line in logs] == [f"127.0.0.1:{own}"]


@pytest.mark.parametrize("said", [b"", HELLO[:40], HELLO], ids=PARTS)
async def test_who_does_not_finish_a_handshake_is_disconnected(serve, director, said):
    pair = certificate(None)
    async with serve(director, limits=QUICK, tls=pair) as (server, _):
        await disconnected(server.port, said)
        trusting = grpc.ssl_channel_credentials(root_certificates=pair[1])
        async with grpc.aio.secure_channel(f"localhost:{server.port}", trusting) as secure:
            assert kind(await Peer(secure).ask(head(), body())) == "request_headers"


async def test_a_silent_peer_is_pinged_and_disconnected(serve, director):
    # It says all of it well before the ping.
    quick = PeerLimits(ping_after=0.5, ping_timeout=0.02)
    async with serve(director, limits=quick) as (server, _):
        async with connected(server, wire.greeting() + wire.acknowledged()) as peer:
            peer.begin(1, head(), body())
            await peer.replied(1, 2)
            await peer.read_until(lambda: peer.asked)
            await peer.lost()
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]


async def disconnected(port, said):
    """Say this, and nothing else, until the server has hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(DEADLINE):
        with suppress(ConnectionError):
            await reader.read()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


CHOICE = """
from epp.adapters.extproc.transports import server_class

print(server_class("native").transport)
"""


def test_a_fallback_is_said_with_its_reason_and_remedy():
    made = subprocess.run(
        (sys.executable, "-c", CHOICE),
        env=os.environ | {"WARMPICK_NATIVE": "off"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert made.stdout == "grpcio\n"
    warning = made.stderr
    for part in ("transport.fallback", "WARMPICK_NATIVE", "make native", "--transport grpcio"):
        assert part in warning
