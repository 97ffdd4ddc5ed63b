"""Arrays of msgpack that are read a part at a time, whatever their length.

A number takes one to nine bytes (msgpack spec, int format family), so that a part's end is found
by going through it.
"""

import re
from collections.abc import Iterator

import msgspec

from epp.protocol.bodies.token_prompts import packed

_LENGTHS = {0xDC: 2, 0xDD: 4}
"""First bytes of array 16 and array 32, and how many bytes of length follow."""
_LONGEST_HEAD = 5
_FIXED = range(0x90, 0xA0)
"""First bytes of a fixarray, which have the length in them."""

MAX_NUMBERS = 1 << 15
"""Numbers of one part: a millisecond or two."""
_NUMBER = rb"[\x00-\x7f\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xce\xd2].{4}|[\xcf\xd3].{8}"
_IDS = msgspec.msgpack.Decoder(list[int])
_PAIR_HEAD = b"\x92"
_PAIRS = msgspec.msgpack.Decoder(list[tuple[int, int]])
_MAX_PAIRS = MAX_NUMBERS // 4


def _many(item: bytes, most: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?s:%b){0,%d}+" % (item, most))


_MANY_NUMBERS = _many(_NUMBER, MAX_NUMBERS)
_MANY_PAIRS = _many(rb"%b(?:%b)(?:%b)" % (_PAIR_HEAD, _NUMBER, _NUMBER), _MAX_PAIRS)


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


def is_of_pairs(data: bytes | msgspec.Raw) -> bool:
    """Return whether an array begins with an array of two items. Raises `NotAnArray`."""
    _, at = array_head(data)
    return bytes(memoryview(data)[at : at + 1]) == _PAIR_HEAD


def read_uint32s(data: bytes | msgspec.Raw, count: int) -> Iterator[bytes]:
    """Yield the numbers of a whole array, `count` at a time, as four little-endian bytes each.

    For an array of pairs, these are the first numbers of the pairs. `count` is `MAX_NUMBERS` at
    most. Raises `NotAnArray` once it comes to something else.
    """
    length, at = array_head(data)
    pairs = is_of_pairs(data)
    most, match_many = MAX_NUMBERS, _MANY_NUMBERS.match
    if pairs:
        most, match_many = _MAX_PAIRS, _MANY_PAIRS.match
    if length <= most:
        read = _packed(data, pairs=pairs)
        for start in range(0, 4 * length, 4 * count):
            yield read[start : start + 4 * count]
        return
    waiting = b""
    while length:
        numbers = min(length, most)
        match = match_many(memoryview(data), at)
        if match is None or not match[0]:
            raise NotAnArray("an item is not a number")
        waiting += _packed(b"\xdd" + numbers.to_bytes(4, "big") + match[0], pairs=pairs)
        length -= numbers
        at = match.end()
        ready = len(waiting) if not length else len(waiting) // (4 * count) * (4 * count)
        for start in range(0, ready, 4 * count):
            yield waiting[start : start + 4 * count]
        waiting = waiting[ready:]


def _packed(data: bytes | msgspec.Raw, *, pairs: bool) -> bytes:
    try:
        return packed([one for one, _ in _PAIRS.decode(data)] if pairs else _IDS.decode(data))
    except (msgspec.MsgspecError, OverflowError) as error:
        raise NotAnArray("an item is not a number of 32 bits, or is below 0") from error
