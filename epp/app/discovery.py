"""Where the endpoints come from: a file, or a pool in Kubernetes."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from epp.adapters.endpoints_file import EndpointsFile
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.model.events import Event
from epp.protocol.routing_table import NO_ROUTING, RoutingTable

Source = Path | KubeSettings
"""A file, or which pool."""


class Discovery(Protocol):
    """Tells what happens to endpoints: `load`, then `run` for as long as requests are served."""

    @property
    def ready(self) -> bool:
        """Whether everything was told, and this replica is the one that traffic should come to."""

    @property
    def routing(self) -> RoutingTable:
        """What requests are routed by besides endpoints, as it is at the moment."""

    async def load(self) -> None:
        """Begin. Raises `ConfigError` where that cannot be done."""

    async def run(self) -> None:
        """Follow what changes; never returns."""

    async def release_lease(self) -> None:
        """Let other replicas have the traffic."""


class FileDiscovery:
    """Endpoints of a file, which says nothing of requests."""

    ready = True
    routing = NO_ROUTING

    def __init__(self, path: Path, apply: Callable[[Event], None]) -> None:
        self._file = EndpointsFile(path, apply)
        self.run = self._file.run

    async def load(self) -> None:
        """Read the file. Raises `ConfigError`."""
        self._file.load()

    async def release_lease(self) -> None:
        """Nothing: there are no others."""


def discovery_of(
    source: Source, apply: Callable[[Event], None], changed: Callable[[], None]
) -> Discovery:
    """Build what tells `apply` of the endpoints; `changed` is called when `ready` changes."""
    if isinstance(source, Path):
        return FileDiscovery(source, apply)
    from epp.adapters.kube.kube_discovery import KubeDiscovery  # noqa: PLC0415 (its client takes long)

    return KubeDiscovery(source, apply, changed)


class Reviewer(Protocol):
    """Says of a bearer token and a path whether the one may read the other."""

    async def review(self, token: str, path: str) -> HTTPStatus:
        """Give 200, or what to answer instead."""

    async def close(self) -> None:
        """Ask no more."""


def reviewer_of(access: KubeAccess | None) -> Reviewer | None:
    """Build what asks a Kubernetes API, if one is to be asked."""
    if access is None:
        return None
    from epp.adapters.kube.reviews import TokenReviewer  # noqa: PLC0415 (see above)

    return TokenReviewer(access)
