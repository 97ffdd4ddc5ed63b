"""The ext_proc server: its certificate, its port, and how it stops."""

import asyncio
import ssl
import time
from contextlib import ExitStack

import grpc
import grpc.aio
import pytest

from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.tls import certificate
from epp.protocol.extproc.record import Outcome
from tests.adapters.ext_proc_peer import (
    DEADLINE,
    METHOD,
    TARGET,
    Peer,
    body,
    destination,
    head,
    kind,
    response_body,
    response_head,
)
from tests.adapters.self_signed import KEYS, self_signed
from tests.loopbacks import loopbacks
from tests.tasks import until

TO_LOCALHOST = ("grpc.ssl_target_name_override", "localhost")


async def _handshake(port, most, ciphers):
    """Connect with at most this version; give the suite."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = most
    context.set_ciphers(ciphers)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    suite = writer.get_extra_info("cipher")[0]
    writer.transport.abort()
    return suite


class TestServer:
    async def test_tls_with_a_self_signed_certificate(self, serve, director):
        pair = certificate(None)
        async with serve(director, tls=pair) as (server, plain):
            trusting = grpc.ssl_channel_credentials(root_certificates=pair[1])
            where = f"localhost:{server.port}"
            async with grpc.aio.secure_channel(where, trusting) as channel:
                reply = await Peer(channel).ask(head(), body())
                assert destination(reply, "request_headers") == TARGET
            assert await Peer(plain).call.code() is grpc.StatusCode.UNAVAILABLE

    async def test_more_streams_at_once_than_the_loop_can_take(self, served):
        """The loop is held while they come: gRPC's core ends those beyond 3,000 by default."""
        server, _ = served
        request = head(end=True).SerializeToString()
        separate = (("grpc.use_local_subchannel_pool", 1),)
        with ExitStack() as channels:
            opened: list[grpc.UnaryStreamMultiCallable[bytes, bytes]] = [
                channels.enter_context(
                    grpc.insecure_channel(f"127.0.0.1:{server.port}", separate)
                ).unary_stream(METHOD)
                for _ in range(4)
            ]
            calls = [ask(request, timeout=60) for ask in opened for _ in range(900)]
            replies = await asyncio.to_thread(lambda: [next(call) for call in calls])
            for call in calls:
                call.cancel()
        assert len(replies) == 3_600

    async def test_no_more_streams_than_there_is_room_for(self, serve, director):
        async with serve(director, limits=PeerLimits(max_open_streams=2)) as (server, channel):
            peers = [Peer(channel) for _ in range(2)]
            for peer in peers:
                assert await peer.ask(head(), body())
            assert await Peer(channel).call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            peers[0].call.cancel()
            await until(lambda: server.streams == 1)
            assert await Peer(channel).ask(head(), body())

    async def test_versions_and_suites_of_tls(self, transport, serve, director):
        """A test of grpcio's suites is a process of its own: they are the process's."""
        least = ssl.TLSVersion.TLSv1_3
        if transport.transport == "grpcio":
            with pytest.raises(RuntimeError, match="--tls-min-version needs --transport native"):
                async with serve(director, tls=certificate(None), tls_min_version=least):
                    pass
            return
        name, other = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
        async with serve(director, tls=certificate(None), tls_ciphers=name) as (server, _):
            assert await _handshake(server.port, ssl.TLSVersion.TLSv1_2, name) == name
            with pytest.raises(OSError):  # noqa: PT011 (OpenSSL's words)
                await _handshake(server.port, ssl.TLSVersion.TLSv1_2, other)
        async with serve(director, tls=certificate(None), tls_min_version=least) as (server, _):
            assert await _handshake(server.port, least, name)
            with pytest.raises(OSError):  # noqa: PT011 (as above)
                await _handshake(server.port, ssl.TLSVersion.TLSv1_2, name)

    @pytest.mark.parametrize("key", KEYS)
    async def test_a_certificate_that_is_renewed(self, serve, director, key):
        """Streams that are open go on; the next handshake sees the other, of any kind of key."""
        old, new = certificate(None), self_signed(key)
        async with serve(director, tls=old) as (server, _):
            where = f"localhost:{server.port}"
            trusting_old = grpc.ssl_channel_credentials(root_certificates=old[1])
            trusting_new = grpc.ssl_channel_credentials(root_certificates=new[1])
            async with grpc.aio.secure_channel(where, trusting_old) as channel:
                peer = Peer(channel)
                assert await peer.ask(head(), body())
                await server.renew(new)
                # gRPC closes the old socket by and by: what waits at it by then is reset.
                soon = [("grpc.initial_reconnect_backoff_ms", 100)]
                async with grpc.aio.secure_channel(where, trusting_new, soon) as other:
                    assert await Peer(other, reconnects=True).ask(head(), body())
                assert kind(await peer.receive()) == "request_body"
                assert kind(await peer.ask(response_head(end=True))) == "response_headers"
                assert await peer.rest() == []
            separate = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(where, trusting_old, separate) as late:
                assert await Peer(late).call.code() is grpc.StatusCode.UNAVAILABLE

    @pytest.mark.parametrize("address", ["", "::"])
    @pytest.mark.parametrize("secure", [False, True])
    async def test_all_addresses_are_of_both_families(self, serve, director, address, secure):
        pair = certificate(None) if secure else None
        async with serve(director, address=address, tls=pair) as (server, _):
            for host in loopbacks():
                where, options = f"{host}:{server.port}", [TO_LOCALHOST]
                trusting = grpc.ssl_channel_credentials(root_certificates=pair and pair[1])
                async with (
                    grpc.aio.secure_channel(where, trusting, options)
                    if secure
                    else grpc.aio.insecure_channel(where)
                ) as channel:
                    assert await Peer(channel).ask(head(), body())

    async def test_a_stop_ends_streams_under_an_old_certificate(self, serve, director):
        pair = certificate(None)
        async with serve(director, tls=pair) as (server, _):
            trusting = grpc.ssl_channel_credentials(root_certificates=pair[1])
            async with grpc.aio.secure_channel(f"localhost:{server.port}", trusting) as channel:
                assert await Peer(channel, 6 * DEADLINE).ask(head(), body())
                await server.renew(certificate(None))
                await asyncio.wait_for(server.stop(0.05), DEADLINE)
                await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]

    @pytest.mark.parametrize("secure", [False, True])
    async def test_a_port_in_use_is_an_error(self, transport, serve, director, secure):
        pair = certificate(None) if secure else None
        async with serve(director, tls=pair) as (server, _):
            settings = ExtProcSettings(address="127.0.0.1", port=server.port, tls=pair)
            other = transport(director.exchange, time.monotonic, settings)
            with pytest.raises((OSError, RuntimeError)):
                await other.start()
            await other.stop(0)

    async def test_quiet_waits_for_the_last_stream(self, server, channel):
        await asyncio.wait_for(server.quiet(0), DEADLINE)
        peer = Peer(channel)
        await peer.ask(head(), body())
        quiet = asyncio.create_task(server.quiet(0.05))
        assert kind(await peer.ask(response_head())) == "request_body"
        assert not quiet.done()
        await peer.send(response_body())
        await peer.rest()
        await asyncio.wait_for(quiet, DEADLINE)
        assert server.streams == 0

    async def test_stop_refuses_streams_and_ends_open_ones(self, director, server, channel):
        peer = Peer(channel)
        await peer.ask(head(), body())
        await asyncio.wait_for(server.stop(0.05), DEADLINE)
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert await Peer(channel).call.code() is grpc.StatusCode.UNAVAILABLE

    async def test_stop_lets_open_streams_end_in_time(self, director, server, channel):
        peer = Peer(channel)
        await peer.ask(head(), body())
        await peer.receive()
        stopping = asyncio.create_task(server.stop(DEADLINE))
        await peer.send(response_head(), response_body())
        assert len(await peer.rest()) == 2
        await asyncio.wait_for(stopping, DEADLINE)
        assert director.ends() == [Outcome.COMPLETED]
