"""Messages of ZMQ sockets, for readers on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq

from epp.adapters.kvevents.publishers import SubscriptionSettings

Context = zmq.Context[zmq.Socket[bytes]]

_AT_ONCE = 64
"""Messages that are taken from one socket at once."""
_TURN_SECONDS = 0.002
"""How long messages are taken, or read, before the event loop may run other tasks.

One is read whole.
"""
_LIVE_QUEUE = 1_000
"""Messages that a SUB socket queues (ZMQ_RCVHWM).

What has no room stays with the publisher, which queues it too.
"""
_KEEPALIVE_SECONDS, _KEEPALIVES = 5, 2
"""Silence after which TCP asks a publisher whether it is there, and how often, before a connection
is broken. ZMTP's own heartbeats end the process if a publisher goes whose messages wait for room
(libzmq 4.3.5, `stream_engine_base_t::out_event`; its issues 4364 and 4767).
"""


class Inbox:
    """The messages that a ZMQ socket has received, for one reader on the event loop."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.FD, self._ready.set)

    async def receive(self) -> list[list[bytes]]:
        """Wait for messages and return some of them, at least one."""
        while True:
            self._ready.clear()
            messages: list[list[bytes]] = []
            end = self._loop.time() + _TURN_SECONDS
            # zmq_getsockopt(3), ZMQ_FD: the descriptor signals edge-triggered, so all messages
            # must be read before it is waited for again.
            with suppress(zmq.Again):
                while len(messages) < _AT_ONCE and (not messages or self._loop.time() < end):
                    messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
                self._ready.set()
            if messages:
                return messages
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


async def in_turns(
    messages: Sequence[list[bytes]], handle: Callable[[Sequence[bytes]], None]
) -> None:
    """Handle messages in their order, for a turn of the event loop at a time."""
    now = asyncio.get_running_loop().time
    end = now() + _TURN_SECONDS
    for each in messages:
        handle(each)
        if now() > end:
            await asyncio.sleep(0)
            end = now() + _TURN_SECONDS
    await asyncio.sleep(0)
