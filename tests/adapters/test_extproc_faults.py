"""The ext_proc transport where something fails, is awaited, or stops."""

import asyncio
import json
import time
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.tls import certificate
from epp.errors import NoEndpoints, Overloaded
from epp.model.events import Aborted
from epp.model.request import Outcome
from epp.protocol.extproc.director import Pending
from tests.adapters.ext_proc_peer import (
    DEADLINE,
    DECISION,
    METHOD,
    TARGET,
    Director,
    Peer,
    body,
    destination,
    head,
    kind,
    response_body,
    response_head,
    until,
)


class TestFaults:
    @pytest.mark.parametrize(
        ("data", "complaint"),
        [(b"\xff" * 20, "not a ProcessingRequest"), (b"", "without a request")],
    )
    async def test_bytes_that_are_no_message(self, director, server, channel, data, complaint):
        call = channel.stream_stream(METHOD)()
        await call.write(data)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert complaint in str(refused.value.details())
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert kind(await Peer(channel).ask(head(), body())) == "request_headers"

    async def test_bytes_that_are_no_message_amid_a_conversation(self, director, server, channel):
        call = channel.stream_stream(METHOD)()
        for message in (head(), body()):
            await call.write(message.SerializeToString())
        for _ in range(2):
            assert await call.read()
        await call.write(b"\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await until(lambda: server.streams == 0)
        assert [type(event) for event in director.events] == [Aborted]

    async def test_an_unknown_method(self, channel):
        call = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Nothing")()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED

    async def test_a_message_over_the_limit(self, serve, director):
        async with serve(director, max_receive_bytes=10_000) as (server, channel):
            peer = Peer(channel)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await peer.send(head(), body(b"x" * 20_000))
            assert await peer.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: server.streams == 0)
            assert kind(await Peer(channel).ask(head(), body())) == "request_headers"

    async def test_a_director_that_fails_is_a_500_and_no_more(self, director, server, channel):
        director.answer = ZeroDivisionError("with a secret")
        with capture_logs() as logs:
            reply = await Peer(channel).ask(head(), body())
        immediate = reply.immediate_response
        assert immediate.status.code == 500
        assert json.loads(immediate.body)["error"]["message"] == (
            "the picker failed: ZeroDivisionError"
        )
        (line,) = logs
        assert (line["event"], line["log_level"]) == ("exchange.failed", "error")
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.REJECTED]
        director.answer = DECISION
        assert kind(await Peer(channel).ask(head(), body())) == "request_headers"

    async def test_a_director_that_fails_at_the_end_leaves_no_stream(
        self, director, server, channel
    ):
        def fail(_):
            raise ZeroDivisionError

        director.close = fail
        peer = Peer(channel)
        with capture_logs() as logs:
            await peer.ask(head(), body())
            await peer.ask(response_head(end=True))
            await until(lambda: server.streams == 0)
        assert [line["event"] for line in logs] == ["exchange.failed"]
        await asyncio.wait_for(server.quiet(0), DEADLINE)

    async def test_a_director_that_fails_when_the_peer_is_gone_leaves_no_stream(
        self, director, server, channel
    ):
        def fail(_):
            raise ZeroDivisionError

        director.close = fail
        peer = Peer(channel)
        await peer.ask(head(), body())
        peer.call.cancel()
        await until(lambda: server.streams == 0)
        await asyncio.wait_for(server.quiet(0), DEADLINE)

    async def test_an_error_for_the_client(self, director, channel):
        director.answer = NoEndpoints("nobody", retry_after=2)
        immediate = (await Peer(channel).ask(head(), body())).immediate_response
        headers = {
            option.header.key: option.header.raw_value for option in immediate.headers.set_headers
        }
        assert immediate.status.code == 503
        assert headers["x-warmpick-reason"] == b"no-endpoints"
        assert headers["retry-after"] == b"2"
        assert immediate.details == "warmpick_no-endpoints"


