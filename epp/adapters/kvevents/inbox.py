"""Messages of ZMQ sockets, for readers on the event loop."""

import asyncio

import zmq

from epp.adapters.kvevents.publishers import SubscriptionSettings
from epp.adapters.kvevents.turns import EventTurns

Context = zmq.Context[zmq.Socket[bytes]]

_MAX_FRAMES = 8
"""Frames of a message that are kept; a publisher's has three, a replayed one four."""
_LIVE_QUEUE = 8
"""Messages that a SUB socket queues (ZMQ_RCVHWM), of a megabyte at most.

Further ones stay with the publisher, which queues messages too (vLLM: 100,000).
"""
_KEEPALIVE_SECONDS, _KEEPALIVES = 5, 2
"""Seconds of silence before a TCP keepalive probe, and the unanswered ones that end a connection.

ZMTP's own heartbeats end the process if a publisher goes whose messages wait for room (libzmq
4.3.5, `stream_engine_base_t::out_event`; its issues 4364 and 4767).
"""


class Inbox:
    """The messages that a ZMQ socket has received, for one reader on the event loop.

    Each is received in a turn of `turns`, and must be handled before the next one is awaited.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", turns: EventTurns) -> None:
        self._socket = socket
        self._turns = turns
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.FD, self._ready.set)

    async def receive(self) -> list[bytes]:
        """Wait for a message and return its frames, the first `_MAX_FRAMES` of them."""
        self._turns.done()  # with the one before
        while True:
            # zmq_getsockopt(3), ZMQ_FD: the descriptor signals edge-triggered, so all messages
            # must be read before it is waited for again.
            self._ready.clear()
            if self._turns.over:
                await self._turns.take()
            # To ask costs a sixth of what `zmq.Again` does.
            if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                frames = [self._socket.recv(zmq.NOBLOCK)]
                while self._socket.getsockopt(zmq.RCVMORE):
                    frame = self._socket.recv(zmq.NOBLOCK)
                    if len(frames) < _MAX_FRAMES:
                        frames.append(frame)
                    elif self._turns.over:
                        self._turns.done()
                        await self._turns.take()
                return frames
            await self._ready.wait()

    def close(self) -> None:
        """Close the socket; messages not yet received are lost."""
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=0)


def subscriber(context: Context, settings: SubscriptionSettings) -> "zmq.Socket[bytes]":
    """Return a SUB socket for all topics: an unexpected one is logged, not filtered out unseen."""
    socket = context.socket(zmq.SUB)
    first, most = settings.reconnect
    options = {
        zmq.RCVHWM: _LIVE_QUEUE,
        zmq.MAXMSGSIZE: settings.max_bytes,
        zmq.RECONNECT_IVL: round(1000 * first),
        zmq.RECONNECT_IVL_MAX: round(1000 * most),
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: _KEEPALIVE_SECONDS,
        zmq.TCP_KEEPALIVE_INTVL: _KEEPALIVE_SECONDS,
        zmq.TCP_KEEPALIVE_CNT: _KEEPALIVES,
        zmq.IPV6: 1,
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    return socket
