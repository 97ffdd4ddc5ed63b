"""The flags of the exchange between replicas, and the command `epp replicas`."""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from epp.adapters.replicas.redis_server import RedisServer, is_redis, redis_server
from epp.app.process import file_of
from epp.cli.files import hash_secret, read
from epp.cli.llm_d_router_flags import Notice
from epp.cli.types import FILE, INTERVAL, PORT, number, words
from epp.config.data_sources import RedisSyncer
from epp.errors import ConfigError
from epp.printable import printable

if TYPE_CHECKING:  # it needs an extra
    from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings
    from epp.app.replicas.diff import CacheDiff

_MAX_WORKERS = 64
_EXTRA = "pip install 'warmpick[replicas]'"
_REDIS_EXTRA = "pip install 'warmpick[redis]'"
_TEXT = """Ask two replicas what they believe the caches of all endpoints hold, and show where they
differ. Exit status: 0 if they agree, apart from updates that are under way; 1 if they do not; 2 if
one does not answer."""


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
        " of their headless Service; or the one Redis or Valkey server that all write to and read,"
        " redis[s]://[USER@]HOST[:PORT][/DATABASE]. Replicas share what they see of requests; all"
        " need the same --hash-secret-file",
    )
    group.add_argument(
        "--replicas-password-file",
        **FILE,
        help="the password for the server of --replicas redis://..., read at each connection",
    )
    group.add_argument(
        "--replicas-port",
        **PORT,
        default=9004,
        help="the port for other replicas (default: 9004; 0: any)",
    )
    group.add_argument(
        "--workers",
        **number(_MAX_WORKERS),
        default=1,
        help="processes that serve the same ports as one picker and share what they see, each with"
        " the load of a core; needs --transport native (default: 1)",
    )


def replicas_of(
    arguments: argparse.Namespace, secret: bytes, syncer: RedisSyncer | None = None
) -> "ReplicaSettings | None":
    """Return the addresses of the other replicas; None without any. Raises `ConfigError`.

    `syncer` is the server that the configuration file names; the flag overrides it. Without a
    secret it has no effect, since llm-d-router's configurations have none.
    """
    given: list[str] = [each for each in arguments.replicas if each]
    server = _server(given, arguments.replicas_password_file)
    if not given and syncer is not None and secret:
        _check_extra()
        server = RedisServer(
            host=syncer.host,
            port=syncer.port,
            database=syncer.db,
            password_file=Path(syncer.password_file) if syncer.password_file else None,
            password_variable=syncer.password_env,
        )
    if not given and server is None:
        return None
    peers = peer_addresses(list(dict.fromkeys(given))) if server is None else []
    from epp.adapters.replicas.settings import ReplicaSettings, derive_keys  # noqa: PLC0415

    derive_keys(secret)
    return ReplicaSettings(peers=peers, port=arguments.replicas_port, redis=server)


def _server(given: Sequence[str], password_file: Path | None) -> RedisServer | None:
    """Return the server that `--replicas` names, if it names one. Raises `ConfigError`."""
    servers = [each for each in given if is_redis(each)]
    if not servers:
        if password_file is not None:
            raise ConfigError("it requires --replicas redis://...", "--replicas-password-file")
        return None
    if len(given) > 1:
        raise ConfigError("give either one Redis server, or hosts", "--replicas")
    _check_extra()
    if password_file is not None:
        read(password_file, "--replicas-password-file")
    try:
        server = redis_server(servers[0], password_file)
    except ValueError as error:
        raise ConfigError(str(error), "--replicas") from None
    if server.tls:
        _check_files(server)
    return server


def _check_files(server: RedisServer) -> None:
    """Raise `ConfigError` for a file that no connection could use."""
    from epp.adapters.scrape.client_tls import ClientTlsSettings, client_tls  # noqa: PLC0415 (slow)

    files = ClientTlsSettings(
        verify=True,
        authorities=server.ssl_ca_certs or "",
        certificate=server.ssl_certfile or "",
        key=server.ssl_keyfile or server.ssl_certfile or "",
    )
    with file_of("--replicas"):
        client_tls(files)


def _check_extra() -> None:
    missing = [each for each in ("redis", "hiredis", "zmq") if find_spec(each) is None]
    if missing:
        raise ConfigError(f"`{missing[0]}` is missing: {_REDIS_EXTRA}", "--replicas")


def replica_notices(arguments: argparse.Namespace, syncer: RedisSyncer | None) -> Iterator[Notice]:
    """Yield a notice if the server that the configuration file names has no effect."""
    if syncer is not None and not arguments.replicas and arguments.hash_secret_file is None:
        why = "replicas share a secret, which --hash-secret-file names: `openssl rand -base64 32`"
        yield Notice("config.without_effect", "dataLayer.crossReplica", why)


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


def add_replica_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands below `epp replicas`."""
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    compare = commands.add_parser("diff", help="compare two replicas", description=_TEXT)
    compare.add_argument("replicas", nargs=2, metavar="HOST[:PORT]", help="where they listen")
    compare.add_argument("--hash-secret-file", **FILE, required=True, help="their secret")
    compare.add_argument(
        "--pool-name", default="default", metavar="NAME", help="their pool (default: default)"
    )
    compare.add_argument(
        "--timeout",
        **INTERVAL,
        default=10.0,
        help="how long they may take to answer (default: 10s)",
    )
    compare.set_defaults(run=_diff)


def _diff(arguments: argparse.Namespace) -> int:
    first, second = peer_addresses(arguments.replicas)
    from epp.app.replicas.diff import diff  # noqa: PLC0415 (an extra)

    secret = hash_secret(arguments.hash_secret_file)
    found = asyncio.run(diff((first, second), secret, arguments.pool_name, arguments.timeout))
    print(*_table(found), sep="\n")
    return int(any(each.differs for each in found))


def _table(found: "Sequence[CacheDiff]") -> list[str]:
    width = max([8, *(len(each.endpoint) for each in found)])
    head = f"{'ENDPOINT':{width}} {'FIRST':>9} {'SECOND':>9} {'ONLY 1ST':>9} {'ONLY 2ND':>9}"
    lines = [head]
    for each in found:
        counts = each.first, each.second, each.only_first, each.only_second
        columns = " ".join(f"{count:9}" for count in counts)
        said = "another start" if each.restarted else "differs" if each.differs else ""
        lines.append(f"{printable(each.endpoint):{width}} {columns} {said}".rstrip())
    apart = sum(each.differs for each in found)
    lines.append(f"{apart} of {len(found)} endpoints differ")
    return lines
