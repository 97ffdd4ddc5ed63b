"""Builders of the parts that may use Kubernetes: endpoint discovery, and the review of tokens."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epp.adapters.endpoints_file import ClusterNames, EndpointsFile
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.model.endpoint import Endpoint
from epp.model.events import Event, Listed
from epp.protocol.endpoints import KnownEndpoints
from epp.protocol.routing_table import RoutingTable

if TYPE_CHECKING:  # its client takes long
    from epp.adapters.kube.election import LeaseElection
    from epp.adapters.kube.reviews import TokenReviewer

Source = Path | KubeSettings | tuple[Endpoint, ...]
"""The source of endpoints: a file, a pool in Kubernetes, or the endpoints (`GivenEndpoints`)."""


class Discovery(Protocol):
    """Applies endpoint events to the fleet: `load` first, then `run` while requests are served."""

    @property
    def lease(self) -> "LeaseElection | None":
        """The lease of the leader; None if all replicas get traffic."""

    @property
    def ready(self) -> bool:
        """Whether all endpoints are known and this replica should receive traffic."""

    @property
    def routing(self) -> RoutingTable | None:
        """The current model rewrites and objectives; None if this source never has any."""

    async def load(self) -> None:
        """Read the endpoints for the first time. Raises `ConfigError` if it cannot."""

    async def run(self) -> None:
        """Follow changes; never returns."""


class GivenEndpoints:
    """Endpoints that a program gives, and may replace at any time; there are no routing rules."""

    ready = True
    lease = routing = None

    def __init__(self, endpoints: Sequence[Endpoint], apply: Callable[[Event], None]) -> None:
        self._endpoints = endpoints
        self._apply = apply
        self._known = KnownEndpoints()

    async def load(self) -> None:
        """Apply the endpoints given so far."""
        self.replace(self._endpoints)
        self._apply(Listed())

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """Apply the differences to the previous endpoints; what is known of the others is kept."""
        self._endpoints = endpoints
        for event in self._known.differences(endpoints):
            self._apply(event)

    async def run(self) -> None:
        """Wait until cancelled: `replace` makes all changes."""
        await asyncio.Event().wait()


def build_discovery(
    source: Source,
    apply: Callable[[Event], None],
    changed: Callable[[], None],
    *,
    protocol_fault: Callable[[str], str],
    host_names: bool = False,
) -> Discovery:
    """Return the discovery of a source; it calls `changed` whenever `ready` may have changed.

    With `host_names` the addresses in a file may be host names. A pool is not ready while
    `protocol_fault` finds a fault in its `appProtocol`.
    """
    if isinstance(source, tuple):
        return GivenEndpoints(source, apply)
    if isinstance(source, Path):
        return EndpointsFile(source, apply, names=ClusterNames() if host_names else None)
    from epp.adapters.kube.kube_discovery import KubeDiscovery  # noqa: PLC0415 (its client takes long)

    return KubeDiscovery(source, apply, changed, protocol_fault)


def build_reviewer(access: KubeAccess | None) -> "TokenReviewer | None":
    """Return the reviewer that asks a Kubernetes API; None without access to one."""
    if access is None:
        return None
    from epp.adapters.kube.reviews import TokenReviewer  # noqa: PLC0415 (see above)

    return TokenReviewer(access)
