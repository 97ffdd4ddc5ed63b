"""Builders of the parts that may use Kubernetes: endpoint discovery, and the review of tokens."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from epp.adapters.endpoints_file import ClusterNames, EndpointsFile
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.model.events import Event
from epp.protocol.routing_table import RoutingTable

Source = Path | KubeSettings
"""The source of endpoints: a file, or a pool in Kubernetes."""


class Discovery(Protocol):
    """Applies endpoint events to the fleet: `load` first, then `run` while requests are served."""

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

    async def release_lease(self) -> None:
        """Stop being the leader, so that another replica may become ready at once."""


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
    if isinstance(source, Path):
        return EndpointsFile(source, apply, names=ClusterNames() if host_names else None)
    from epp.adapters.kube.kube_discovery import KubeDiscovery  # noqa: PLC0415 (its client takes long)

    return KubeDiscovery(source, apply, changed, protocol_fault)


class Reviewer(Protocol):
    """Decides whether the bearer of a token may read a path (TokenReview, SubjectAccessReview)."""

    async def review(self, token: str, path: str) -> HTTPStatus:
        """Return 200, or the status to refuse with: 401, 403 or 503."""

    async def close(self) -> None:
        """Close the connections to the API server."""


def build_reviewer(access: KubeAccess | None) -> Reviewer | None:
    """Return the reviewer that asks a Kubernetes API; None without access to one."""
    if access is None:
        return None
    from epp.adapters.kube.reviews import TokenReviewer  # noqa: PLC0415 (see above)

    return TokenReviewer(access)
