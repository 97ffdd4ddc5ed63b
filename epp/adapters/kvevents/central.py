"""One socket to which engines publish the KV events of all endpoints."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import zmq

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


class CentralSubscription:
    """Listens at `settings.central`, and passes events of the caches of known endpoints to `apply`.

    A message is of the endpoint that its topic names: by `ip:port`, by IP address, or by the name
    of its pod or its own. Of several (ranks that share a port, ports of a pod) it is the one of the
    batch's rank. A server that is one endpoint is followed by the first rank that is heard: each
    numbers its batches. `heard` is called with an endpoint when its first message comes. Nothing
    can be replayed.
    """

    def __init__(
        self,
        settings: SubscriptionSettings,
        apply: Callable[[CacheEvent], None],
        heard: Callable[[EndpointId], None],
        turns: EventTurns,
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._heard = heard
        self._turns = turns
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
        self.streams.pop(endpoint_id, None)
        self._ranks.pop(endpoint_id, None)
        if endpoint is None:
            return
        for name in _names(endpoint):
            self._named[name].remove(endpoint)
            if not self._named[name]:
                del self._named[name]

    async def run(self, context: Context) -> None:
        """Listen until cancelled."""
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
        """Handle one message."""
        endpoint = self._endpoint_of(frames)
        if endpoint is None:
            return
        stream = self.streams.get(endpoint.id)
        if stream is None:
            stream = self.streams[endpoint.id] = CacheFeed(endpoint, self._settings, self._apply)
            self._heard(endpoint.id)
            stream.handle(stream.feed.connected())
        rank = rank_of(frames[-1])
        if rank is not None and rank != (followed := self._followed(endpoint, rank)):
            stream.warn_once("kv_events.rank", {"detail": f"of rank {rank}, not {followed}"})
            return
        stream.handle(stream.feed.receive(frames))
        await stream.catch_up(self._turns)

    def _followed(self, endpoint: Endpoint, heard: int) -> int:
        """Return the rank whose batches are an endpoint's: its own, else the first one heard."""
        if endpoint.rank is not None:
            return endpoint.rank
        return self._ranks.setdefault(endpoint.id, heard)

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
    """Yield what a topic may call an endpoint, each name once."""
    yield from dict.fromkeys(
        (endpoint.target, endpoint.address, endpoint.name, endpoint.pod or endpoint.name)
    )
