"""The ext_proc transport against Envoy's own messages: conversations and how they end."""

import asyncio

import grpc
import grpc.aio
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.model.request import Usage
from epp.model.request_events import Aborted, Finished, Unobserved
from epp.protocol.extproc.record import Outcome
from tests.adapters.ext_proc_peer import (
    ANSWER,
    BUFFERED,
    CHAT,
    NONE,
    STREAMED,
    TARGET,
    Peer,
    body,
    destination,
    head,
    kind,
    response_body,
    response_head,
    streamed,
)
from tests.tasks import until


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

    async def test_buffered_mode_is_answered_by_one_body_reply(self, director, channel):
        peer, modes = Peer(channel), (BUFFERED, BUFFERED)
        assert kind(await peer.ask(head(modes))) == "request_headers"
        assert destination(await peer.ask(body()), "request_body") == TARGET
        assert kind(await peer.ask(response_head())) == "response_headers"
        await peer.send(response_body())
        assert [kind(reply) for reply in await peer.rest()] == ["response_body"]
        assert director.ends() == [Outcome.COMPLETED]

    async def test_streamed_mode_is_answered_at_the_headers(self, director, channel):
        peer, modes = Peer(channel), (STREAMED, STREAMED)
        assert destination(await peer.ask(head(modes)), "request_headers") == TARGET
        for end in (False, True):
            assert kind(await peer.ask(body(b"x", end=end))) == "request_body"
        assert kind(await peer.ask(response_head())) == "response_headers"
        assert kind(await peer.ask(response_body(b"x", end=False))) == "response_body"
        await peer.send(response_body(b""))
        assert [kind(reply) for reply in await peer.rest()] == ["response_body"]
        assert director.ends() == [Outcome.COMPLETED]

    async def test_a_request_without_body_mode_is_answered_at_the_headers(self, director, channel):
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

    async def test_a_response_whose_body_is_not_shown_ends_with_a_reset(
        self, director, server, channel
    ):
        peer = Peer(channel)
        assert await peer.ask(head((NONE, NONE)))
        assert await peer.ask(response_head())
        peer.call.cancel()
        await until(lambda: server.streams == 0)
        assert director.ends() == [Outcome.COMPLETED]

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
