"""The ext_proc transport against Envoy's own messages and stubs (xds-protos)."""

import asyncio
import json
import time
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from structlog.testing import capture_logs

from epp.adapters.extproc import ExtProcServer, ExtProcSettings
from epp.adapters.tls import certificate
from epp.errors import NoEndpoints, Overloaded
from epp.model.endpoint import Endpoint
from epp.model.events import Aborted, Finished, Unobserved
from epp.model.request import Decision, Outcome, RequestId, Usage
from epp.protocol.director import Pending
from epp.protocol.exchange import Exchange, ExchangeSettings

DEADLINE = 10
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
POD = Endpoint("default", "pod-0", "10.0.0.1", 8000)
DECISION = Decision(endpoints=(POD,))
TARGET = b"10.0.0.1:8000"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()
DUPLEX, STREAMED = ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.STREAMED
BUFFERED, NONE = ProcessingMode.BUFFERED, ProcessingMode.NONE


class Director:
    """Answers as it is told, and remembers what it hears."""

    def __init__(self):
        self.answer: Decision | Exception | Pending = DECISION
        self.opened = 0
        self.events = []
        self.records = []

    def exchange(self, now):
        self.opened += 1
        return Exchange(self, ExchangeSettings(), RequestId(f"id-{self.opened}"), now)

    def route(self, request, now):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def observe(self, event, now):
        self.events.append(event)

    def close(self, record):
        self.records.append(record)

    def ends(self):
        return [record.outcome for record in self.records]


async def until(condition):
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(director, *awaiting, **settings):
    """A server, and a channel to it."""
    made = ExtProcSettings(**{"address": "127.0.0.1", "port": 0, **settings})
    server = ExtProcServer(director.exchange, time.monotonic, made, *awaiting)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield server, channel
        await server.stop(0)


@pytest.fixture
def director():
    return Director()


@pytest.fixture
async def served(director):
    async with serving(director) as made:
        yield made


@pytest.fixture
def server(served):
    return served[0]


@pytest.fixture
def channel(served):
    return served[1]


class Peer:
    """Envoy's side of one stream."""

    def __init__(self, channel):
        self.call = ExternalProcessorStub(channel).Process(timeout=DEADLINE)

    async def send(self, *messages):
        for message in messages:
            await self.call.write(message)

    async def receive(self):
        """The next reply, None at the end."""
        reply = await self.call.read()
        return None if reply is grpc.aio.EOF else reply

    async def ask(self, *messages):
        """Send, and give the next reply."""
        await self.send(*messages)
        return await self.receive()

    async def rest(self):
        """All replies up to the end, which must be a good one."""
        replies = []
        while reply := await self.receive():
            replies.append(reply)
        assert await self.call.code() is grpc.StatusCode.OK
        return replies


def header_map(headers):
    pairs = [HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    return HeaderMap(headers=pairs)


def head(modes=(DUPLEX, DUPLEX), method="POST", path="/v1/chat/completions", *, end=False):
    request, response = modes
    config = pb.ProtocolConfiguration(request_body_mode=request, response_body_mode=response)
    headers = header_map({":method": method, ":path": path})
    parts = pb.HttpHeaders(headers=headers, end_of_stream=end)
    return pb.ProcessingRequest(request_headers=parts, protocol_config=config)


def body(data=CHAT, *, end=True):
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end))


def response_head(*, end=False, **more):
    headers = header_map({":status": "200", "content-type": "application/json", **more})
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers, end_of_stream=end))


def response_body(data=ANSWER, *, end=True):
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end))


def destination(reply, part):
    """Where a reply sends the request, by header; it must say the same in metadata."""
    (value,) = [
        option.header.raw_value
        for option in getattr(reply, part).response.header_mutation.set_headers
        if option.header.key == "x-gateway-destination-endpoint"
    ]
    said = reply.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert said == value.decode()
    return value


def kind(reply):
    return reply.WhichOneof("response")


def streamed(reply):
    part = getattr(reply, kind(reply))
    piece = part.response.body_mutation.streamed_response
    return piece.body, piece.end_of_stream


