"""One socket to which engines publish the KV events of all endpoints."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import zmq

from epp.adapters.kvevents import publishers
from epp.adapters.kvevents.cache_feed import CacheEvent, CacheFeed
from epp.adapters.kvevents.inbox import Context, Inbox, subscriber
from epp.adapters.kvevents.publishers import SubscriptionSettings
from epp.adapters.kvevents.turns import EventTurns
from epp.model.endpoint import Endpoint, EndpointId
from epp.protocol.kvevents.batches import rank_of
from epp.protocol.kvevents.published_messages import publisher_of
from epp.system.logs import Log

_log = Log(__name__)

_BIND_SECONDS = 5.0
"""Seconds between two attempts to listen."""
_MAX_STRANGERS = 100
"""Unknown publishers that are logged."""
_MAX_EARLY, _MAX_EARLY_BYTES = 1000, 4 << 20
"""The latest messages that are kept for one endpoint until it is ready, and their bytes."""
_MAX_EARLY_BYTES_IN_ALL = 128 << 20
"""Bytes of the kept messages of all endpoints, besides the latest one of each."""
_OBJECT_BYTES = 256
"""What a message takes beside its bytes."""


def _size(frames: Sequence[bytes]) -> int:
    return _OBJECT_BYTES + sum(map(len, frames))


class _Room:
    """What all endpoints' early messages take."""

    def __init__(self) -> None:
        self.bytes = 0


class _EarlyMessages:
    """The messages of one endpoint that came before its pages were read."""

    def __init__(self, room: _Room) -> None:
        self._messages: deque[Sequence[bytes]] = deque()
        self._bytes = 0
        self._room = room

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, frames: Sequence[bytes]) -> None:
        """Add a message; the oldest are dropped if there are too many."""
        self._messages.append(frames)
        self._count(_size(frames))
        while len(self) > _MAX_EARLY or (len(self) > 1 and self._too_long):
            self.pop()

    @property
    def _too_long(self) -> bool:
        return self._bytes > _MAX_EARLY_BYTES or self._room.bytes > _MAX_EARLY_BYTES_IN_ALL

    def pop(self) -> Sequence[bytes]:
        """Return and remove the oldest message."""
        frames = self._messages.popleft()
        self._count(-_size(frames))
        return frames

    def clear(self) -> None:
        self._messages.clear()
        self._count(-self._bytes)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._room.bytes += size


