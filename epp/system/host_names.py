"""Host names and their addresses; a name server may list only some at a time."""

import errno
import select
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from epp.errors import reason

MAX_ADDRESSES = 1_024
"""Addresses of a name that are used."""
KEPT_SECONDS = 600.0
"""How long an address that is not listed any more is kept, if it answers."""
_ANSWER_SECONDS = 1.0


def host_of(url: str) -> str:
    """Return the host of a server's http or https URL; empty for what cannot be connected to."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as looking it up does
    except ValueError:  # a port above 65535, half of an IPv6 address, a name with `..`
        return ""
    return host if parts.scheme in {"http", "https"} and port != 0 else ""


class Resolved(NamedTuple):
    """The IP addresses of a name, those that are listed first, and a problem for people, or ""."""

    addresses: tuple[str, ...]
    problem: str


class HostNames:
    """Resolves host names, in the thread that calls it; `clock` returns seconds.

    A name keeps its addresses while no name server answers. A name server may list a different few
    of many addresses each time. If it lists several of one family, those that it listed before stay
    for `KEPT_SECONDS`, as long as they answer. If there are more than `MAX_ADDRESSES`, known ones
    are preferred.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        lookup: Callable[[str], Iterable[str]] | None = None,
        answers: Callable[[Collection[str], int], Collection[str]] | None = None,
    ) -> None:
        self._clock = clock
        self._lookup = lookup or _lookup
        self._answers = answers or answering
        self._known: dict[tuple[str, int], dict[str, float]] = {}

    def resolve(self, name: str, port: int) -> Resolved:
        """Return the addresses of a name whose servers listen at a port."""
        known = self._known.get((name, port), {})
        try:
            listed = dict.fromkeys(self._lookup(name), self._clock())
            kept = self._kept(known, listed, port)
        except (OSError, UnicodeError) as error:
            return Resolved(tuple(known), f"{name} cannot be resolved: {reason(error)}")
        again = {ip: at for ip, at in listed.items() if ip in known}
        found = dict(list((again | listed | kept).items())[:MAX_ADDRESSES])
        self._known[name, port] = found
        problem = f"{name} has more than {MAX_ADDRESSES} addresses: the others are not used"
        return Resolved(tuple(found), problem if len(listed) > MAX_ADDRESSES else "")

    def _kept(
        self, known: Mapping[str, float], listed: Collection[str], port: int
    ) -> dict[str, float]:
        """Return the known addresses that are not listed and stay, with when they were listed."""
        oldest = self._clock() - KEPT_SECONDS
        recent = {ip: at for ip, at in known.items() if ip not in listed and at > oldest}
        if not recent or len({":" in ip for ip in listed}) == len(listed):
            return {}  # of one host, the name has moved there
        answer = self._answers(recent, port)
        return {ip: at for ip, at in recent.items() if ip in answer}


def _lookup(name: str) -> Iterable[str]:
    infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


def of_one_family(addresses: Iterable[str], *, six: bool = False) -> list[str]:
    """Return the IP addresses of IPv4, or with `six` of IPv6; those of the other if there are none.

    A host with addresses of both is still one host, and often listens on IPv4 only. A family to
    which this machine has no route counts only if it has none to the other either.
    """
    v4, v6 = list[str](), list[str]()
    for ip in addresses:
        (v6 if ":" in ip else v4).append(ip)
    wanted, other = (v6, v4) if six else (v4, v6)
    if wanted and other and not any(map(_routed, wanted)) and any(map(_routed, other)):
        return other
    return wanted or other


def _routed(ip: str) -> bool:
    """Return whether this machine has a route to an IP address: nothing is sent."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.connect((ip, 9))
    except OSError:
        return False
    return True


def answering(addresses: Collection[str], port: int) -> Collection[str]:
    """Return the IP addresses that take a connection within a second, all tried at once."""
    connecting: dict[int, tuple[str, socket.socket]] = {}
    answered = set()
    poll = select.poll()
    try:
        for ip in addresses:
            made = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
            connecting[made.fileno()] = ip, made
            made.settimeout(0)
            if made.connect_ex((ip, port)) in {0, errno.EINPROGRESS}:
                poll.register(made, select.POLLOUT)
            else:
                connecting.pop(made.fileno())
                made.close()
        end = time.monotonic() + _ANSWER_SECONDS
        while connecting and (left := end - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1000):
                poll.unregister(number)
                ip, made = connecting.pop(number)
                with made:
                    if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        answered.add(ip)
    finally:
        for _, made in connecting.values():
            made.close()
    return answered