class TestConversations:
    async def test_full_duplex_waits_for_the_body(self, director, server, channel):
        peer = Peer(channel)
        reply = await peer.ask(head(), body(CHAT[:9], end=False), body(CHAT[9:]))
        assert destination(reply, "request_headers") == TARGET
        assert reply.request_headers.response.clear_route_cache
        assert streamed(await peer.receive()) == (CHAT, True)
        assert kind(await peer.ask(response_head())) == "response_headers"
        assert streamed(await peer.ask(response_body(ANSWER[:5], end=False))) == (ANSWER[:5], False)
        await peer.send(response_body(ANSWER[5:]))
        (last,) = await peer.rest()
        assert streamed(last) == (ANSWER[5:], True)
        assert director.ends() == [Outcome.COMPLETED]
        usages = [event.usage for event in director.events if isinstance(event, Finished)]
        assert usages == [Usage(prompt_tokens=3, completion_tokens=1)]
        assert server.streams == 0

    async def test_buffered(self, director, channel):
        peer, modes = Peer(channel), (BUFFERED, BUFFERED)
        assert kind(await peer.ask(head(modes))) == "request_headers"
        assert destination(await peer.ask(body()), "request_body") == TARGET
        assert kind(await peer.ask(response_head())) == "response_headers"
        await peer.send(response_body())
        assert [kind(reply) for reply in await peer.rest()] == ["response_body"]
        assert director.ends() == [Outcome.COMPLETED]

    async def test_streamed(self, director, channel):
        peer, modes = Peer(channel), (STREAMED, STREAMED)
        assert destination(await peer.ask(head(modes)), "request_headers") == TARGET
        for end in (False, True):
            assert kind(await peer.ask(body(b"x", end=end))) == "request_body"
        assert kind(await peer.ask(response_head())) == "response_headers"
        assert kind(await peer.ask(response_body(b"x", end=False))) == "response_body"
        await peer.send(response_body(b""))
        assert [kind(reply) for reply in await peer.rest()] == ["response_body"]
        assert director.ends() == [Outcome.COMPLETED]

    async def test_headers_only(self, director, channel):
        peer, modes = Peer(channel), (NONE, NONE)
        assert destination(await peer.ask(head(modes)), "request_headers") == TARGET
        assert kind(await peer.ask(response_head())) == "response_headers"
        await peer.call.done_writing()
        assert await peer.rest() == []
        assert director.ends() == [Outcome.COMPLETED]

    async def test_without_a_body(self, director, channel):
        peer = Peer(channel)
        reply = await peer.ask(head(method="GET", path="/v1/models", end=True))
        assert destination(reply, "request_headers") == TARGET
        await peer.send(response_head(end=True))
        assert [kind(reply) for reply in await peer.rest()] == ["response_headers"]
        assert director.ends() == [Outcome.COMPLETED]

    async def test_trailers_on_both_sides(self, director, channel):
        peer = Peer(channel)
        await peer.send(head(), body(end=False), pb.ProcessingRequest(request_trailers={}))
        kinds = [kind(await peer.receive()) for _ in range(3)]
        assert kinds == ["request_headers", "request_body", "request_trailers"]
        await peer.send(response_head(), response_body(end=False))
        await peer.send(pb.ProcessingRequest(response_trailers={}))
        kinds = [kind(reply) for reply in await peer.rest()]
        assert kinds == ["response_headers", "response_body", "response_trailers"]
        assert director.ends() == [Outcome.COMPLETED]

    async def test_a_large_body_returns_in_chunks_that_envoy_takes(self, channel):
        peer, pieces = Peer(channel), list[tuple[bytes, bool]]()
        large = CHAT[:-1] + b', "x": "' + b"x" * 500_000 + b'"}'
        await peer.ask(head(), body(large))
        while not pieces or not pieces[-1][1]:
            pieces.append(streamed(await peer.receive()))
        assert b"".join(data for data, _ in pieces) == large
        assert max(len(data) for data, _ in pieces) <= 62_000
        assert [end for _, end in pieces] == [False] * (len(pieces) - 1) + [True]

    async def test_many_at_once_on_one_connection(self, director, server, channel):
        async def converse():
            peer = Peer(channel)
            reply = await peer.ask(head(), body())
            assert destination(reply, "request_headers") == TARGET
            await peer.ask(response_head(end=True))
            await peer.rest()

        await asyncio.gather(*(converse() for _ in range(100)))
        assert director.ends() == [Outcome.COMPLETED] * 100
        assert len({record.id for record in director.records}) == 100
        await until(lambda: server.streams == 0)


# A whole conversation, and how many replies each message brings.
SCRIPT = (
    (head(), 0),
    (body(CHAT[:9], end=False), 0),
    (body(CHAT[9:]), 2),
    (response_head(), 1),
    (response_body(ANSWER[:9], end=False), 1),
)


