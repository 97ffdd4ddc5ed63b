"""One connection to a Redis or Valkey server: commands are sent together, with a time limit."""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from epp.adapters.replicas.redis_server import RedisServer
from epp.errors import ConfigError
from epp.system.files import read_regular

Command = tuple[bytes | int, ...]

FAILURES: Final = (RedisError, OSError, TypeError, ValueError, ConfigError)
"""What a connection raises once it is broken."""
ANSWER_SECONDS: Final = 2.0
"""How long the server may take to answer: a stopped process never does."""
_MAX_PASSWORD: Final = 4096


class RedisLink:
    """A connection, until `close`. All other methods raise one of `FAILURES`."""

    def __init__(self, server: RedisServer) -> None:
        self._server: Final = server
        self._connection: Connection | None = None

    async def open(self) -> None:
        """Connect, and authenticate."""
        self._connection = connection = _connection(self._server)
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]

    async def ask(self, commands: Sequence[Command], patience: float = 0.0) -> list[object]:
        """Send commands together; return their answers. They may block for `patience` seconds."""
        connection = self._connection
        if connection is None:
            raise ConnectionError("it is closed")
        packed = [part for each in commands for part in connection.pack_command(*each)]
        async with asyncio.timeout(ANSWER_SECONDS + patience):
            await connection.send_packed_command(packed, check_health=False)
            return [await connection.read_response() for _ in commands]

    async def close(self) -> None:
        """Close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def _connection(server: RedisServer) -> Connection:
    """Return a connection by the settings. Raises `ConfigError` for an unreadable file."""
    made: Callable[..., Connection] = Connection
    if server.tls:
        made = partial(
            SSLConnection,
            ssl_ca_certs=server.ssl_ca_certs,
            ssl_certfile=server.ssl_certfile,
            ssl_keyfile=server.ssl_keyfile,
        )
    return made(
        host=server.host,
        port=server.port,
        db=server.database,
        username=server.username,
        password=_password(server),
        client_name="warmpick",
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None,
        socket_connect_timeout=None,
    )


def _password(server: RedisServer) -> str | None:
    if server.password_file is None:
        return os.environ.get(server.password_variable)
    return read_regular(server.password_file, _MAX_PASSWORD).strip().decode()
