"""ext_proc replies as bytes; a part of `codec.pyx`.

The tag of a field is its number * 8 + its kind; all have one byte here.
"""

cdef inline int _length(uint64_t value) noexcept nogil:
    """Say how many bytes a varint has."""
    cdef int bytes_ = 1
    while value >= 0x80:
        value >>= 7
        bytes_ += 1
    return bytes_


cdef inline uint8_t* _head(uint8_t* at, uint8_t tag, uint64_t size) noexcept nogil:
    """Write a tag and a length; return where they end."""
    at[0] = tag
    at += 1
    while size >= 0x80:
        at[0] = <uint8_t>(size | 0x80)
        size >>= 7
        at += 1
    at[0] = <uint8_t>size
    return at + 1


cdef bytes _nested(uint8_t tag, bytes inside):
    """Return a field with its content."""
    cdef size_t size = PyBytes_GET_SIZE(inside)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 1 + _length(size) + size)
    memcpy(_head(<uint8_t*>PyBytes_AS_STRING(made), tag, size), PyBytes_AS_STRING(inside), size)
    return made


cdef bytes _string(uint8_t tag, str text):
    return _nested(tag, text.encode()) if text else b""


def _chunk(reply):
    """Write a `Chunk`."""
    return _written(reply, False)


cdef bytes _written(reply, bint apart):
    """Write a `Chunk`, or all of it before the body, which comes last if it is `apart`."""
    body = reply.body
    cdef bint ends = reply.end_of_stream
    cdef uint8_t outermost = 0x22 if reply.response else 0x1a
    cdef uint64_t size = size_of(body)
    cdef uint64_t streamed = (1 + _length(size) + size if size else 0) + (2 if ends else 0)
    cdef uint64_t mutation = 1 + _length(streamed) + streamed
    cdef uint64_t common = 1 + _length(mutation) + mutation
    cdef uint64_t response = 1 + _length(common) + common
    cdef uint64_t whole = 1 + _length(response) + response
    cdef bytes made = PyBytes_FromStringAndSize(NULL, whole - size if apart else whole)
    cdef uint8_t* at = _head(<uint8_t*>PyBytes_AS_STRING(made), outermost, response)
    at = _head(at, 0x0a, common)
    at = _head(at, 0x1a, mutation)
    at = _head(at, 0x1a, streamed)
    if ends and apart:
        at = _end_of_stream(at)
    if size:
        at = _head(at, 0x0a, size)
    if not apart:
        memcpy(at, start_of(body), size)
        if ends:
            _end_of_stream(at + size)
    return made


cdef inline uint8_t* _end_of_stream(uint8_t* at) noexcept nogil:
    at[0] = 0x10
    at[1] = 1
    return at + 2


def _headers_reply(reply):
    """Write a `HeadersReply`."""
    mutation = reply.mutation
    if mutation is UNCHANGED:
        return b"\x12\x00" if reply.response else b"\x0a\x00"
    if mutation.scores:
        return _by_protobuf(reply)
    return _changed(0x12 if reply.response else 0x0a, mutation, b"")


def _body_reply(reply):
    """Write a `BodyReply`."""
    mutation = reply.mutation
    if mutation.scores:
        return _by_protobuf(reply)
    cdef bytes body = mutation.body
    cdef bytes changed = b""
    if body is not None:
        changed = _nested(0x1a, _nested(0x0a, body))
    return _changed(0x22 if reply.response else 0x1a, mutation, changed)


def _trailers_reply(reply):
    """Write a `TrailersReply`."""
    return b"\x32\x00" if reply.response else b"\x2a\x00"


def _immediate_reply(reply):
    """Write an `ImmediateReply`."""
    cdef uint64_t status = reply.status
    cdef bytes code = b""
    cdef uint8_t[11] digits
    if status:
        code = digits[: _head(digits, 0x08, status) - digits]
    headers = _header_mutation(reply.headers, ())
    body = reply.body
    inside = _nested(0x0a, code) + (_nested(0x12, headers) if headers else b"")
    inside += (_nested(0x1a, body) if body else b"") + _string(0x2a, reply.details)
    return _nested(0x3a, inside)


def _by_protobuf(reply):
    """Encode a rare reply with generated code."""
    from epp.protocol.extproc import protobuf  # slow to load, and mostly not needed

    return protobuf.encode(reply)


cdef bytes _changed(uint8_t tag, mutation, bytes body):
    cdef bytes common = _header_mutation(mutation.set_headers, mutation.remove_headers)
    cdef str destination = mutation.destination
    cdef bytes made
    if common:
        common = _nested(0x12, common)
    common += body
    if mutation.clear_route_cache:
        common += b"\x28\x01"
    made = _nested(tag, _nested(0x0a, common) if common else b"")
    if destination:
        made += _metadata(destination)
    return made


cdef bytes _header_mutation(tuple set_headers, tuple remove_headers):
    cdef bytes made = b""
    for key, value in set_headers:
        header = _nested(0x0a, _string(0x0a, key) + _string(0x1a, value))
        made += _nested(0x0a, header + b"\x18\x02")
    for key in remove_headers:
        made += _nested(0x12, (<str>key).encode())
    return made


cdef bytes _LB = _nested(0x0a, b"envoy.lb")
cdef bytes _DESTINATION = _nested(0x0a, b"x-gateway-destination-endpoint")


cdef bytes _metadata(str destination):
    inner = _nested(0x0a, _DESTINATION + _nested(0x12, _string(0x1a, destination)))
    return _nested(0x42, _nested(0x0a, _LB + _nested(0x12, _nested(0x2a, inner))))
