"""A publisher of KV events on real ZMQ sockets, as vLLM's: PUB, and ROUTER to send again."""

import asyncio
import contextlib

import zmq
import zmq.asyncio

from tests.kvpublisher import TOPIC, Publisher, stored

DEADLINE = 10


class ZmqPublisher:
    """Publishes at `port` and, where `replays`, answers at `again`; 0 takes free ports."""

    def __init__(self, *, replays=True, topic=TOPIC, kept=10_000):
        self.publisher = Publisher()
        self.port = self.again = 0
        self.asked = []
        self._replays = replays
        self._topic = topic
        self._kept = kept
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def open(self):
        """Listen; the same ports as before where it listened before."""
        context = zmq.asyncio.Context()
        self._pub, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        router.setsockopt(zmq.SNDHWM, 1000)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # wait for room in the queue, and drop nothing
        await self._bind(self._pub, "port")
        if self._replays:
            await self._bind(router, "again")
        self._listeners = 0
        tasks = [asyncio.create_task(self._count_listeners())]
        if self._replays:
            tasks.append(asyncio.create_task(self._answer(router)))
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            context.destroy(linger=0)

    async def _bind(self, socket, name):
        wanted = getattr(self, name)
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    socket.bind(f"tcp://127.0.0.1:{wanted or '*'}")
                    break
                except zmq.ZMQError:  # the port of the one before is not given back yet
                    await asyncio.sleep(0.01)
        address = socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        setattr(self, name, int(address.rpartition(":")[2]))

    async def _count_listeners(self):
        while True:
            message = await self._pub.recv()
            async with self._changed:
                self._listeners += 1 if message[:1] == b"\x01" else -1
                self._changed.notify_all()

    async def heard(self):
        """Wait for a subscriber whose subscription has arrived."""
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(lambda: self._listeners)

    async def _answer(self, router):
        while True:
            who, _, start = await router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            with contextlib.suppress(zmq.ZMQError):  # who asked is gone
                for frames in self.publisher.replay(self.asked[-1], self._kept):
                    await router.send_multipart([who, *frames])

    async def publish(self, *events):
        _, *rest = self.publisher.publish(*events)
        await self.send([self._topic, *rest])

    async def send(self, frames):
        await self._pub.send_multipart(frames)

    async def store(self, *names):
        """A batch for each block."""
        for name in names:
            await self.publish(stored([name]))
