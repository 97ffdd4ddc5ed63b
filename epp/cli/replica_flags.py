"""The flags of what replicas tell each other: `--replicas` and `--replicas-port`."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epp.cli.types import port_number, words
from epp.errors import ConfigError

if TYPE_CHECKING:  # it needs an extra
    from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings

_EXTRA = "pip install 'warmpick[replicas]'"


def add_replicas(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("several replicas")
    group.add_argument(
        "--replicas",
        type=words,
        action="extend",
        default=[],
        metavar="HOSTS",
        help="where this pool's other replicas listen, HOST[:PORT] separated by commas, or the name"
        " of their headless Service: all tell each other what they see of requests; needs"
        " --hash-secret-file, the same for all",
    )
    group.add_argument(
        "--replicas-port",
        type=port_number,
        default=9004,
        metavar="PORT",
        help="the port for other replicas (default: 9004; 0: any)",
    )


def replicas_of(arguments: argparse.Namespace, secret: bytes) -> "ReplicaSettings | None":
    """Return where the other replicas are; None without any. Raises `ConfigError`."""
    given: list[str] = [each for each in arguments.replicas if each]
    if not given:
        return None
    peers = peer_addresses(list(dict.fromkeys(given)))
    from epp.adapters.replicas.settings import ReplicaSettings, derive_keys  # noqa: PLC0415

    derive_keys(secret)
    return ReplicaSettings(peers=peers, port=arguments.replicas_port)


def peer_addresses(given: Sequence[str]) -> "list[PeerAddress]":
    """Read where replicas listen. Raises `ConfigError`, also if the extra is missing."""
    try:
        from epp.adapters.replicas.settings import peer_address  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigError(f"`{error.name}` is missing: {_EXTRA}", "--replicas") from error
    try:
        return [peer_address(each) for each in given]
    except ValueError as error:
        raise ConfigError(str(error), "--replicas") from error
