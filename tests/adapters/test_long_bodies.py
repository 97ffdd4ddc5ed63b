"""Long bodies over either transport: said as they are read, and in nobody's way."""

import asyncio

import pytest

from epp.protocol.extproc.record import Outcome
from tests.adapters.ext_proc_peer import (
    CHAT,
    DEADLINE,
    DECISION,
    Peer,
    body,
    head,
    kind,
    response_body,
    response_head,
    streamed,
)
from tests.tasks import until

SIZE = 12 << 20
LONG = CHAT[:-1] + b', "x": "' + b"so it goes. " * (SIZE // 12) + b'"}'
PIECE = 30_000
PATIENCE = 60


async def ask(stream, data=LONG):
    await stream.send(head())
    for at in range(0, len(data), PIECE):
        await stream.send(body(data[at : at + PIECE], end=at + PIECE >= len(data)))


async def echoed(stream):
    """Read replies up to the end of the request's body."""
    assert kind(await stream.receive()) == "request_headers"
    pieces, ended = [], False
    while not ended:
        piece, ended = streamed(await stream.receive())
        pieces.append(piece)
    return b"".join(pieces)


async def test_a_long_body_comes_back_whole(channel):
    streams = [Peer(channel, PATIENCE) for _ in range(3)]
    await asyncio.gather(*map(ask, streams))
    assert [each == LONG for each in await asyncio.gather(*map(echoed, streams))] == [True] * 3


async def test_a_peer_that_does_not_read_delays_no_other_stream(channel, director):
    slow = Peer(channel, PATIENCE)
    await ask(slow)
    await until(lambda: director.opened == 1)
    for _ in range(5):
        quick = Peer(channel, PATIENCE)
        await ask(quick, CHAT)
        assert await echoed(quick) == CHAT
    assert await echoed(slow) == LONG
    await slow.send(response_head(), response_body(end=True))
    await slow.rest()
    await until(lambda: Outcome.COMPLETED in director.ends())


async def test_a_half_closed_stream_still_gets_the_rest_of_its_body(channel):
    stream = Peer(channel, PATIENCE)
    await ask(stream)
    await stream.call.done_writing()
    assert await echoed(stream) == LONG
    assert await stream.rest() == []


async def test_a_reset_during_a_long_body_frees_the_stream(channel, director, server):
    stream = Peer(channel, PATIENCE)
    await ask(stream)
    assert kind(await stream.receive()) == "request_headers"
    stream.call.cancel()
    await until(lambda: director.ends() == [Outcome.ABORTED])
    async with asyncio.timeout(DEADLINE):
        await server.quiet(0)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_long_body_continues_after_a_late_decision(serve, director, count):
    director.answer = None
    async with serve(director) as (_, channel):
        streams = [Peer(channel, PATIENCE) for _ in range(count)]
        await asyncio.gather(*map(ask, streams))
        await until(lambda: len(director.pending) == count)
        for pending in director.pending:
            pending.decided(DECISION)
        found = await asyncio.gather(*map(echoed, streams))
        assert [each == LONG for each in found] == [True] * count
