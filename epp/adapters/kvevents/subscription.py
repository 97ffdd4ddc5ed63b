"""The subscription to one KV event publisher: its sockets, and the feed that reads its messages."""

import asyncio
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from epp.adapters.kvevents.cache_feed import CacheEvent, CacheFeed
from epp.adapters.kvevents.inbox import Context, Inbox, subscriber
from epp.adapters.kvevents.publishers import PublisherAddresses, SubscriptionSettings
from epp.adapters.kvevents.turns import EventTurns
from epp.model.endpoint import Endpoint

_QUEUE = 100_000
"""Messages that the socket of a replay queues (ZMQ_RCVHWM): a ROUTER drops what has no room."""
_SEQUENCE_BYTES = 8
_MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Subscription:
    """A subscription to one endpoint's publisher, whose messages its `stream` reads."""

    _context: Context
    _tasks: asyncio.TaskGroup

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: PublisherAddresses,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
        turns: EventTurns,
    ) -> None:
        self.endpoint = endpoint
        self.addresses = addresses
        self.task: asyncio.Task[None] | None = None
        self.stream = CacheFeed(
            endpoint, settings, apply, self._start_replay if addresses.replay else None
        )
        self._settings = settings
        self._turns = turns
        self._name = f"kv events of {endpoint.id}"
        self._replaying: asyncio.Task[None] | None = None

    async def published(self, context: Context) -> None:
        """Wait until the publisher has published anything since the call."""
        socket = subscriber(context, self._settings)
        inbox = Inbox(socket, self._turns)
        try:
            socket.connect(self.addresses.events)
            await inbox.receive()
        finally:
            inbox.close()

    async def run(self, context: Context) -> None:
        """Listen until cancelled."""
        self._context = context
        while True:
            await self._connect()

    async def _connect(self) -> None:
        """Subscribe with one socket, until the publisher is lost.

        libzmq does not reconnect after a handshake of another protocol, nor after a message
        larger than ZMQ_MAXMSGSIZE: only another socket can.
        """
        socket = subscriber(self._context, self._settings)
        monitor = Inbox(socket.get_monitor_socket(_MONITORED), self._turns)
        inbox = Inbox(socket, self._turns)
        try:
            socket.connect(self.addresses.events)
            async with asyncio.TaskGroup() as self._tasks:
                listening = self._tasks.create_task(self._listen(inbox), name=self._name)
                await self._watch(monitor)
                listening.cancel()
                if self._replaying:
                    self._replaying.cancel()
        finally:
            socket.disable_monitor()
            monitor.close()
            inbox.close()

    async def _listen(self, inbox: Inbox) -> None:
        stream = self.stream
        while True:
            message = await inbox.receive()
            if stream.behind:  # by a replay
                await stream.catch_up(self._turns)
            stream.handle(stream.feed.receive(message))
            if stream.behind:
                await stream.catch_up(self._turns)

    async def _watch(self, monitor: Inbox) -> None:
        """Follow the state of the connection; return after `patience` seconds without one."""
        stream = self.stream
        now, patience = asyncio.get_running_loop().time, self._settings.patience
        deadline: float | None = now() + patience
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await monitor.receive()
            except TimeoutError:
                stream.feed.counts.unreachable += 1
                if not stream.lost:
                    stream.handle(stream.feed.lost(f"no publisher at {self.addresses.events}"))
                    await stream.catch_up(self._turns)
                return
            if parse_monitor_message(message)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                deadline = None
                stream.handle(stream.feed.connected())
                await stream.catch_up(self._turns)
            elif deadline is None:  # not after an attempt that failed
                deadline = now() + patience
                stream.feed.disconnected()

    async def _replay(self, start: int) -> None:
        """Request a replay, and handle its messages until the publisher ends it."""
        stream = self.stream
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVHWM, _QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, self._settings.max_bytes)
        inbox = Inbox(socket, self._turns)
        try:
            socket.connect(self.addresses.replay)
            # vLLM `ZmqEventPublisher._service_replay` expects an empty frame and the start.
            socket.send_multipart([b"", start.to_bytes(_SEQUENCE_BYTES, "big")])
            done = False
            while not done:
                async with asyncio.timeout(self._settings.replay_timeout):
                    message = await inbox.receive()
                done = not message[-1]
                stream.handle(stream.feed.replayed(message))
                await stream.catch_up(self._turns)
        except TimeoutError:
            stream.warn_once("kv_events.no_replay", {"address": self.addresses.replay})
            stream.handle(stream.feed.replay_failed())
            await stream.catch_up(self._turns)
        finally:
            inbox.close()

    def _start_replay(self, start: int) -> None:
        """Start a replay in a task of its own; cancel the one in progress."""
        if self._replaying and self._replaying is not asyncio.current_task():
            self._replaying.cancel()
        name = f"{self._name}, replay from {start}"
        self._replaying = self._tasks.create_task(self._replay(start), name=name)
