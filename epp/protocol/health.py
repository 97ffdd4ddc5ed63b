"""`grpc.health.v1` as bytes: few enough messages to be read and written by hand.

`HealthCheckRequest` is `string service = 1`, `HealthCheckResponse` is `ServingStatus status = 1`,
`HealthListResponse` is `map<string, HealthCheckResponse> statuses = 1`.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum

SERVICE = "grpc.health.v1.Health"
_SERVICE_FIELD = 1
_LENGTH, _VARINT = 2, 0
_FIXED = {1: 8, 5: 4}
"""Bytes of the wire types that have a fixed number of them."""
_MOST_SHIFT = 63
_MOST_FIELDS = (1 << 29) - 1


class ServingStatus(IntEnum):
    """What a service says of itself."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def service_of(request: bytes) -> str:
    """Read the service that a `HealthCheckRequest` names. Raises `ValueError` for what is none."""
    service = b""
    for field, value in _fields(request):
        if field == _SERVICE_FIELD:
            service = value
    return service.decode()


def answer(status: ServingStatus) -> bytes:
    """Write a `HealthCheckResponse`."""
    return bytes((_SERVICE_FIELD << 3, status))


def listing(statuses: Mapping[str, ServingStatus]) -> bytes:
    """Write a `HealthListResponse`."""
    return b"".join(
        _nested(1, _nested(1, service.encode()) + _nested(2, answer(status)))
        for service, status in statuses.items()
    )


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Give the fields that have a length, with their numbers; pass over all others."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= _MOST_FIELDS:
            raise ValueError(f"no field has the number {number}")
        if kind == _VARINT:
            _, at = _varint(data, at)
            continue
        if kind == _LENGTH:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} is not read")
        at += size
        if at > len(data):
            raise ValueError("the message ends amid a field")
        if kind == _LENGTH:
            yield number, data[at - size : at]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift <= _MOST_SHIFT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
    raise ValueError("the message ends amid a number")


def _nested(number: int, inside: bytes) -> bytes:
    """Make a field of what is inside it, which here is never long."""
    return bytes((number << 3 | _LENGTH, len(inside))) + inside
