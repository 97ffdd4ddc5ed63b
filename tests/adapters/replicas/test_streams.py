"""Replicas over the streams of a real Redis: who hears what, and how much is kept of it."""

import asyncio
import contextlib
import signal

import redis

from epp.adapters.replicas import redis_link, streams
from epp.adapters.replicas.sealing import Seal
from tests.adapters.replicas.stations import ALL, SECRET, meet, station, write
from tests.redis_process import HERE
from tests.tasks import until


@contextlib.asynccontextmanager
async def three(address):
    """Three replicas that know of each other."""
    async with station(address) as one, station(address) as other, station(address) as third:
        await meet(one, other, third)
        yield one, other, third


async def test_what_one_sends_all_others_hear_and_it_does_not(server):
    async with three(server.address) as (one, other, third):
        await third.tell(b"hello")
        for each in (one, other):
            await until(lambda each=each: each.heard == [b"hello"])
        await one.tell(b"good morning")
        await until(lambda: third.heard == [b"good morning"])
        assert not one.dropped + other.dropped + third.dropped
        assert third.streams.known == 2


async def test_answers_reach_who_asked_alone(server):
    async with three(server.address) as (one, other, third):
        await other.tell(b"?how")
        await until(lambda: other.heard == [b"!how", b"!how"])
        assert one.heard == third.heard == [b"?how"]


async def test_a_replica_that_stops_takes_its_stream_away_and_the_rest_expires(server, monkeypatch):
    monkeypatch.setattr(streams, "_UPKEEP_SECONDS", 0.0)
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await one.tell(b"?how")
        await until(lambda: one.heard == [b"!how"])
        await one.tell(b"and on")
        await until(lambda: server.do("TTL", ALL) > 0)
        keys = server.do("KEYS", "*")
        assert {ALL, one.streams._own, other.streams._own} == set(keys)
        assert all(0 < server.do("TTL", key) <= 600 for key in keys)
    assert server.do("KEYS", "*") == [ALL]


async def test_streams_are_bounded(server, monkeypatch):
    monkeypatch.setattr(streams, "MAX_BROADCASTS", 100)
    async with station(server.address) as one:
        for _ in range(1000):
            await one.tell(b"x" * 100)
        await until(lambda: server.do("XLEN", ALL) >= 100 and not one.streams._queue)
        await one.tell(b"x" * 100)
        await until(lambda: server.do("XLEN", ALL) < 300)


async def test_what_was_answered_is_taken_away(server, monkeypatch):
    monkeypatch.setattr(streams, "_UPKEEP_SECONDS", 0.0)
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        for _ in range(300):
            await one.tell(b"?how")
        await until(lambda: len(one.heard) == 300)

        def taken():
            one.streams.send(b"and on")
            return server.do("XLEN", one.streams._own) < 200

        await until(taken)


async def test_facts_find_room_beside_long_answers(server):
    """A snapshot is tens of megabytes, and the server may be slow to take it."""
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await other.tell(b"?how")
        await until(lambda: one.heard)
        server.signal(signal.SIGSTOP)
        answer = one.replies[0]
        taken = sum(answer(b"x" * 400_000) for _ in range(100))
        assert 0 < taken < 10
        assert answer(b"a short one")
        assert one.streams.send(b"a fact")
        assert one.streams.unsent == 0
        server.signal(signal.SIGCONT)
        await until(lambda: b"a fact" in other.heard)
        assert len(other.heard) == taken + 3
        await until(lambda: answer(b"x" * 400_000))


async def test_an_answer_that_is_tried_again_and_again_is_not_as_many_messages(server):
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await other.tell(b"?how")
        await until(lambda: one.heard)
        server.kill()
        await until(lambda: one.streams.send(b"lost") == 0)
        unsent = one.streams.unsent
        assert not any(one.replies[0](b"an answer") for _ in range(10))
        assert one.streams.unsent == unsent


@contextlib.asynccontextmanager
async def narrow(server, most):
    """A way to the server whose connections bring so many bytes and no more."""
    done = list[asyncio.Task[object]]()

    async def bring(there, writer):
        left = most
        while left > 0 and (data := await there.read(min(left, 1 << 16))):
            left -= len(data)
            writer.write(data)

    async def connected(reader, writer):
        task = asyncio.current_task()
        assert task is not None
        done.append(task)
        there, into = await asyncio.open_connection(HERE, server.port)
        bringing = asyncio.create_task(bring(there, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                into.write(data)
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
        for each in (into, writer):
            each.transport.abort()
            await asyncio.gather(each.wait_closed(), return_exceptions=True)

    async with await asyncio.start_server(connected, HERE, 0) as listening:
        try:
            yield f"redis://{HERE}:{listening.sockets[0].getsockname()[1]}"
        finally:
            await asyncio.gather(*done)


async def test_more_than_comes_in_time_is_read_a_little_at_a_time(server, monkeypatch):
    monkeypatch.setattr(redis_link, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(streams, "_BLOCK_SECONDS", 0.1)
    seal = Seal(SECRET)
    messages = [b"%d " % number + b"x" * 10_000 for number in range(120)]
    async with narrow(server, most=400_000) as address, station(address) as one:
        write(server, seal, one.streams._own, streams._RUNS)
        await until(lambda: seal.sender in one.streams._running)
        with redis.Redis(HERE, server.port) as client, client.pipeline() as at_once:
            for message in messages:
                at_once.xadd(ALL, {"m": seal.seal(ALL, message)})
            at_once.execute()
        await until(lambda: len(one.heard) == len(messages))
        assert one.heard == messages
        assert not one.dropped


async def test_who_starts_reads_what_comes_from_then_on(server):
    async with station(server.address) as one:
        await one.tell(b"before")
        await until(lambda: server.do("XLEN", ALL) == 1)
        async with station(server.address) as other:
            await meet(one, other)
            await one.tell(b"after")
            await until(lambda: other.heard == [b"after"])


async def test_pools_of_other_namespaces_are_apart(server):
    async with (
        station(server.address) as one,
        station(server.address, pool="elsewhere/pool") as other,
    ):
        await one.tell(b"hello")
        await other.tell(b"hello")
        await until(lambda: len(server.do("KEYS", "*:all")) == 2)
        assert not one.heard + other.heard
        assert not one.dropped + other.dropped
