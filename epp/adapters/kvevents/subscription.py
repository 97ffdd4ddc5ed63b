"""One endpoint's publisher: its sockets, its feed, and what was said of it."""

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
"""Messages of one socket that are taken in before others have their turn."""
_QUEUE = 100_000
_SEQUENCE_BYTES = 8
_HEARTBEAT_MS = 5_000
_HEARTBEATS_MISSED = 3
_MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Inbox:
    """What a socket has received, for one reader on the event loop."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.FD, self._ready.set)

    async def take(self) -> list[list[bytes]]:
        """Wait for messages and take some of them; never empty."""
        while True:
            self._ready.clear()
            messages: list[list[bytes]] = []
            # The descriptor tells of changes only, so all must be taken before it is waited for.
            with suppress(zmq.Again):
                while len(messages) < _AT_ONCE:
                    messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
                self._ready.set()
            if messages:
                return messages
            await self._ready.wait()

    def close(self) -> None:
        """Stop listening and close the socket."""
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=0)


class Subscription:
    """One endpoint's publisher: its sockets, its feed, and what was said of it."""

    _context: Context
    _tasks: asyncio.TaskGroup

    def __init__(
        self,
        endpoint: Endpoint,
        sources: PublisherAddresses,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
    ) -> None:
        self.endpoint = endpoint
        self.sources = sources
        self.task: asyncio.Task[None] | None = None
        self.feed = Feed(
            FeedSettings(
                topic_prefix=settings.topic_prefix,
                model=settings.model,
                rank=endpoint.rank,
                replay=bool(sources.again),
            )
        )
        self._settings = settings
        self._apply = apply
        self._name = f"kv events of {endpoint.id}"
        self._said: set[str] = set()
        self._lost = False
        self._replaying: asyncio.Task[None] | None = None

    async def run(self, context: Context) -> None:
        """Listen until cancelled."""
        self._context = context
        while True:
            await self._connect()

    async def _connect(self) -> None:
        """Listen until nobody has been there for long; then a socket may be past mending.

        ZMQ gives up on an address for good after an answer in another protocol, or a message
        larger than allowed.
        """
        socket = self._subscriber(self._context)
        monitor = Inbox(socket.get_monitor_socket(_MONITORED))
        inbox = Inbox(socket)
        try:
            socket.connect(self.sources.events)
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
            zmq.RCVHWM: _QUEUE,
            zmq.MAXMSGSIZE: settings.max_bytes,
            zmq.RECONNECT_IVL: round(1000 * first),
            zmq.RECONNECT_IVL_MAX: round(1000 * most),
            zmq.HEARTBEAT_IVL: _HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: _HEARTBEATS_MISSED * _HEARTBEAT_MS,
            zmq.IPV6: 1,
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        # All topics: one that is not as expected is better heard and said than missed.
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket

    async def _listen(self, inbox: Inbox) -> None:
        while True:
            messages = await inbox.take()
            self._hear([notice for each in messages for notice in self.feed.receive(each)])
            await asyncio.sleep(0)

    async def _watch(self, monitor: Inbox) -> None:
        """Follow the connection until there has been none for long."""
        now, patience = asyncio.get_running_loop().time, self._settings.patience
        deadline: float | None = now() + patience
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    messages = await monitor.take()
            except TimeoutError:
                if not self._lost:
                    self._hear(self.feed.lost(f"nobody publishes at {self.sources.events}"))
                return
            for message in messages:
                if parse_monitor_message(message)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    deadline = None
                    self._hear(self.feed.connected())
                elif deadline is None:  # it was there; one that hangs up at once never was
                    deadline = now() + patience
                    self.feed.disconnected()

    async def _replay(self, start: int) -> None:
        """Ask for batches again, and take them in until the publisher says that it is done."""
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVHWM, _QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, self._settings.max_bytes)
        inbox = Inbox(socket)
        try:
            socket.connect(self.sources.again)
            socket.send_multipart([b"", start.to_bytes(_SEQUENCE_BYTES, "big")])
            done = False
            while not done:
                async with asyncio.timeout(self._settings.replay_timeout):
                    messages = await inbox.take()
                done = any(not message[-1] for message in messages)
                self._hear([notice for each in messages for notice in self.feed.replayed(each)])
                await asyncio.sleep(0)
        except TimeoutError:
            self._say_once("kv_events.no_replay", {"address": self.sources.again})
            self._hear(self.feed.replay_failed())
        finally:
            inbox.close()

    def _hear(self, notices: Sequence[Notice]) -> None:
        """Act on what follows from messages, in order; changes go on together."""
        changes: list[Change] = []
        for notice in notices:
            if isinstance(notice, CacheChanges):
                changes += notice.changes
                continue
            self._pass_on(changes)
            changes = []
            self._act(notice)
        self._pass_on(changes)

    def _pass_on(self, changes: Sequence[Change]) -> None:
        if changes:
            self._apply(CacheChanged(self.endpoint.id, changes))

    def _act(self, notice: StreamUp | StreamLost | Anomaly | ReplayRequest) -> None:
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
                self._say_once(f"kv_events.{kind}", {"detail": detail})
            case ReplayRequest(start):
                self._ask(start)

    def _ask(self, start: int) -> None:
        """Ask in a task of its own; a request under way is void."""
        if self._replaying and self._replaying is not asyncio.current_task():
            self._replaying.cancel()
        name = f"{self._name}, again from {start}"
        self._replaying = self._tasks.create_task(self._replay(start), name=name)

    def _say_once(self, what: str, details: dict[str, str]) -> None:
        if what not in self._said:
            self._said.add(what)
            _log.warning(what, endpoint=self.endpoint.id, **details)
