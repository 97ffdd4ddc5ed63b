"""The subscriptions to the KV events of all watched endpoints."""

import asyncio
from collections.abc import Awaitable, Callable

import zmq

from epp.adapters.kvevents import publishers
from epp.adapters.kvevents.cache_feed import CacheEvent
from epp.adapters.kvevents.central import CentralSubscription
from epp.adapters.kvevents.inbox import Context
from epp.adapters.kvevents.publishers import PublisherAddresses, SubscriptionSettings
from epp.adapters.kvevents.subscription import Subscription
from epp.adapters.kvevents.turns import EventTurns
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.kv_changes import CacheFeedLost
from epp.protocol.kvevents.notices import FeedCounts
from epp.system.race import race

_MAX_SOCKETS = 16_384
"""Sockets of the ZMQ context; its default of 1,023 is less than 3 for each of 1,000 endpoints."""


class KvEventListener:
    """Subscribes to watched endpoints and passes events of their caches to `apply`.

    A publisher that cannot be reached is lost until it can. Each kind of anomaly of one is logged
    once. With a central address engines publish there, too; an endpoint from which anything comes
    there is no longer subscribed to by itself. `ready` waits until it is known how an endpoint's
    blocks are cut and named.
    """

    def __init__(
        self,
        apply: Callable[[CacheEvent], None],
        settings: SubscriptionSettings,
        ready: Callable[[EndpointId], Awaitable[None]] | None = None,
    ) -> None:
        self._apply = apply
        self._ready = ready
        self._settings = settings
        self._subscriptions: dict[EndpointId, Subscription] = {}
        self._start: Callable[[Subscription], None] | None = None
        self._turns = EventTurns()
        self._central: CentralSubscription | None = None
        if settings.central:
            self._central = CentralSubscription(
                settings, apply, self._unsubscribe, self._turns, ready
            )

    def watch(self, endpoint: Endpoint) -> None:
        """Subscribe to an endpoint; again if it is another engine or has other addresses.

        If it is no longer subscribed to, its feed is lost.
        """
        if self._central is not None:
            self._central.watch(endpoint)
            if endpoint.id in self._central.streams:
                return
        addresses = PublisherAddresses.of(endpoint, self._settings)
        before = self._subscriptions.get(endpoint.id)
        if before and (before.endpoint.engine, before.addresses) == (endpoint.engine, addresses):
            return
        self._unsubscribe(endpoint.id)
        if addresses is None:
            if before:
                self._apply(CacheFeedLost(endpoint.id, "it is not subscribed to any more"))
            return
        subscription = Subscription(endpoint, addresses, self._settings, self._apply, self._turns)
        self._subscriptions[endpoint.id] = subscription
        if self._start:
            self._start(subscription)

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Cancel the subscription to an endpoint; no event of it follows."""
        if self._central is not None:
            self._central.unwatch(endpoint_id)
        self._unsubscribe(endpoint_id)

    def _unsubscribe(self, endpoint_id: EndpointId) -> None:
        subscription = self._subscriptions.pop(endpoint_id, None)
        if subscription and subscription.task:
            subscription.stream.ended = True  # its tasks may be about to handle a message
            subscription.task.cancel()

    def counts(self) -> dict[EndpointId, FeedCounts]:
        """Return the counts of each endpoint's stream."""
        streams = [each.stream for each in self._subscriptions.values()]
        if self._central is not None:
            streams += self._central.streams.values()
        return {each.endpoint.id: each.feed.counts for each in streams}

    async def _follow(self, subscription: Subscription, context: Context) -> None:
        """Await an endpoint's pages, `PAGE_SECONDS` at most once it publishes; then follow it."""

        async def without_pages() -> None:
            await subscription.published(context)
            await asyncio.sleep(publishers.PAGE_SECONDS)

        if self._ready is not None:
            await race(self._ready(subscription.endpoint.id), without_pages())
        await subscription.run(context)

    async def run(self) -> None:
        """Receive events until cancelled; never returns."""
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        try:
            async with asyncio.TaskGroup() as tasks:

                def start(subscription: Subscription) -> None:
                    subscription.task = tasks.create_task(
                        self._follow(subscription, context),
                        name=f"kv events of {subscription.endpoint.id}",
                    )

                for subscription in self._subscriptions.values():
                    start(subscription)
                self._start = start
                if self._central is not None:
                    tasks.create_task(self._central.run(context), name="kv events of all")
                await asyncio.Event().wait()
        finally:
            self._start = None
            context.destroy(linger=0)
