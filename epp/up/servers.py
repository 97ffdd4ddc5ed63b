"""The model servers of `epp up`: their URLs, and the addresses that these stand for."""

import socket
from collections.abc import Iterable, Sequence
from urllib.parse import SplitResult, urlsplit

import msgspec

from epp.errors import ConfigError
from epp.model.endpoint import LAST_PORT, canonical_ip, target_of
from epp.printable import without_user
from epp.system.host_names import of_one_family

_PORTS = {"http": 80, "https": 443}
_LONGEST_NAME, _LONGEST_LABEL = 253, 63


class ModelServer(msgspec.Struct, frozen=True):
    """The server of a URL: `host` is an IP address (IPv6 without brackets) or a host name."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The host and the port, as a URL has them."""
        return target_of(self.host, self.port)

    @property
    def tls_name(self) -> str | None:
        """The name for SNI; None for http, and for an IP address (RFC 6066 §3)."""
        return self.host if self.scheme == "https" and not self.address else None

    @property
    def address(self) -> str | None:
        """The IP address in its canonical form; None if the host is a name."""
        return ip_or_none(self.host)


class Address(msgspec.Struct, frozen=True):
    """One address at which a model server listens; `name` distinguishes it from all others.

    `server` is the authority of the URL that it comes from, empty for one of an endpoints file.
    """

    name: str
    ip: str
    port: int
    server: str = ""

    @property
    def target(self) -> str:
        """The address as `ip:port`, that of IPv6 in brackets."""
        return target_of(self.ip, self.port)


def model_servers(urls: Sequence[str]) -> tuple[ModelServer, ...]:
    """Parse URLs (`http://10.0.0.11:8000`, `https://gpu1`).

    Raises `ConfigError`, with the URL as its place, for anything but the URL of a server, for a
    path, user or query in it, and for a URL that is given twice.
    """
    servers: dict[str, ModelServer] = {}
    for url in urls:
        server = _model_server(url)
        if server.authority in servers:
            raise ConfigError("this server is given twice", url)
        servers[server.authority] = server
    return tuple(servers.values())


def any_https(servers: Iterable[ModelServer]) -> bool:
    """Return whether any of these servers is spoken to over TLS."""
    return any(server.scheme == "https" for server in servers)


def _model_server(url: str) -> ModelServer:
    example = "write http://10.0.0.11:8000"
    told = without_user(url).partition("?")[0]  # without what may be a secret
    if "://" not in url:
        example = f"write http://{url}" if _looks_whole(url) else example
        raise ConfigError(f"no http:// or https:// before the host; {example}", told)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"this is not the URL of a server; {example}", told) from None
    if parts.scheme not in _PORTS:
        raise ConfigError(f"`{parts.scheme}` is neither http nor https; {example}", told)
    if parts.username is not None:
        raise ConfigError("a user in the URL is not passed on; use --upstream-api-key-env", told)
    _refuse_path(parts, told)
    host = (parts.hostname or "").rstrip(".")
    known = ip_or_none(host)
    if known is None and not _is_name(host):
        raise ConfigError(f"`{host}` is not a host name; {example}", url)
    if port == 0:
        raise ConfigError(f"no server listens at port 0; write 1 to {LAST_PORT}", url)
    return ModelServer(parts.scheme, known or host, port or _PORTS[parts.scheme])


def _looks_whole(text: str) -> bool:
    """Return whether a text would be the URL of a server if it had `http://` in front."""
    try:
        _model_server(f"http://{text}")
    except ConfigError:
        return False
    return True


def _refuse_path(parts: SplitResult, told: str) -> None:
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        extra = parts.path + "?..." * bool(parts.query) + "#..." * bool(parts.fragment)
        raise ConfigError(f"leave out `{extra}`: clients' paths are passed on as they are", told)


def _is_name(host: str) -> bool:
    """Return whether a text may be a host's name (RFC 1123 §2.1, and `_`, as Compose has it)."""
    labels = host.split(".")
    return len(host) <= _LONGEST_NAME and all(
        0 < len(label) <= _LONGEST_LABEL
        and label.isascii()
        and label.replace("-", "").replace("_", "").isalnum()
        and label.strip("-") == label
        for label in labels
    )


def ip_or_none(text: str) -> str | None:
    """Return an IP address in its canonical form (RFC 5952), None for anything else.

    A zone becomes the number of its interface, as Envoy writes it; a zone that is not an interface
    of this machine makes it something else. In a URL the zone may begin with `%25` (RFC 6874).
    """
    ip, percent, zone = text.partition("%")
    zone = zone.removeprefix("25") or zone
    if percent and not zone.isdecimal():
        try:
            zone = str(socket.if_nametoindex(zone))
        except (OSError, ValueError):
            return None
    return canonical_ip(ip + percent + zone)


def addresses_of(
    server: ModelServer, found: Iterable[str], taken: Iterable[Address] = ()
) -> tuple[Address, ...]:
    """Return the addresses of a server whose host was resolved to the IP addresses `found`.

    They are `of_one_family`, without those that are `taken`. Addresses of a host name are also
    named after their IP address, since others may join them.
    """
    every = sorted({ip for ip in map(ip_or_none, found) if ip is not None})
    targets = {each.target for each in taken}
    made = (
        Address(
            server.authority if server.address else f"{server.authority}-{ip}",
            ip,
            server.port,
            server.authority,
        )
        for ip in of_one_family(every)
    )
    return tuple(each for each in made if each.target not in targets)
