"""Messages of `grpc.health.v1`, encoded and decoded by hand.

`HealthCheckRequest` is `string service = 1`, `HealthCheckResponse` is `ServingStatus status = 1`,
`HealthListResponse` is `map<string, HealthCheckResponse> statuses = 1`.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum

SERVICE = "grpc.health.v1.Health"
_SERVICE_FIELD = 1
_LENGTH, _VARINT = 2, 0
_FIXED = {1: 8, 5: 4}
"""Bytes of the wire types of fixed size (Protocol Buffers encoding: I64, I32)."""
_SHORT, _LONG = 5, 10
"""The most bytes of a varint of 32 bits, as tags and lengths are, and of 64 bits."""
_MAX_FIELD_NUMBER = (1 << 29) - 1
"""Protocol Buffers language guide, "Assigning Field Numbers"."""


class ServingStatus(IntEnum):
    """`HealthCheckResponse.ServingStatus`."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def service_of(request: bytes) -> str:
    """Return the service of a `HealthCheckRequest`. Raises `ValueError` for a malformed one."""
    service = ""
    for field, value in _fields(request):
        # Protocol Buffers encoding: of a field that is repeated the last value counts.
        if field == _SERVICE_FIELD:
            service = value.decode()
    return service


def answer(status: ServingStatus) -> bytes:
    """Return an encoded `HealthCheckResponse`."""
    return bytes((_SERVICE_FIELD << 3, status))


def listing(statuses: Mapping[str, ServingStatus]) -> bytes:
    """Return an encoded `HealthListResponse`."""
    return b"".join(
        _nested(1, _nested(1, service.encode()) + _nested(2, answer(status)))
        for service, status in statuses.items()
    )


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and contents of the fields of wire type LEN; skip all others."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= _MAX_FIELD_NUMBER:
            raise ValueError(f"no field has the number {number}")
        if kind == _VARINT:
            _, at = _varint(data, at, _LONG)
            continue
        if kind == _LENGTH:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} is not supported")
        at += size
        if at > len(data):
            raise ValueError("the message ends in the middle of a field")
        if kind == _LENGTH:
            yield number, data[at - size : at]


def _varint(data: bytes, at: int, most: int = _SHORT) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + most]):
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, at + place + 1
    raise ValueError("the message ends in the middle of a number")


def _nested(number: int, inside: bytes) -> bytes:
    """Return a field of wire type LEN, whose content must have fewer than 128 bytes."""
    return bytes((number << 3 | _LENGTH, len(inside))) + inside
