"""The subscription to one KV event publisher: its sockets, and the feed that reads them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from epp.adapters.kvevents.publishers import PublisherAddresses, SubscriptionSettings
from epp.model.endpoint import Endpoint
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp, Change
from epp.protocol.kvevents.feed import Feed, FeedSettings
from epp.protocol.kvevents.notices import (
    Anomaly,
    CacheChanges,
    Notice,
    ReplayRequest,
    StreamLost,
    StreamUp,
)

CacheEvent = CacheChanged | CacheFeedUp | CacheFeedLost
Context = zmq.Context[zmq.Socket[bytes]]

_log = structlog.get_logger(__name__)

_AT_ONCE = 64
"""Messages that are taken from one socket at once."""
_TURN_SECONDS = 0.002
"""How long messages are read before the event loop may run other tasks; one is read whole."""
_QUEUE = 100_000
"""Messages that the socket of a replay queues (ZMQ_RCVHWM): a ROUTER drops what has no room."""
_LIVE_QUEUE = 1_000
"""The same of a SUB socket. What has no room stays with the publisher, which queues it too."""
_SEQUENCE_BYTES = 8
_HEARTBEAT_MS = 5_000
_HEARTBEATS_MISSED = 3
"""Heartbeats without an answer (ZMQ_HEARTBEAT_TIMEOUT) after which a connection is broken."""
_MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


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
            # zmq_getsockopt(3), ZMQ_FD: the descriptor signals edge-triggered, so all messages
            # must be read before it is waited for again.
            with suppress(zmq.Again):
                while len(messages) < _AT_ONCE:
                    messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
                self._ready.set()
            if messages:
                return messages
            await self._ready.wait()

    def close(self) -> None:
        """Close the socket; messages not yet received are lost."""
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=0)


class Subscription:
    """A subscription to one endpoint's publisher, and the feed that reads its messages."""

    _context: Context
    _tasks: asyncio.TaskGroup

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: PublisherAddresses,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
    ) -> None:
        self.endpoint = endpoint
        self.addresses = addresses
        self.task: asyncio.Task[None] | None = None
        self.feed = Feed(
            FeedSettings(
                topic_prefix=settings.topic_prefix,
                model=settings.model,
                rank=endpoint.rank,
                replay=bool(addresses.replay),
            )
        )
        self._settings = settings
        self._apply = apply
        self._name = f"kv events of {endpoint.id}"
        self._warned: set[str] = set()
        self._lost = False
        self._replaying: asyncio.Task[None] | None = None

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
        socket = self._subscriber(self._context)
        monitor = Inbox(socket.get_monitor_socket(_MONITORED))
        inbox = Inbox(socket)
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

    def _subscriber(self, context: Context) -> zmq.Socket[bytes]:
        settings, socket = self._settings, context.socket(zmq.SUB)
        first, most = settings.reconnect
        options = {
            zmq.RCVHWM: _LIVE_QUEUE,
            zmq.MAXMSGSIZE: settings.max_bytes,
            zmq.RECONNECT_IVL: round(1000 * first),
            zmq.RECONNECT_IVL_MAX: round(1000 * most),
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: _HEARTBEATS_MISSED * _HEARTBEAT_MS,
            zmq.IPV6: 1,
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        # All topics: an unexpected one is logged instead of being filtered out unseen.
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket

    async def _listen(self, inbox: Inbox) -> None:
        while True:
            await self._read(await inbox.receive(), self.feed.receive)

    async def _watch(self, monitor: Inbox) -> None:
        """Follow the state of the connection; return after `patience` seconds without one."""
        now, patience = asyncio.get_running_loop().time, self._settings.patience
        deadline: float | None = now() + patience
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    messages = await monitor.receive()
            except TimeoutError:
                if not self._lost:
                    self._handle(self.feed.lost(f"no publisher at {self.addresses.events}"))
                return
            for message in messages:
                if parse_monitor_message(message)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    deadline = None
                    self._handle(self.feed.connected())
                elif deadline is None:  # not after an attempt that failed
                    deadline = now() + patience
                    self.feed.disconnected()

    async def _replay(self, start: int) -> None:
        """Request a replay, and handle its messages until the publisher ends it."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVHWM, _QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, self._settings.max_bytes)
        inbox = Inbox(socket)
        try:
            socket.connect(self.addresses.replay)
            # vLLM `ZmqEventPublisher._service_replay` expects an empty frame and the start.
            socket.send_multipart([b"", start.to_bytes(_SEQUENCE_BYTES, "big")])
            done = False
            while not done:
                async with asyncio.timeout(self._settings.replay_timeout):
                    messages = await inbox.receive()
                done = any(not message[-1] for message in messages)
                await self._read(messages, self.feed.replayed)
        except TimeoutError:
            self._warn_once("kv_events.no_replay", {"address": self.addresses.replay})
            self._handle(self.feed.replay_failed())
        finally:
            inbox.close()

    async def _read(
        self, messages: Sequence[list[bytes]], read: Callable[[Sequence[bytes]], list[Notice]]
    ) -> None:
        """Read messages in their order, for a turn of the event loop at a time."""
        now = asyncio.get_running_loop().time
        end = now() + _TURN_SECONDS
        for each in messages:
            self._handle(read(each))
            if now() > end:
                await asyncio.sleep(0)
                end = now() + _TURN_SECONDS
        await asyncio.sleep(0)

    def _handle(self, notices: Sequence[Notice]) -> None:
        """Act on notices in order; consecutive changes become one event."""
        changes: list[Change] = []
        for notice in notices:
            if isinstance(notice, CacheChanges):
                changes += notice.changes
                continue
            self._pass_on(changes)
            changes = []
            self._handle_one(notice)
        self._pass_on(changes)

    def _pass_on(self, changes: Sequence[Change]) -> None:
        if changes:
            self._apply(CacheChanged(self.endpoint.id, changes))

    def _handle_one(self, notice: StreamUp | StreamLost | Anomaly | ReplayRequest) -> None:
        match notice:
            case StreamUp(complete):
                if self._lost:
                    _log.info("kv_events.back", endpoint=self.endpoint.id)
                self._lost = False
                self._apply(CacheFeedUp(self.endpoint.id, complete))
            case StreamLost(reason):
                if not self._lost:
                    _log.warning("kv_events.lost", endpoint=self.endpoint.id, reason=reason)
                self._lost = True
                self._apply(CacheFeedLost(self.endpoint.id, reason))
            case Anomaly(kind, detail):
                self._warn_once(f"kv_events.{kind}", {"detail": detail})
            case ReplayRequest(start):
                self._start_replay(start)

    def _start_replay(self, start: int) -> None:
        """Start a replay in a task of its own; cancel the one in progress."""
        if self._replaying and self._replaying is not asyncio.current_task():
            self._replaying.cancel()
        name = f"{self._name}, replay from {start}"
        self._replaying = self._tasks.create_task(self._replay(start), name=name)

    def _warn_once(self, event: str, details: dict[str, str]) -> None:
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, endpoint=self.endpoint.id, **details)
