"""Listens to the KV events of all endpoints that it is told to watch."""

import asyncio
from collections.abc import Callable

import zmq

from epp.adapters.kvevents.publishers import PublisherAddresses, SubscriptionSettings
from epp.adapters.kvevents.subscription import CacheEvent, Context, Subscription
from epp.model.endpoint import Endpoint, EndpointId
from epp.protocol.kvevents.notices import FeedCounts

_MOST_SOCKETS = 16_384


class KvEventListener:
    """Listens to what it is told to watch, and tells changes of caches through `apply`.

    A publisher that cannot be reached is lost until it can. What is odd about one is logged once.
    """

    def __init__(
        self, apply: Callable[[CacheEvent], None], settings: SubscriptionSettings | None = None
    ) -> None:
        self._apply = apply
        self._settings = settings or SubscriptionSettings()
        self._subscriptions: dict[EndpointId, Subscription] = {}
        self._start: Callable[[Subscription], None] | None = None

    def watch(self, endpoint: Endpoint) -> None:
        """Listen to this endpoint from now on; another engine under the same id starts afresh."""
        sources = PublisherAddresses.of(endpoint, self._settings)
        before = self._subscriptions.get(endpoint.id)
        if before and (before.endpoint.engine, before.sources) == (endpoint.engine, sources):
            return
        self.forget(endpoint.id)
        if sources is None:
            return
        subscription = Subscription(endpoint, sources, self._settings, self._apply)
        self._subscriptions[endpoint.id] = subscription
        if self._start:
            self._start(subscription)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Stop listening to an endpoint; nothing is told of it any more."""
        subscription = self._subscriptions.pop(endpoint_id, None)
        if subscription and subscription.task:
            subscription.task.cancel()

    def counts(self) -> dict[EndpointId, FeedCounts]:
        """Tell what each endpoint's stream was like so far."""
        return {each.endpoint.id: each.feed.counts for each in self._subscriptions.values()}

    async def run(self) -> None:
        """Listen until cancelled; never returns."""
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
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
