"""A Redis or Valkey server through which replicas share what they see, and its address."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from epp.model.endpoint import target_of

DEFAULT_PORT: Final = 6379
_SCHEMES: Final = ("redis", "rediss")
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""The options of an address, as redis-py spells them."""
_DATABASE: Final = re.compile(r"/?|/\d{1,5}")


class RedisServer(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the server, and the credentials of this replica."""

    host: str
    """Its name or IP address, without brackets."""
    port: int = DEFAULT_PORT
    """Its port."""
    database: int = 0
    """The number of the database."""
    username: str | None = None
    """The ACL user; None is `default`."""
    password_file: Path | None = None
    """The file of the user's password, which is read at each connection; None: no file."""
    password_variable: str = ""
    """The environment variable of the password; empty: no variable."""
    tls: bool = False
    """Whether the connection is TLS, and the server has a certificate for its name."""
    ssl_ca_certs: str | None = None
    """The CAs of the server's certificate, in PEM; None: those that the system trusts."""
    ssl_certfile: str | None = None
    """This replica's certificate, in PEM."""
    ssl_keyfile: str | None = None
    """Its key."""

    def __str__(self) -> str:
        return target_of(self.host, self.port)


def is_redis(text: str) -> bool:
    """Whether a text is the address of a server and not of a replica."""
    return text.partition("://")[0].lower() in _SCHEMES


def redis_server(text: str, password_file: Path | None = None) -> RedisServer:
    """Read `redis[s]://[USER@]HOST[:PORT][/DATABASE][?OPTIONS]`. Raises `ValueError`."""
    url = urlsplit(text)
    try:
        port = DEFAULT_PORT if url.port is None else url.port
    except ValueError:
        port = 0
    if not url.hostname or not port or url.fragment or not _DATABASE.fullmatch(url.path):
        raise ValueError(
            "it is not redis://[USER@]HOST[:PORT][/DATABASE], as in rediss://warmpick@redis:6379/0"
        )
    if url.password is not None:
        raise ValueError(
            "an address that others can read has no password: put it into a file, and name that"
            " with --replicas-password-file"
        )
    tls = url.scheme.lower() == "rediss"
    return RedisServer(
        host=url.hostname,
        port=port,
        database=int(url.path[1:] or 0),
        username=unquote(url.username) if url.username else None,
        password_file=password_file,
        tls=tls,
        **_options(url, tls=tls),
    )


def _options(url: SplitResult, *, tls: bool) -> dict[str, str]:
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    for name in options:
        if name not in _FILES:
            raise ValueError(f"`{name}` is not an option of it: {', '.join(_FILES)}")
    if options and not tls:
        raise ValueError(f"`{next(iter(options))}` requires rediss://")
    if options.get("ssl_keyfile") and not options.get("ssl_certfile"):
        raise ValueError("`ssl_keyfile` requires ssl_certfile")
    return options