class CentralSubscription:
    """Listens at `settings.central`, and passes events of the caches of known endpoints to `apply`.

    A message belongs to the endpoint that its topic names: by `ip:port`, IP address, its own name
    or its pod's. If there are several (ranks that share a port, ports of a pod), the batch's rank
    decides. If a server of several ranks is one endpoint, only the rank of the first message is
    followed, as each numbers its batches. `on_first` is called with an endpoint when its first
    message comes. Nothing can be replayed, so messages that come before an endpoint is `ready` are
    kept for it, but for `PAGE_SECONDS` at most: it publishes, even if its pages do not come.
    """

    _tasks: asyncio.TaskGroup

    def __init__(
        self,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
        on_first: Callable[[EndpointId], None],
        turns: EventTurns,
        ready: Callable[[EndpointId], Awaitable[None]] | None = None,
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._on_first = on_first
        self._turns = turns
        self._ready = ready
        self._early: dict[EndpointId, tuple[_EarlyMessages, asyncio.Task[None]]] = {}
        self._room = _Room()
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._named: dict[str, list[Endpoint]] = {}
        self._ranks: dict[EndpointId, int] = {}  # the one that is followed
        self._strangers: set[str] = set()
        self._problem = ""
        self.streams: dict[EndpointId, CacheFeed] = {}
        """The streams of endpoints from which anything came."""

    def watch(self, endpoint: Endpoint) -> None:
        """Take messages of an endpoint; another engine under its id starts afresh."""
        before = self._endpoints.get(endpoint.id)
        if before is not None and before.engine == endpoint.engine:
            return
        self.unwatch(endpoint.id)
        self._endpoints[endpoint.id] = endpoint
        for name in _names(endpoint):
            self._named.setdefault(name, []).append(endpoint)

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Take no more messages of an endpoint."""
        endpoint = self._endpoints.pop(endpoint_id, None)
        self._forget(endpoint_id)
        if endpoint is None:
            return
        for name in _names(endpoint):
            self._named[name].remove(endpoint)
            if not self._named[name]:
                del self._named[name]

    def _forget(self, endpoint_id: EndpointId) -> None:
        """End an endpoint's stream; its next message begins another one."""
        stream = self.streams.pop(endpoint_id, None)
        if stream is not None:
            stream.ended = True
        self._ranks.pop(endpoint_id, None)
        early = self._early.pop(endpoint_id, None)
        if early is not None:
            early[0].clear()
            early[1].cancel()

    async def run(self, context: Context) -> None:
        """Listen until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._listen(context)
        finally:
            for endpoint_id in tuple(self._early):  # their tasks are cancelled
                self._forget(endpoint_id)

    async def _listen(self, context: Context) -> None:
        while True:
            socket = subscriber(context, self._settings)
            try:
                socket.bind(self._settings.central)
            except zmq.ZMQError as error:
                socket.close(linger=0)
                self._report(str(error))
                await asyncio.sleep(_BIND_SECONDS)
                continue
            self._report("")
            inbox = Inbox(socket, self._turns)
            try:
                while True:
                    await self._receive(await inbox.receive())
            finally:
                inbox.close()

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.error("kv_events.cannot_listen", address=self._settings.central, error=problem)
        if self._problem and not problem:
            _log.info("kv_events.listening", address=self._settings.central)
        self._problem = problem

    async def _receive(self, frames: Sequence[bytes]) -> None:
        endpoint = self._endpoint_of(frames)
        if endpoint is None:
            return
        stream = self.streams.get(endpoint.id)
        if stream is None:
            stream = self.streams[endpoint.id] = CacheFeed(endpoint, self._settings, self._apply)
            self._on_first(endpoint.id)
            if self._ready is None:
                stream.handle(stream.feed.connected())
            else:
                self._wait_for(stream, self._ready)
        waits = self._early.get(endpoint.id)
        if waits is None:
            await self._handle(stream, frames)
        else:
            waits[0].add(frames)

    def _wait_for(self, stream: CacheFeed, ready: Callable[[EndpointId], Awaitable[None]]) -> None:
        """Keep the messages of an endpoint until it is ready, and handle them then."""
        early, endpoint_id = _EarlyMessages(self._room), stream.endpoint.id

        async def begin() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(publishers.PAGE_SECONDS):
                    await ready(endpoint_id)
            stream.handle(stream.feed.connected())
            while early:
                await self._handle(stream, early.pop())
                self._turns.done()
                await self._turns.take()
            del self._early[endpoint_id]

        task = self._tasks.create_task(begin(), name=f"early kv events of {endpoint_id}")
        self._early[endpoint_id] = early, task

    async def _handle(self, stream: CacheFeed, frames: Sequence[bytes]) -> None:
        endpoint, rank = stream.endpoint, rank_of(frames[-1])
        if rank is not None and rank != (followed := self._followed(endpoint, rank)):
            stream.warn_once("kv_events.rank", {"detail": f"of rank {rank}, not {followed}"})
            return
        stream.handle(stream.feed.receive(frames))
        await stream.catch_up(self._turns)

    def _followed(self, endpoint: Endpoint, rank: int) -> int:
        """Return the rank whose batches an endpoint has: its own, else that of the first batch."""
        if endpoint.rank is not None:
            return endpoint.rank
        return self._ranks.setdefault(endpoint.id, rank)

    def _endpoint_of(self, frames: Sequence[bytes]) -> Endpoint | None:
        publisher = publisher_of(frames, self._settings.topic_prefix)
        found = self._named.get(publisher, [])
        if len(found) > 1:
            rank = rank_of(frames[-1])
            found = [each for each in found if rank is not None and each.engine_index == rank]
        if len(found) == 1:
            return found[0]
        if publisher not in self._strangers and len(self._strangers) < _MAX_STRANGERS:
            self._strangers.add(publisher)
            _log.warning("kv_events.stranger", publisher=publisher[:200])
        return None


def _names(endpoint: Endpoint) -> Iterator[str]:
    """Yield the names by which a topic may refer to an endpoint, each once."""
    ip = endpoint.address
    plain = f"{ip}:{endpoint.port}"  # `$(POD_IP):8000`, which has no brackets for IPv6
    yield from dict.fromkeys(
        (endpoint.target, plain, ip, endpoint.name, endpoint.pod or endpoint.name)
    )
