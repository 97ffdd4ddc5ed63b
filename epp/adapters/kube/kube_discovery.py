"""Discovery of a pool in Kubernetes: its endpoints, its routing table, and leader election.

Watches update two states; one task applies what they add up to, in order and a few events at a
time.
"""

import asyncio
import socket
import uuid
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import msgspec

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.election import LeaseElection
from epp.adapters.kube.kube_settings import KubeSettings
from epp.adapters.kube.pool_watch import PoolWatch
from epp.adapters.kube.routing_watch import RoutingWatch
from epp.model.events import Event
from epp.protocol.kube import resources
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import PoolRef
from epp.protocol.kube.pool_state import PoolState
from epp.protocol.kube.routing_state import RoutingState
from epp.protocol.routing_table import NO_ROUTING, RoutingTable
from epp.system.logs import Log

_log = Log(__name__)

_AT_ONCE = 32
"""Events that are applied before the event loop may run other tasks."""
_LONGEST_ERROR = 300


class KubeDiscovery:
    """Passes events of the pool's endpoints to `apply`; `load` comes before `run`.

    `ready` is true once all endpoints and routing objects have been applied, and while this replica
    leads or hands over if a leader is elected; `changed` is called when it changes.
    `protocol_fault` returns why requests of a pool with an `appProtocol` cannot be read, in which
    case it is not ready; empty: they can be. `routing` is replaced as a whole. `lease` is None
    without an election.
    """

    def __init__(
        self,
        settings: KubeSettings,
        apply: Callable[[Event], None],
        changed: Callable[[], None],
        protocol_fault: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.routing: RoutingTable = NO_ROUTING
        self._settings = settings
        self._apply = apply
        self._changed = changed
        self._protocol_fault = protocol_fault
        self._connection = ApiConnection(settings.access)
        self._warnings = ObjectWarnings()
        self._pool = PoolState(self._warnings)
        pool = PoolRef(settings.pool, settings.pool_group)
        self._objects = RoutingState(pool, self._warnings)
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._first_applied = asyncio.Event()
        self._routing_changed = self._applied = self._was_ready = False
        self._failed = 0
        where, reflector = (self._connection, settings.namespace), settings.reflector
        self._pods = PoolWatch(*where, self._pool, self._wake.set, reflector)
        self._routers = RoutingWatch(*where, self._objects, self._on_routing_change, reflector)
        self.lease = self._candidate() if settings.elect else None

    @property
    def ready(self) -> bool:
        """Whether this replica may take traffic."""
        return self._applied and (self.lease is None or self.lease.serving)

    async def load(self) -> None:
        """Read address and credentials of the API server; sends nothing. Raises `ConfigError`."""
        await self._connection.open()
        settings = self._settings
        pool = f"{settings.namespace}/{settings.pool}"
        _log.info("kube.following", api=self._connection.host, pool=pool)
        if settings.selector is not None:
            self._pool.select(settings.selector, settings.ports)

    async def run(self) -> NoReturn:
        """Follow the pool until cancelled."""
        if not self._connection.host:  # this was called before, and has failed
            await self._connection.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._apply_changes())
                tasks.create_task(self._routers.run())
                tasks.create_task(self._pods.follow_pods())
                if self._settings.selector is None:
                    pool = self._settings.pool, self._settings.pool_group
                    tasks.create_task(self._pods.follow_pool(*pool))
                if self.lease is not None:
                    tasks.create_task(self._stand(self.lease))
        finally:
            await self._connection.close()
        raise RuntimeError("following a pool never ends")

    async def _stand(self, election: LeaseElection) -> NoReturn:
        """Stand for election once this replica could serve.

        Otherwise one that may not list pods would lead and never be ready.
        """
        await self._first_applied.wait()
        await election.run()

    def _candidate(self) -> LeaseElection:
        settings = self._settings
        identity = settings.election.identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        config = msgspec.structs.replace(settings.election, identity=identity)
        lease = resources.leases(settings.namespace), lease_name(settings.namespace, settings.pool)
        return LeaseElection(self._connection, lease, config, self._notify)

    # Changes.

    def _on_routing_change(self) -> None:
        self._routing_changed = True
        self._wake.set()

    async def _apply_changes(self) -> NoReturn:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._routing_changed or self._objects.pool_labels != self._pool.labels:
                self._routing_changed = False
                self._objects.pool_labels = self._pool.labels
                self.routing = self._objects.routing()
            if not self._pool.complete:
                self._applied = False
                self._notify()
            await self._apply_events()
            readable = self._is_readable()
            for warning in self._warnings.drain():
                _log.warning(warning.event, **warning.fields)
            self._applied = self._pool.complete and self._routers.complete and readable
            if self._applied:
                self._first_applied.set()
            self._notify()

    def _is_readable(self) -> bool:
        """Whether requests of the pool can be read; warn of a pool that speaks another protocol."""
        name, protocol = f"pool/{self._settings.pool}", self._pool.app_protocol
        fault = self._protocol_fault(protocol)
        if not fault:
            self._warnings.clear(name)
            return True
        self._warnings.add(
            name, protocol, "pool.app_protocol_unreadable", why=fault, instead="NOT_SERVING"
        )
        return False

    async def _apply_events(self) -> None:
        """Apply all events in order; other tasks run in between."""
        self._events += self._pool.drain_events()
        while self._events:
            for _ in range(min(_AT_ONCE, len(self._events))):
                self._apply_one(self._events.popleft())
            self._events += self._pool.drain_events()
            if self._events:
                await asyncio.sleep(0)

    def _apply_one(self, event: Event) -> None:
        """Apply an event; what one runs into costs its endpoint, not the pool."""
        try:
            self._apply(event)
        except Exception as error:  # noqa: BLE001 (whatever it is)
            self._failed += 1
            if self._failed.bit_count() == 1:
                kind, said = type(event).__name__, repr(error)[:_LONGEST_ERROR]
                _log.error("endpoint.event_failed", kind=kind, error=said, count=self._failed)

    def _notify(self) -> None:
        """Call `changed` if `ready` has changed."""
        if self.ready != self._was_ready:
            self._was_ready = self.ready
            self._changed()


def lease_name(namespace: str, pool: str) -> str:
    """Return the name of the lease, llm-d-router's: its replicas and ours never lead together."""
    return f"epp-{namespace}-{pool}.llm-d.ai"
