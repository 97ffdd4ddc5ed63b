"""Publishes KV events over ZMQ as vLLM 0.32 does: PUB, and ROUTER to send batches again.

Needs pyzmq. Frames: topic, number (8 bytes, big-endian, from 0 on), msgpack batch. A subscriber
that sends the ROUTER a number gets the kept batches from that number on, one message each, and then
the number -1.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
import zmq
import zmq.asyncio

from model_server.simulator.kv_config import KvEventsConfig
from model_server.simulator.kv_events import Batch, Event

_END = (-1).to_bytes(8, "big", signed=True)
_NUMBER_BYTES = 8
_REQUEST_FRAMES = 3


class KvPublisher:
    """One engine's publisher; what is published while it is not open is lost."""

    def __init__(self, config: KvEventsConfig, host: str) -> None:
        self.config = config
        self._host = host
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._number = 0
        self._pub: zmq.Socket[bytes] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Bind the sockets; `config` then has the ports that were free. Raises OSError."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.PUB)
        try:
            socket.set_hwm(self.config.hwm)
            endpoint = self._bind(socket, self.config.endpoint)
            self.config = msgspec.structs.replace(self.config, endpoint=endpoint)
            async with self._replaying(context):
                self._pub = socket
                yield
        finally:
            self._pub = None
            socket.close(linger=0)
            context.term()

    @asynccontextmanager
    async def _replaying(self, context: "zmq.Context[zmq.Socket[bytes]]") -> AsyncIterator[None]:
        if self.config.replay_endpoint is None:
            yield
            return
        with zmq.asyncio.Socket(context, zmq.ROUTER) as router:
            router.setsockopt(zmq.LINGER, 0)
            endpoint = self._bind(router, self.config.replay_endpoint)
            self.config = msgspec.structs.replace(self.config, replay_endpoint=endpoint)
            answering = asyncio.create_task(self._answer(router), name="kv events, again")
            try:
                yield
            finally:
                answering.cancel()
                with suppress(asyncio.CancelledError):
                    await answering

    def _bind(self, socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", endpoint: str) -> str:
        """Bind; `*` is this server's host, port 0 a free one. Returns what it became."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        host = self._host if host == "*" else host.strip("[]")
        if ":" in host:
            socket.setsockopt(zmq.IPV6, 1)
            host = f"[{host}]"
        try:
            socket.bind(f"tcp://{host}:{'*' if port == '0' else port}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, zmq.strerror(error.errno or 0), endpoint) from None
        return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def publish(self, events: Sequence[Event]) -> None:
        """Send one batch to all subscribers, and keep it."""
        payload = msgspec.msgpack.encode(Batch(time.time(), events, 0))
        if self._pub is not None:  # the last steps run after the sockets are closed
            self._pub.send_multipart([self._topic, _bytes(self._number), payload])
        self._kept.append((self._number, payload))
        self._number += 1

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        while True:
            request = await router.recv_multipart()
            if len(request) != _REQUEST_FRAMES:
                continue
            who, _, start = request
            for number, payload in list(self._kept):
                if number >= int.from_bytes(start, "big"):
                    await router.send_multipart([who, b"", self._topic, _bytes(number), payload])
            await router.send_multipart([who, b"", b"", _END, b""])


def _bytes(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")
