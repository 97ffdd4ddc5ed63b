"""The ports that `epp up` listens on, checked before anything is started."""

import errno
import socket

from epp.errors import ConfigError
from epp.gateway.processes import free_port
from epp.up.servers import ip_or_none

_REASONS = {
    errno.EADDRINUSE: "another process listens there; choose another port",
    errno.EACCES: "this user may not listen there; choose a port over 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}
_WITH_LOOPBACK = {"127.0.0.1", "0.0.0.0", "::"}  # noqa: S104 (they are recognised, not bound)


def listening_ip(host: str) -> str:
    """Return the IP address to listen on. Raises `ConfigError` for a name that has none."""
    if (ip := ip_or_none(host.strip("[]"))) is not None:
        return ip
    try:
        infos = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"`{host}` is not an address of this machine", "--host") from None
    found = sorted((info[4][0] for info in infos), key=lambda ip: ":" in str(ip))
    return str(found[0])


def check_differ(ip: str, port: int, metrics_port: int) -> None:
    """Raise `ConfigError` if the port for metrics, on 127.0.0.1, is the one at `ip`, too."""
    if port == metrics_port and ip in _WITH_LOOPBACK:
        raise ConfigError("it is the same as --port; choose another", "--metrics-port")


def free_listener(ip: str, port: int, flag: str) -> int:
    """Return the port, or for 0 a free one. Raises `ConfigError` if it cannot be listened on."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ip, port or free_port(ip)))
            listener.listen()
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, error.strerror)
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"cannot listen on {ip}: {reason}", "--host") from None
            raise ConfigError(f"cannot listen on {ip}:{port}: {reason}", flag) from None
        chosen: int = listener.getsockname()[1]
        return chosen
