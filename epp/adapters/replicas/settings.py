"""The addresses of the other replicas, and the keys that all derive from the shared secret."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
import zmq
from zmq.utils import z85

from epp.adapters.replicas.redis_server import RedisServer
from epp.errors import ConfigError
from epp.model.endpoint import LAST_PORT, canonical_ip, target_of
from epp.protocol.replicas.messages import POOL_BYTES

DEFAULT_PORT: Final = 9004
MIN_SECRET: Final = 16
"""The least length of a secret, in bytes: keys are derived from it."""
_KEY_BYTES: Final = 32


class PeerAddress(msgspec.Struct, frozen=True):
    """A host or an IP address, without brackets, and the port that its replica listens at."""

    host: str
    port: int

    def __str__(self) -> str:
        return target_of(self.host, self.port)


class Siblings(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one pod: the workers of one process."""

    folder: Path
    """The folder of their sockets."""
    number: int
    """The number of this one, from 0."""
    count: int

    def endpoint(self, number: int) -> str:
        """Return the endpoint at which a worker listens."""
        return f"ipc://{self.folder / f'replica-{number}'}"

    def others(self) -> list[str]:
        """Return the endpoints at which the others listen."""
        return [self.endpoint(each) for each in range(self.count) if each != self.number]


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica finds the others, and what it waits for."""

    peers: Sequence[PeerAddress]
    """Addresses of the others. A name stands for all of its addresses, this replica's too."""
    port: int = DEFAULT_PORT
    """The port at which this one listens; 0: any free one."""
    siblings: Siblings | None = None
    """The other workers of this process, if it has several."""
    redis: RedisServer | None = None
    """The server through which replicas share what they see, in place of ports."""
    reconnect: tuple[float, float] = (0.1, 2.0)
    """Seconds between attempts to connect, at first and at most."""
    look_up: float = 5.0
    """Seconds between two look-ups of names."""
    warm_limit: float = 5.0
    """Seconds that a start may wait for another replica's snapshot."""
    alone: float = 5.0
    """Seconds without another replica after which that is logged."""


class Keys(msgspec.Struct, frozen=True):
    """The one pair of CURVE keys (Z85) that all replicas have, by which they are recognized."""

    public: bytes
    secret: bytes


def derive_keys(secret: bytes) -> Keys:
    """Return the keys of a secret. Raises `ConfigError` for a short one."""
    if len(secret) < MIN_SECRET:
        raise ConfigError(
            f"replicas share a secret of at least {MIN_SECRET} bytes; make one with"
            " `openssl rand -base64 32 > FILE`, the same for all of them",
            "--hash-secret-file",
        )
    private = blake2b(key=secret, digest_size=_KEY_BYTES, person=b"replica keys").digest()
    encoded = z85.encode(private)
    return Keys(zmq.curve_public(encoded), encoded)


def mark_of(secret: bytes, pool: str) -> bytes:
    """Return a keyed hash of a pool's name, which distinguishes messages of other pools."""
    name = pool.encode(errors="surrogateescape")
    return blake2b(name, key=secret, digest_size=POOL_BYTES, person=b"replica pool").digest()


def peer_address(text: str) -> PeerAddress:
    """Read `HOST`, `HOST:PORT` or `[IPV6]:PORT`. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or canonical_ip(text):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    named = bool(host) and (":" not in host or canonical_ip(host) is not None)
    if not named or not port.isdecimal() or not 1 <= int(port) <= LAST_PORT:
        raise ValueError(f"`{text}` is not a host and a port, as in picker-0.pickers:9004")
    return PeerAddress(host, int(port))
