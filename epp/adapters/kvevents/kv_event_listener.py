"""The subscriptions to the KV events of all watched endpoints."""

import asyncio
from collections.abc import Callable

import zmq

from epp.adapters.kvevents.publishers import PublisherAddresses, SubscriptionSettings
from epp.adapters.kvevents.subscription import CacheEvent, Context, Subscription
from epp.model.endpoint import Endpoint, EndpointId
from epp.protocol.kvevents.notices import FeedCounts

_MAX_SOCKETS = 16_384
"""Sockets of the ZMQ context; its default of 1,023 is less than 3 for each of 1,000 endpoints."""


class KvEventListener:
    """Subscribes to watched endpoints and passes events of their caches to `apply`.

    A publisher that cannot be reached is lost until it can. Each kind of anomaly of one is logged
    once.
    """

    def __init__(
        self, apply: Callable[[CacheEvent], None], settings: SubscriptionSettings | None = None
    ) -> None:
        self._apply = apply
        self._settings = settings or SubscriptionSettings()
        self._subscriptions: dict[EndpointId, Subscription] = {}
        self._start: Callable[[Subscription], None] | None = None

    def watch(self, endpoint: Endpoint) -> None:
        """Subscribe to an endpoint; again if it is another engine or has other addresses."""
        addresses = PublisherAddresses.of(endpoint, self._settings)
        before = self._subscriptions.get(endpoint.id)
        if before and (before.endpoint.engine, before.addresses) == (endpoint.engine, addresses):
            return
        self.unwatch(endpoint.id)
        if addresses is None:
            return
        subscription = Subscription(endpoint, addresses, self._settings, self._apply)
        self._subscriptions[endpoint.id] = subscription
        if self._start:
            self._start(subscription)

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Cancel the subscription to an endpoint; no event of it follows."""
        subscription = self._subscriptions.pop(endpoint_id, None)
        if subscription and subscription.task:
            subscription.task.cancel()

    def counts(self) -> dict[EndpointId, FeedCounts]:
        """Return the counts of each endpoint's stream."""
        return {each.endpoint.id: each.feed.counts for each in self._subscriptions.values()}

    async def run(self) -> None:
        """Receive events until cancelled; never returns."""
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        try:
            async with asyncio.TaskGroup() as tasks:

                def start(subscription: Subscription) -> None:
                    subscription.task = tasks.create_task(
                        subscription.run(context), name=f"kv events of {subscription.endpoint.id}"
                    )

                for subscription in self._subscriptions.values():
                    start(subscription)
                self._start = start
                await asyncio.Event().wait()
        finally:
            self._start = None
            context.destroy(linger=0)