class TestPending:
    @pytest.fixture
    def director(self):
        waiting = Director()
        waiting.answer = Pending.PENDING
        return waiting

    async def test_a_decision_that_comes_later(self, serve, director):
        asked, told = asyncio.Event(), asyncio.Event()

        async def awaiting(_):
            asked.set()
            await told.wait()
            return DECISION

        async with serve(director, awaiting) as (_, channel):
            peer = Peer(channel)
            await peer.send(head(), body(), response_head())
            await asked.wait()
            told.set()
            assert destination(await peer.receive(), "request_headers") == TARGET
            kinds = [kind(await peer.receive()) for _ in range(2)]
            assert kinds == ["request_body", "response_headers"]

    async def test_an_error_that_comes_later(self, serve, director):
        async def awaiting(_):
            return Overloaded("full", retry_after=3)

        async with serve(director, awaiting) as (_, channel):
            reply = await Peer(channel).ask(head(), body())
            assert reply.immediate_response.status.code == 429
        assert director.ends() == [Outcome.REJECTED]

    async def test_a_decision_that_never_comes(self, serve, director):
        async def awaiting(_):
            return await asyncio.get_running_loop().create_future()

        async with serve(director, awaiting, decision_timeout=0.05) as (server, channel):
            immediate = (await Peer(channel).ask(head(), body())).immediate_response
            assert immediate.status.code == 429
            assert json.loads(immediate.body)["error"]["code"] == "decision-timeout"
            await until(lambda: server.streams == 0)

    async def test_a_peer_that_does_not_wait(self, serve, director):
        asked, ended = asyncio.Event(), asyncio.Event()

        async def awaiting(_):
            asked.set()
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        async with serve(director, awaiting) as (server, channel):
            peer = Peer(channel)
            await peer.send(head(), body())
            await asked.wait()
            peer.call.cancel()
            await asyncio.wait_for(ended.wait(), DEADLINE)
            await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert director.events == []

    async def test_a_peer_that_has_said_everything_is_still_told(self, serve, director):
        told = asyncio.Event()

        async def awaiting(_):
            await told.wait()
            return DECISION

        async with serve(director, awaiting) as (_, channel):
            peer = Peer(channel)
            await peer.send(head(), body())
            await peer.call.done_writing()
            told.set()
            assert [kind(reply) for reply in await peer.rest()] == [
                "request_headers",
                "request_body",
            ]
        assert director.ends() == [Outcome.UNOBSERVED]

    async def test_waiting_that_fails(self, serve, director):
        async def awaiting(_):
            raise ZeroDivisionError

        with capture_logs():
            async with serve(director, awaiting) as (_, channel):
                reply = await Peer(channel).ask(head(), body())
        assert reply.immediate_response.status.code == 500

    async def test_without_anybody_to_wait_for(self, director, channel):
        reply = await Peer(channel).ask(head(), body())
        assert reply.immediate_response.status.code == 500


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

    async def test_a_certificate_that_is_renewed(self, serve, director):
        """Connections that are open keep theirs; the next handshake sees the other."""
        old, new = certificate(None), certificate(None)
        async with serve(director, tls=old) as (server, _):
            where = f"localhost:{server.port}"
            trusting_old = grpc.ssl_channel_credentials(root_certificates=old[1])
            trusting_new = grpc.ssl_channel_credentials(root_certificates=new[1])
            async with grpc.aio.secure_channel(where, trusting_old) as channel:
                assert await Peer(channel).ask(head(), body())
                server.renew(new)
                async with grpc.aio.secure_channel(where, trusting_new) as other:
                    assert await Peer(other).ask(head(), body())
                assert await Peer(channel).ask(head(), body())
            separate = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(where, trusting_old, separate) as late:
                assert await Peer(late).call.code() is grpc.StatusCode.UNAVAILABLE

    async def test_a_taken_port(self, transport, director, server):
        settings = ExtProcSettings(address="127.0.0.1", port=server.port)
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

    async def test_stop_takes_no_more_and_ends_what_is_left(self, director, server, channel):
        peer = Peer(channel)
        await peer.ask(head(), body())
        await asyncio.wait_for(server.stop(0.05), DEADLINE)
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert await Peer(channel).call.code() is grpc.StatusCode.UNAVAILABLE

    async def test_stop_lets_a_stream_end(self, director, server, channel):
        peer = Peer(channel)
        await peer.ask(head(), body())
        await peer.receive()
        stopping = asyncio.create_task(server.stop(DEADLINE))
        await peer.send(response_head(), response_body())
        assert len(await peer.rest()) == 2
        await asyncio.wait_for(stopping, DEADLINE)
        assert director.ends() == [Outcome.COMPLETED]
