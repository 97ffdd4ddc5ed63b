"""A pool's endpoints, and what routes its requests, kept as the Kubernetes API has them.

Composes what this package has: what is followed, the states that it feeds, and the election.
Everything is told by one job, in order and a few events at a time.
"""

import asyncio
import socket
import uuid
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import msgspec
import structlog

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.election import LeaseElection
from epp.adapters.kube.kube_settings import KubeSettings
from epp.adapters.kube.pool_watch import PoolWatch
from epp.adapters.kube.routing_watch import RoutingWatch
from epp.model.events import Event
from epp.protocol.kube import resources
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import GATEWAY_GROUP
from epp.protocol.kube.pool_state import PoolState
from epp.protocol.kube.resources import OBJECT_GROUPS
from epp.protocol.kube.routing_state import PoolName, RoutingState
from epp.protocol.routing_table import NO_ROUTING, RoutingTable

_log = structlog.get_logger(__name__)

_AT_ONCE = 32
"""Events that are applied before requests get their turn."""


class KubeDiscovery:
    """Tells `apply` what happens to the pool's endpoints; `load` comes before `run`.

    `ready` says whether all of them, and of what routes to them, was told, and this replica leads
    where one is to; `changed` is called when that changes. `routing` is swapped whole.
    """

    def __init__(
        self,
        settings: KubeSettings,
        apply: Callable[[Event], None],
        changed: Callable[[], None],
    ) -> None:
        self.routing: RoutingTable = NO_ROUTING
        self._settings = settings
        self._apply = apply
        self._changed = changed
        self._connection = ApiConnection(settings.access)
        self._notes = ObjectWarnings()
        self._pool = PoolState(self._notes)
        self._objects = RoutingState(
            OBJECT_GROUPS, PoolName(settings.pool, GATEWAY_GROUP), self._notes
        )
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._stale = self._told = self._was_ready = False
        where, pace = (self._connection, settings.namespace), settings.pace
        self._pods = PoolWatch(*where, self._pool, self._wake.set, pace)
        self._routers = RoutingWatch(*where, self._objects, self._reroute, pace)
        self._election = self._candidate() if settings.elect else None

    @property
    def ready(self) -> bool:
        """Whether this replica may take traffic."""
        return self._told and (self._election is None or self._election.leading)

    async def load(self) -> None:
        """Find the way to the API server, without asking it. Raises `ConfigError`."""
        await self._connection.open()
        settings = self._settings
        pool = f"{settings.namespace}/{settings.pool}"
        _log.info("kube.following", api=self._connection.host, pool=pool)
        if settings.selector is not None:
            self._pool.select(settings.selector, settings.ports)

    async def run(self) -> NoReturn:
        """Follow the pool until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell())
                tasks.create_task(self._routers.run())
                tasks.create_task(self._pods.follow_pods())
                if self._settings.selector is None:
                    tasks.create_task(self._pods.follow_pool(self._settings.pool))
                if self._election is not None:
                    tasks.create_task(self._election.run())
        finally:
            await self._connection.close()
        raise RuntimeError("following a pool never ends")

    async def leave(self) -> None:
        """Let another replica lead."""
        if self._election is not None:
            await self._election.release()

    def _candidate(self) -> LeaseElection:
        settings = self._settings
        identity = settings.terms.identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        terms = msgspec.structs.replace(settings.terms, identity=identity)
        lease = resources.leases(settings.namespace), lease_name(settings.namespace, settings.pool)
        return LeaseElection(self._connection, lease, terms, self._check)

    # What is told.

    def _reroute(self) -> None:
        self._stale = True
        self._wake.set()

    async def _tell(self) -> NoReturn:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._stale:
                self._stale = False
                self.routing = self._objects.routing()
            if not self._pool.complete:
                self._told = False
                self._check()
            await self._tell_events()
            for note in self._notes.take():
                _log.warning(note.event, **note.fields)
            self._told = self._pool.complete and self._routers.complete
            self._check()

    async def _tell_events(self) -> None:
        """Apply what is to be told, in order, and let others go between."""
        self._events += self._pool.events()
        while self._events:
            for _ in range(min(_AT_ONCE, len(self._events))):
                self._apply(self._events.popleft())
            self._events += self._pool.events()
            if self._events:
                await asyncio.sleep(0)

    def _check(self) -> None:
        if self.ready != self._was_ready:
            self._was_ready = self.ready
            self._changed()


def lease_name(namespace: str, pool: str) -> str:
    """Name the lease as llm-d-router does: never do one of its replicas and one of ours lead."""
    return f"epp-{namespace}-{pool}.llm-d.ai"
