"""Pages of the operators' port for debugging the picker: read-only and bounded.

They are only for readers on this machine or those that the port's review admits, since decisions
contain names of models and ids of requests, which metrics do not.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import msgspec

MAX_NUMBER: Final = (1 << 63) - 1
"""The greatest number in a query."""
_MAX_FIELDS: Final = 8
_MAX_CHARACTERS: Final = 256
"""The longest value in a query."""

Query = Mapping[str, str]


class QueryRefused(Exception):
    """A query that is not answered: the reason, which the reader gets, and the status."""

    status = HTTPStatus.BAD_REQUEST


class DebugPage(msgspec.Struct, frozen=True):
    """One page. `answer` returns its body, and raises `QueryRefused`; it lets other tasks run."""

    answer: Callable[[Query], Awaitable[bytes]]
    local: bool = False
    """Whether it is for readers on this machine alone."""
    content_type: str = "application/json"
    etag: str = ""
    """The page's ETag; empty if it changes all the time."""


def read_query(text: bytes) -> Query:
    """Return a query's fields. Raises `QueryRefused` for one that is malformed."""
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError:  # `UnicodeError` is one
        raise QueryRefused("the query cannot be read") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise QueryRefused("a field is given twice in the query")
    if any(len(value) > _MAX_CHARACTERS for value in fields.values()):
        raise QueryRefused(f"a value has more than {_MAX_CHARACTERS} characters")
    return fields


def whole_number(query: Query, name: str, default: int, least: int, most: int) -> int:
    """Return a number in a query. Raises `QueryRefused`."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise QueryRefused(f"{name}: a whole number from {least} to {most}")
    return int(text)


def only(query: Query, *known: str) -> None:
    """Raise `QueryRefused` if a query has other fields."""
    for name in query:
        if name not in known:
            raise QueryRefused(f"there is no field like that; known: {', '.join(known) or 'none'}")


def is_local(peer: object) -> bool:
    """Return whether the address of a socket's peer is on this machine."""
    if not isinstance(peer, tuple) or not peer:
        return False
    address = _address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def is_rebound(host: str) -> bool:
    """Return whether a web site may have sent a request through a browser on this machine.

    `host` is the request's `Host`. A site can make its own names resolve to this machine (DNS
    rebinding), but not `localhost` or an address.
    """
    name = host.strip().lower()
    if name.startswith("["):  # RFC 3986 §3.2.2: IPv6
        return _address(name[1:].partition("]")[0]) is None
    name = name.partition(":")[0].rstrip(".")
    local = name in {"", "localhost"} or name.endswith(".localhost")
    return not local and _address(name) is None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
