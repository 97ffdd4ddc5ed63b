"""How much of the KV events of all publishers one iteration of the event loop takes in."""

import asyncio
from collections import Counter
from itertools import count

import zmq
import zmq.asyncio

from epp.adapters.kvevents.inbox import Inbox
from epp.adapters.kvevents.turns import EventTurns
from epp.model.kv_changes import BlocksRemoved, BlocksStored, CacheChanged
from tests.adapters.test_kvevents import followed
from tests.kvpublisher import removed, stored

TURN, UNIT = 4, 2**-17


class Iterations:
    """Counts the iterations of the running loop; how many units of work each one had."""

    def __init__(self):
        self.number = 0
        self.work: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self):
        self.number += 1
        self._handle = self._loop.call_soon(self._next)

    def count(self):
        self.work[self.number] += 1

    def stop(self):
        self._handle.cancel()


async def test_all_readers_share_one_turn_and_none_is_left_out():
    """The clock is the work: a unit of it is done between two calls."""
    done: Counter[int] = Counter()
    turns = EventTurns(TURN * UNIT, lambda: done.total() * UNIT)
    iterations = Iterations()

    async def read(name):
        for _ in range(50):
            await turns.take()
            iterations.count()
            done[name] += 1
            slowest.append(max(done.values()) - min(done[each] for each in range(20)))

    slowest: list[int] = []
    async with asyncio.TaskGroup() as tasks:
        for name in range(20):
            tasks.create_task(read(name))
    iterations.stop()
    assert done == dict.fromkeys(range(20), 50)
    assert max(iterations.work.values()) <= TURN
    assert max(slowest) <= 2 * TURN


async def test_a_turn_that_took_long_is_followed_by_as_long_a_pause():
    now = 0.0
    turns, pauses = EventTurns(1e-3, lambda: now), []

    async def paused():
        loop = asyncio.get_running_loop()
        start = loop.time()
        await turns.take()
        pauses.append(loop.time() - start)

    await paused()
    now += 0.02
    turns.done()
    await paused()
    now += 100  # in which nobody had anything to do
    await paused()
    assert pauses[1] >= 0.02 - 2e-3
    assert turns.over is False


async def test_who_leaves_while_waiting_takes_no_turn_of_others():
    turns = EventTurns(0)
    first, leaves, stays = (asyncio.ensure_future(turns.take()) for _ in range(3))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait_for(asyncio.gather(first, stays), 10)
    await asyncio.wait_for(turns.take(), 10)


async def test_the_frames_of_a_message_are_taken_in_turns_and_few_are_kept():
    context = zmq.asyncio.Context()
    sender, receiver = context.socket(zmq.PUSH), zmq.Context(context).socket(zmq.PULL)
    receiver.bind("inproc://many")
    sender.connect("inproc://many")
    calls = count()

    iterations = Iterations()
    inbox = Inbox(receiver, EventTurns(100 * UNIT, lambda: next(calls) * UNIT))
    try:
        for last in (b"first", b"second"):
            await sender.send_multipart([last, *[b"x"] * 10_000])
            before = iterations.number
            async with asyncio.timeout(10):
                frames = await inbox.receive()
            assert frames[0] == last
            assert len(frames) < 10
            assert iterations.number - before >= 50
    finally:
        iterations.stop()
        inbox.close()
        context.destroy(linger=0)


async def test_batches_are_applied_in_parts():
    async with followed() as (publisher, told):
        await publisher.publish(stored(range(5_000)))
        await publisher.publish(*(stored([name]) for name in range(5_000, 7_000)))
        await publisher.publish(removed(*range(4_000)))
        await told.holds(*range(4_000, 7_000))
        sizes = [
            sum(len(change.hashes) for change in event.changes if isinstance(change, Blocks))
            for event in told.of(CacheChanged)
        ]
        assert max(sizes) <= 256


Blocks = BlocksStored | BlocksRemoved
