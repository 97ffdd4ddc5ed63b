"""The ext_proc transport where something fails or is awaited."""

import asyncio
import json
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from epp.adapters.extproc.limits import PeerLimits
from epp.errors import NoEndpoints, Overloaded
from epp.model.request_events import Aborted, Finished
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.record import Outcome
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
)
from tests.tasks import until


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
        async with serve(director, limits=PeerLimits(max_message_bytes=10_000)) as (
            server,
            channel,
        ):
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

    @pytest.mark.parametrize(
        "raised",
        [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    )
    async def test_a_plug_in_cannot_end_the_process_nor_others_streams(
        self, director, server, channel, raised
    ):
        other = Peer(channel)
        await other.ask(head(), body())
        director.answer = raised
        with capture_logs() as logs:
            immediate = (await Peer(channel).ask(head(), body())).immediate_response
        assert immediate.status.code == 500
        reasons = [
            each.header.raw_value
            for each in immediate.headers.set_headers
            if each.header.key == "x-warmpick-reason"
        ]
        assert reasons == [b"plugin-fault"]
        assert [line["event"] for line in logs] == ["exchange.failed"]
        assert kind(await other.ask(response_head(end=True))) == "request_body"
        assert kind(await other.ask()) == "response_headers"
        await until(lambda: server.streams == 0)

    async def test_errors_of_one_type_are_logged_once_in_a_while(self, director, channel):
        director.answer = ZeroDivisionError()
        with capture_logs() as logs:
            for _ in range(5):
                reply = await Peer(channel).ask(head(), body())
                assert reply.immediate_response.status.code == 500
            director.answer = KeyError()
            await Peer(channel).ask(head(), body())
        assert [(line["event"], line["more"]) for line in logs] == [("exchange.failed", 0)] * 2

    @pytest.mark.parametrize("reset", [False, True])
    async def test_a_director_that_fails_at_the_end_frees_the_stream(
        self, director, server, channel, reset
    ):
        def fail(_):
            raise ZeroDivisionError

        director.exchange_ended = fail
        peer = Peer(channel)
        with capture_logs() as logs:
            await peer.ask(head(), body())
            if reset:
                peer.call.cancel()
            else:
                await peer.ask(response_head(end=True))
            await until(lambda: server.streams == 0)
        assert [line["event"] for line in logs] == ["exchange.failed"]
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
        waiting.answer = None
        return waiting

    async def pending(self, director):
        await until(lambda: director.pending)
        return director.pending[-1]

    async def test_a_decision_that_comes_later(self, director, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        (await self.pending(director)).decided(DECISION)
        assert destination(await peer.receive(), "request_headers") == TARGET
        assert kind(await peer.receive()) == "request_body"
        assert kind(await peer.ask(response_head())) == "response_headers"

    async def test_a_decision_that_was_made_before_anybody_waited(self, director, channel):
        made = PendingDecision()
        made.decided(DECISION)
        director.route = lambda _request, _now: made
        peer = Peer(channel)
        assert destination(await peer.ask(head(), body()), "request_headers") == TARGET
        assert kind(await peer.receive()) == "request_body"
        assert kind(await peer.ask(response_head())) == "response_headers"

    async def test_an_error_that_comes_later(self, director, server, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        (await self.pending(director)).decided(Overloaded("full", retry_after=3))
        assert (await peer.receive()).immediate_response.status.code == 429
        assert await peer.rest() == []
        assert director.ends() == [Outcome.REJECTED]
        assert server.streams == 0

    async def test_a_decision_that_never_comes(self, director, server, channel):
        peers = [Peer(channel) for _ in range(3)]
        for peer in peers:
            await peer.send(head(), body())
        await until(lambda: len(director.pending) == 3)
        await asyncio.wait_for(server.stop(0.05), DEADLINE)
        await until(lambda: server.streams == 0)
        assert [each.cancelled for each in director.pending] == [True] * 3
        assert director.ends() == [Outcome.ABORTED] * 3
        assert director.events == []

    async def test_a_peer_that_does_not_wait(self, director, server, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        pending, heard = await self.pending(director), asyncio.Event()
        pending.when_cancelled(heard.set)
        peer.call.cancel()
        await asyncio.wait_for(heard.wait(), DEADLINE)
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert director.events == []

    async def test_a_decision_after_a_reset_is_undone(self, director, server, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        pending = await self.pending(director)
        peer.call.cancel()
        await until(lambda: server.streams == 0)
        pending.decided(DECISION)
        assert director.events == [Aborted(director.records[0].id, refused=True)]
        assert director.ends() == [Outcome.ABORTED]

    async def test_a_maker_may_decide_when_it_is_cancelled(self, director, server, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        pending = await self.pending(director)
        pending.when_cancelled(lambda: pending.decided(Overloaded("gone")))
        peer.call.cancel()
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.ABORTED]
        assert director.events == []

    async def test_a_half_closed_stream_still_gets_its_decision(self, director, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        await peer.call.done_writing()
        (await self.pending(director)).decided(DECISION)
        assert [kind(reply) for reply in await peer.rest()] == [
            "request_headers",
            "request_body",
        ]
        assert director.ends() == [Outcome.UNOBSERVED]

    @pytest.mark.parametrize("decided", [False, True])
    async def test_a_proxy_that_answers_by_itself_waits_for_no_decision(
        self, director, server, channel, transport, decided
    ):
        if transport.transport == "grpcio":
            pytest.skip("reads nothing while a decision is pending")
        peer = Peer(channel)
        await peer.send(head(), body())
        pending = await self.pending(director)
        assert kind(await peer.ask(response_head(**{":status": "504"}))) == "response_headers"
        assert pending.cancelled
        if decided:  # all the same
            pending.decided(DECISION)
        assert kind(await peer.ask(response_body())) == "response_body"
        assert await peer.rest() == []
        assert director.ends() == [Outcome.ABORTED]
        assert director.events == [Aborted(director.records[0].id, refused=True)] * decided
        assert server.streams == 0

    async def test_a_maker_that_fails(self, director, channel):
        peer = Peer(channel)
        await peer.send(head(), body())
        with capture_logs() as logs:
            (await self.pending(director)).decided(ZeroDivisionError())
            reply = await peer.receive()
        assert reply.immediate_response.status.code == 500
        assert [line["event"] for line in logs] == ["exchange.failed"]


class Queue(Director):
    """Admits so many requests at once; the last that came goes first when one ends."""

    def __init__(self, room):
        super().__init__()
        self.room = room
        self.order = []

    def route(self, request, now):
        if self.room:
            self.room -= 1
            return DECISION
        pending = PendingDecision()
        self.pending.append(pending)
        self.order.append(request.id)
        pending.when_cancelled(lambda: self.pending.remove(pending))
        return pending

    def observe(self, event, now):
        super().observe(event, now)
        if isinstance(event, Finished | Aborted):
            self.room += 1
            if self.pending:
                self.room -= 1
                self.pending.pop().decided(DECISION)


class TestQueue:
    """What a queue before scheduling needs: the ends of some exchanges decide on others."""

    async def test_pending_decisions_may_be_made_in_any_order(self, serve):
        director = Queue(room=1)
        async with serve(director) as (server, channel):
            peers = [Peer(channel) for _ in range(6)]
            for number, peer in enumerate(peers):
                await peer.send(head(), body())
                await until(lambda due=number: (director.room, len(director.pending)) == (0, due))
            gone = peers.pop(2)
            gone.call.cancel()
            await until(lambda: len(director.pending) == 4)
            for peer in (peers[0], *reversed(peers[1:])):
                assert destination(await peer.receive(), "request_headers") == TARGET
                assert kind(await peer.receive()) == "request_body"
                await peer.send(response_head(end=True))
                assert [kind(reply) for reply in await peer.rest()] == ["response_headers"]
            await until(lambda: server.streams == 0)
        assert director.room == 1
        assert sorted(outcome.value for outcome in director.ends()) == [
            *["aborted"],
            *["completed"] * 5,
        ]

    async def test_a_decision_of_one_connection_comes_with_the_end_on_another(self, serve):
        director = Queue(room=1)
        async with serve(director) as (server, channel):
            first = Peer(channel)
            await first.ask(head(), body())
            where = f"127.0.0.1:{server.port}"
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(where, options=options) as another:
                second = Peer(another)
                await second.send(head(), body())
                await until(lambda: director.pending)
                first.call.cancel()
                assert destination(await second.receive(), "request_headers") == TARGET
                second.call.cancel()
            await until(lambda: server.streams == 0)
        assert director.room == 1

    async def test_all_that_wait_are_refused_in_one_go(self, serve):
        director, count = Queue(room=1), 300
        async with serve(director) as (server, channel):
            first = Peer(channel)
            await first.ask(head(), body())
            peers = [Peer(channel) for _ in range(count)]
            for peer in peers:
                await peer.send(head(), body())
            await until(lambda: len(director.pending) == count)
            while director.pending:
                director.pending.pop(0).decided(NoEndpoints("nobody", retry_after=1))
            for peer in peers:
                assert (await peer.receive()).immediate_response.status.code == 503
            first.call.cancel()
            await until(lambda: server.streams == 0)
