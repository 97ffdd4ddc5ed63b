"""Arrays of msgpack that are read a part at a time, whatever their length.

A number takes one to nine bytes (msgpack spec, int format family), so that a part's end is found
by going through it.
"""

import re
import sys
from array import array
from collections.abc import Iterator

import msgspec

_LENGTHS = {0xDC: 2, 0xDD: 4}
"""First bytes of array 16 and array 32, and how many bytes of length follow."""
_LONGEST_HEAD = 5
_FIXED = range(0x90, 0xA0)
"""First bytes of a fixarray, which have the length in them."""

MAX_NUMBERS = 1 << 15
"""Numbers of one part: a millisecond or two."""
_NUMBER = rb"[\x00-\x7f\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xce\xd2].{4}|[\xcf\xd3].{8}"
_NUMBERS = re.compile(rb"(?s:%b){0,%d}+" % (_NUMBER, MAX_NUMBERS))
_IDS = msgspec.msgpack.Decoder(list[int])


class NotAnArray(ValueError):
    """The bytes are not an array, or not one of 32-bit numbers."""


def array_head(data: bytes | msgspec.Raw) -> tuple[int, int]:
    """Return an array's length, and where its first item begins. Raises `NotAnArray`."""
    head = bytes(memoryview(data)[:_LONGEST_HEAD])
    first = head[0]
    if first in _FIXED:
        return first - _FIXED.start, 1
    size = _LENGTHS.get(first)
    if size is None:
        raise NotAnArray("not an array")
    return int.from_bytes(head[1 : 1 + size], "big"), 1 + size


def read_uint32s(data: bytes | msgspec.Raw, count: int) -> Iterator[bytes]:
    """Yield the numbers of a whole array, `count` at a time, as four little-endian bytes each.

    `count` is `MAX_NUMBERS` at most. Raises `NotAnArray` once it comes to another number.
    """
    length, at = array_head(data)
    if length <= MAX_NUMBERS:
        packed = _packed(data)
        for start in range(0, 4 * length, 4 * count):
            yield packed[start : start + 4 * count]
        return
    waiting = b""
    while length:
        numbers = min(length, MAX_NUMBERS)
        match = _NUMBERS.match(memoryview(data), at)
        if match is None or not match[0]:
            raise NotAnArray("an item is not a number")
        waiting += _packed(b"\xdd" + numbers.to_bytes(4, "big") + match[0])
        length -= numbers
        at = match.end()
        ready = len(waiting) if not length else len(waiting) // (4 * count) * (4 * count)
        for start in range(0, ready, 4 * count):
            yield waiting[start : start + 4 * count]
        waiting = waiting[ready:]


def _packed(data: bytes | msgspec.Raw) -> bytes:
    try:
        packed = array("I", _IDS.decode(data))
    except (msgspec.MsgspecError, OverflowError) as error:
        raise NotAnArray("an item is not a number of 32 bits, or is below 0") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
