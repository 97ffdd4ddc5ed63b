# cython: language_level=3, boundscheck=True, wraparound=False
"""ext_proc messages, read from bytes and written to bytes without an object for each part.

The contract is `codec.py`. Rare and malformed messages are left to generated code (`protobuf.py`).
Field numbers are those of `proto/ext_proc.proto`; the encoding is protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from epp.protocol.bodies.body_data cimport size_of, start_of
from epp.protocol.extproc.errors import unknown_mode
from epp.protocol.extproc.messages import (
    BodyMode, BodyReply, Chunk, HeadersReply, ImmediateReply, Modes, Reporting, TrailersReply,
    UNCHANGED, message_of,
)

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL

include "replies.pxi"

cdef enum:
    _VARINT = 0
    _EIGHT_BYTES = 1
    _LENGTH = 2
    _FOUR_BYTES = 5

cdef enum:
    _LONG = 1024  # bytes of a body, which cost more to copy than to keep apart
    _VIEWED = 1 << 14  # ... and those of a request, which cost more to copy than a view of them

cdef enum:
    _KEPT_NAMES = 256
    _LONGEST_KEPT = 64

cdef enum:  # of ProcessingRequest
    _FIRST_KIND = 2
    _FIRST_BODY = 4
    _FIRST_TRAILERS = 6
    _LAST_KIND = 7
    _METADATA = 8
    _CONFIG = 11

cdef struct Span:
    const uint8_t* at
    const uint8_t* end

cdef struct Field:
    uint64_t number
    int kind
    uint64_t value  # of a varint
    Span inside  # of what has a length


cdef bint _varint(Span* span, uint64_t* value) noexcept nogil:
    """Read a varint; return whether there was one."""
    cdef int shift = 0
    cdef uint8_t byte
    if span.at < span.end and span.at[0] < 0x80:  # as nearly all varints are
        value[0] = span.at[0]
        span.at += 1
        return True
    value[0] = 0
    while span.at < span.end and shift < 64:
        byte = span.at[0]
        span.at += 1
        value[0] |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            return shift < 63 or byte < 2
        shift += 7
    return False


cdef bint _field(Span* span, Field* field) noexcept nogil:
    """Read one field of a message; return whether it could be read.

    Tags of more than two bytes, and lengths of more than five, are doubtful.
    """
    cdef uint64_t size = 0
    cdef const uint8_t* start = span.at
    if not _varint(span, &size) or span.at - start > 2:
        return False
    field.number = size >> 3
    field.kind = size & 7
    if field.number == 0:
        return False
    if field.kind == _VARINT:
        return _varint(span, &field.value)
    if field.kind == _LENGTH:
        start = span.at
        if not _varint(span, &size) or span.at - start > 5:
            return False
    elif field.kind == _EIGHT_BYTES:
        size = 8
    elif field.kind == _FOUR_BYTES:
        size = 4
    else:
        return False
    if size > <uint64_t>(span.end - span.at):
        return False
    field.inside.at = span.at
    span.at += size
    field.inside.end = span.at
    return True


cdef str _text(Span span):
    """Return a text; None if it is not UTF-8."""
    if span.at == span.end:
        return ""
    try:
        return PyUnicode_DecodeUTF8(<const char*>span.at, span.end - span.at, NULL)
    except UnicodeDecodeError:
        return None


include "header_map.pxi"
include "metadata.pxi"


cdef dict _known_modes = {}


cdef object _modes(uint64_t* numbers):
    key = numbers[0] << 32 | numbers[1]
    known = _known_modes.get(key)
    if known is None:
        known = _known_modes[key] = Modes(_mode(numbers[0]), _mode(numbers[1]))
    return known


def _mode(number):
    try:
        return BodyMode(number)
    except ValueError:
        raise unknown_mode(number) from None


def decode(bytes data not None):
    """Return the `ProcessingRequest` that `data` holds. Raises `ProtocolError`.

    Generated code reads or refuses deeply nested metadata, repeated parts, text that is not UTF-8,
    and bytes that are not a message at all.
    """
    message = _read(data)
    if message is not None:
        return message
    from epp.protocol.extproc import protobuf  # slow to load, and rarely needed

    return protobuf.decode(data)


def encode(reply):
    """Return the bytes of one `ProcessingResponse`."""
    return _ENCODERS[type(reply)](reply)


def encode_chunk(bint response, body, bint end_of_stream):
    """Return the bytes of a `Chunk` with these fields; for a long body, what precedes it and it."""
    if size_of(body) >= _LONG:
        return _written(response, body, end_of_stream, True), body
    return _written(response, body, end_of_stream, False)


cdef dict _ENCODERS = {
    Chunk: _chunk,
    HeadersReply: _headers_reply,
    BodyReply: _body_reply,
    TrailersReply: _trailers_reply,
    ImmediateReply: _immediate_reply,
    Reporting: _by_protobuf,
}


cdef object _read(bytes data):
    cdef Span span
    cdef Span part
    cdef Field field
    cdef uint64_t kind = 0
    cdef uint64_t[2] numbers
    cdef bint configured = False, ends = False
    cdef dict told = None
    span.at = <const uint8_t*>PyBytes_AS_STRING(data)
    span.end = span.at + PyBytes_GET_SIZE(data)
    while span.at < span.end:
        if not _field(&span, &field):
            return None
        if field.number == _METADATA:
            if field.kind != _LENGTH or told is not None:
                return None
            told = _context(field.inside)
            if told is None:
                return None
        elif _FIRST_KIND <= field.number <= _LAST_KIND:
            if field.kind != _LENGTH or kind:
                return None
            kind = field.number
            part = field.inside
        elif field.number == _CONFIG:
            if field.kind != _LENGTH or configured or not _config(numbers, field.inside):
                return None
            configured = True
    if kind == 0:
        return None
    content = None
    if kind < _FIRST_BODY:
        content = _headers(part, &ends)
    elif kind < _FIRST_TRAILERS:
        content = _body(part, &ends, data if kind == _FIRST_BODY else None)
    elif not _read_head({}, part, &ends):  # trailers have no meaning, but must be valid
        return None
    if content is None and kind < _FIRST_TRAILERS:
        return None
    modes = _modes(numbers) if configured else None
    subset = served = None
    if told:
        subset, served = told.get("subset"), told.get("served")
    # Of the fields of ProcessingRequest every other one is the response's.
    return message_of(kind & 1 != 0, content, ends, modes, subset, served)


cdef object _body(Span span, bint* end, bytes message):
    """Read `HttpBody`; return a long body as a view of `message`, if that is not None."""
    cdef Field field
    cdef Span body
    cdef bint ends = False, ends_without = False
    body.at = body.end = NULL
    while span.at < span.end:
        if not _field(&span, &field):
            return None
        if field.number > 3:
            continue
        if field.kind != (_LENGTH if field.number == 1 else _VARINT):
            return None
        if field.number == 1:
            body = field.inside
        elif field.number == 2:
            ends = field.value != 0
        else:
            ends_without = field.value != 0
    end[0] = ends or ends_without
    if message is not None and body.end - body.at >= _VIEWED:
        start = body.at - <const uint8_t*>PyBytes_AS_STRING(message)
        return memoryview(message)[start : start + (body.end - body.at)]
    return PyBytes_FromStringAndSize(<const char*>body.at, body.end - body.at)


cdef dict _headers(Span span, bint* ends):
    cdef dict found = {}
    return found if _read_head(found, span, ends) else None


cdef bint _read_head(dict found, Span span, bint* ends) except -1:
    """Read `HttpHeaders`, or `HttpTrailers`, which has no end; return whether that worked."""
    cdef Field field
    while span.at < span.end:
        if not _field(&span, &field):
            return False
        if field.number == 1:
            if field.kind != _LENGTH or not _header_map(found, field.inside):
                return False
        elif field.number == 3:
            if field.kind != _VARINT:
                return False
            ends[0] = field.value != 0
    return True


cdef bint _config(uint64_t* numbers, Span span) noexcept:
    """Read the numbers of both modes; return whether that worked."""
    cdef Field field
    numbers[0] = numbers[1] = 0
    while span.at < span.end:
        if not _field(&span, &field):
            return False
        if field.number <= 2:
            if field.kind != _VARINT or field.value > 0x7fffffff:
                return False
            numbers[field.number - 1] = field.value
    return True
