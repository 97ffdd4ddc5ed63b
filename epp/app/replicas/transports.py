"""How messages reach the other replicas: straight to their ports, or by a server in between."""

from collections.abc import Callable
from typing import NamedTuple

from epp.adapters.replicas.mesh import ReplicaMesh
from epp.adapters.replicas.settings import ReplicaSettings, derive_keys
from epp.adapters.replicas.transport import Receive, Transport, Transports
from epp.protocol.replicas.messages import Dropped


class Place(NamedTuple):
    """Where a replica is among the others."""

    settings: ReplicaSettings
    secret: bytes
    bind_address: str
    pool: str
    """Namespace and name."""


class Callbacks(NamedTuple):
    """What is called with messages of others."""

    far: Receive
    near: Receive
    """With those of other workers of this process."""
    dropped: Callable[[Dropped], None]
    """With the reason, for what is not used."""


def transport_of(place: Place, callbacks: Callbacks) -> Transport:
    """Return what the settings name. Raises `ConfigError` for a secret that is too short."""
    settings, keys = place.settings, derive_keys(place.secret)
    parts: list[Transport] = []
    if settings.redis is None or settings.siblings is not None:
        parts.append(
            ReplicaMesh(
                settings,
                keys,
                place.bind_address,
                callbacks.far,
                lambda: callbacks.dropped(Dropped.STRANGER),
                near=callbacks.near,
            )
        )
    if settings.redis is not None:
        from epp.adapters.replicas.streams import RedisStreams  # noqa: PLC0415 (an extra)

        parts.append(
            RedisStreams(settings.redis, place.secret, place.pool, callbacks.far, callbacks.dropped)
        )
    return parts[0] if len(parts) == 1 else Transports(parts)