class TestEnds:
    @pytest.mark.parametrize("point", range(len(SCRIPT) + 1))
    @pytest.mark.parametrize("repeat", range(3))
    async def test_a_peer_that_breaks_off(self, director, server, channel, point, repeat):
        peer = Peer(channel)
        await peer.call.wait_for_connection()
        for message, replies in SCRIPT[:point]:
            await peer.send(message)
            for _ in range(replies):
                assert await peer.receive()
        await until(lambda: director.opened)
        peer.call.cancel()
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        routed = point >= 3
        assert [type(event) for event in director.events][-1:] == [Aborted] * routed
        assert await Peer(channel).ask(head(end=True, method="GET", path="/"))

    async def test_a_connection_that_breaks(self, director, server):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            peers = [Peer(channel) for _ in range(5)]
            for peer in peers:
                assert await peer.ask(head(), body())
            await channel.close()
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED] * 5

    async def test_half_close_after_the_request(self, director, server, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        await peer.call.done_writing()
        kinds = [kind(reply) for reply in await peer.rest()]
        assert kinds == ["request_headers", "request_body"]
        assert director.ends() == [Outcome.UNOBSERVED]
        assert [type(event) for event in director.events] == [Unobserved]
        assert server.streams == 0

    async def test_half_close_before_anything(self, director, channel):
        peer = Peer(channel)
        await peer.call.done_writing()
        assert await peer.rest() == []
        assert director.ends() == [Outcome.ABORTED]

    async def test_messages_after_the_end_are_not_waited_for(self, director, channel):
        peer = Peer(channel)
        assert kind(await peer.ask(head(), body(b"no JSON"))) == "immediate_response"
        assert await peer.rest() == []
        assert director.ends() == [Outcome.REJECTED]


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

    async def test_a_message_over_the_limit(self, director):
        async with serving(director, max_receive_bytes=10_000) as (server, channel):
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

    async def test_a_decision_that_comes_later(self, director):
        asked, told = asyncio.Event(), asyncio.Event()

        async def awaiting(_):
            asked.set()
            await told.wait()
            return DECISION

        async with serving(director, awaiting) as (_, channel):
            peer = Peer(channel)
            await peer.send(head(), body(), response_head())
            await asked.wait()
            told.set()
            assert destination(await peer.receive(), "request_headers") == TARGET
            kinds = [kind(await peer.receive()) for _ in range(2)]
            assert kinds == ["request_body", "response_headers"]

    async def test_an_error_that_comes_later(self, director):
        async def awaiting(_):
            return Overloaded("full", retry_after=3)

        async with serving(director, awaiting) as (_, channel):
            reply = await Peer(channel).ask(head(), body())
            assert reply.immediate_response.status.code == 429
        assert director.ends() == [Outcome.REJECTED]

    async def test_a_decision_that_never_comes(self, director):
        async def awaiting(_):
            return await asyncio.get_running_loop().create_future()

        async with serving(director, awaiting, decision_timeout=0.05) as (server, channel):
            immediate = (await Peer(channel).ask(head(), body())).immediate_response
            assert immediate.status.code == 429
            assert json.loads(immediate.body)["error"]["code"] == "decision-timeout"
            await until(lambda: server.streams == 0)

    async def test_a_peer_that_does_not_wait(self, director):
        asked, ended = asyncio.Event(), asyncio.Event()

        async def awaiting(_):
            asked.set()
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        async with serving(director, awaiting) as (server, channel):
            peer = Peer(channel)
            await peer.send(head(), body())
            await asked.wait()
            peer.call.cancel()
            await asyncio.wait_for(ended.wait(), DEADLINE)
            await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert director.events == []

    async def test_a_peer_that_has_said_everything_is_still_told(self, director):
        told = asyncio.Event()

        async def awaiting(_):
            await told.wait()
            return DECISION

        async with serving(director, awaiting) as (_, channel):
            peer = Peer(channel)
            await peer.send(head(), body())
            await peer.call.done_writing()
            told.set()
            assert [kind(reply) for reply in await peer.rest()] == [
                "request_headers",
                "request_body",
            ]
        assert director.ends() == [Outcome.UNOBSERVED]

    async def test_waiting_that_fails(self, director):
        async def awaiting(_):
            raise ZeroDivisionError

        with capture_logs():
            async with serving(director, awaiting) as (_, channel):
                reply = await Peer(channel).ask(head(), body())
        assert reply.immediate_response.status.code == 500

    async def test_without_anybody_to_wait_for(self, director, channel):
        reply = await Peer(channel).ask(head(), body())
        assert reply.immediate_response.status.code == 500


class TestServer:
    async def test_tls_with_a_self_signed_certificate(self, director):
        pair = certificate(None)
        async with serving(director, tls=pair) as (server, plain):
            trusting = grpc.ssl_channel_credentials(root_certificates=pair[1])
            where = f"localhost:{server.port}"
            async with grpc.aio.secure_channel(where, trusting) as channel:
                reply = await Peer(channel).ask(head(), body())
                assert destination(reply, "request_headers") == TARGET
            assert await Peer(plain).call.code() is grpc.StatusCode.UNAVAILABLE

    async def test_a_taken_port(self, director, server):
        settings = ExtProcSettings(address="127.0.0.1", port=server.port)
        other = ExtProcServer(director.exchange, time.monotonic, settings)
        with pytest.raises(RuntimeError):
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
