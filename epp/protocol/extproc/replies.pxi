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


cdef struct Writing:  # from the end of a message: what a field holds is there before its length
    uint8_t* at  # where what was written begins
    uint8_t* end


cdef inline int _put(Writing* to, const char* data, size_t size) noexcept:
    to.at -= size
    memcpy(to.at, data, size)
    return 0


cdef inline int _close(Writing* to, uint8_t tag, const uint8_t* end) noexcept:
    """Make a field of what was written since `end`."""
    cdef size_t size = end - to.at
    to.at -= 1 + _length(size)
    _head(to.at, tag, size)
    return 0


cdef int _text_field(Writing* to, uint8_t tag, str text) except -1:
    cdef Py_ssize_t size = 0
    cdef uint8_t* end = to.at
    cdef const char* data = PyUnicode_AsUTF8AndSize(text, &size)
    _put(to, data, size)
    return _close(to, tag, end)


cdef inline int _filled(Writing* to, uint8_t tag, str text) except -1:
    """Write a field, unless it is empty."""
    return _text_field(to, tag, text) if text else 0


cdef uint8_t[1 << 12] _scratch  # for one message at a time: nothing runs while it is written


cdef inline bytes _begun(Writing* to, size_t size):
    """Begin a message of up to `size` bytes; return the memory of a long one."""
    cdef bytes long = None
    to.at = _scratch + sizeof(_scratch)
    if size > sizeof(_scratch):
        long = PyBytes_FromStringAndSize(NULL, size)
        to.at = <uint8_t*>PyBytes_AS_STRING(long) + size
    to.end = to.at
    return long


cdef inline bytes _made(Writing* to):
    return PyBytes_FromStringAndSize(<const char*>to.at, to.end - to.at)


def _chunk(reply):
    """Write a `Chunk`."""
    return _written(reply.response, reply.body, reply.end_of_stream, False)


cdef bytes _written(bint response, body, bint ends, bint apart):
    """Write a `Chunk`, or all of it before the body, which comes last if it is `apart`."""
    cdef Writing to
    cdef size_t size = size_of(body)
    made = _begun(&to, 64 if apart else 64 + size)
    cdef uint8_t* end = to.at
    if apart:
        end += size
    else:
        if ends:
            _put(&to, b"\x10\x01", 2)
        _put(&to, <const char*>start_of(body), size)
    if size:
        _close(&to, 0x0a, to.at + size)
    if ends and apart:
        _put(&to, b"\x10\x01", 2)
    _close(&to, 0x1a, end)
    _close(&to, 0x1a, end)
    _close(&to, 0x0a, end)
    _close(&to, 0x22 if response else 0x1a, end)
    return _made(&to)


def _headers_reply(reply):
    """Write a `HeadersReply`."""
    mutation = reply.mutation
    if mutation is UNCHANGED:
        return b"\x12\x00" if reply.response else b"\x0a\x00"
    if mutation.scores:
        return _by_protobuf(reply)
    return _changed(0x12 if reply.response else 0x0a, mutation, None)


def _body_reply(reply):
    """Write a `BodyReply`."""
    mutation = reply.mutation
    if mutation.scores:
        return _by_protobuf(reply)
    return _changed(0x22 if reply.response else 0x1a, mutation, mutation.body)


def _trailers_reply(reply):
    """Write a `TrailersReply`."""
    return b"\x32\x00" if reply.response else b"\x2a\x00"


def _immediate_reply(reply):
    """Write an `ImmediateReply`."""
    cdef Writing to
    cdef tuple headers = reply.headers
    cdef bytes body = reply.body
    cdef str details = reply.details
    cdef uint64_t status = reply.status
    cdef uint8_t* end
    made = _begun(&to, _most_bytes(headers, ()) + PyBytes_GET_SIZE(body) + 4 * len(details))
    _filled(&to, 0x2a, details)
    if body:
        end = to.at
        _put(&to, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        _close(&to, 0x1a, end)
    if headers:
        end = to.at
        _put_headers(&to, headers, ())
        _close(&to, 0x12, end)
    end = to.at
    if status:
        to.at -= 1 + _length(status)
        _head(to.at, 0x08, status)
    _close(&to, 0x0a, end)
    _close(&to, 0x3a, to.end)
    return _made(&to)


def _by_protobuf(reply):
    """Encode a rare reply with generated code."""
    from epp.protocol.extproc import protobuf  # slow to load, and mostly not needed

    return protobuf.encode(reply)


cdef bytes _changed(uint8_t tag, mutation, bytes body):
    cdef Writing to
    cdef tuple set_headers = mutation.set_headers, removed = mutation.remove_headers
    cdef str destination = mutation.destination
    cdef size_t most = _most_bytes(set_headers, removed) + 4 * len(destination)
    cdef uint8_t* end
    cdef uint8_t* headers
    made = _begun(&to, most if body is None else most + PyBytes_GET_SIZE(body))
    if destination:
        _metadata(&to, destination)
    end = to.at
    if mutation.clear_route_cache:
        _put(&to, b"\x28\x01", 2)
    if body is not None:
        headers = to.at
        _put(&to, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        _close(&to, 0x0a, headers)
        _close(&to, 0x1a, headers)
    if set_headers or removed:
        headers = to.at
        _put_headers(&to, set_headers, removed)
        _close(&to, 0x12, headers)
    if to.at < end:
        _close(&to, 0x0a, end)
    _close(&to, tag, end)
    return _made(&to)


cdef size_t _most_bytes(tuple set_headers, tuple removed) except 0:
    """Return what a message with these headers has at most, with all but its body and texts."""
    cdef size_t most = 256
    for key, value in set_headers:
        most += 4 * (len(<str>key) + len(<str>value)) + 32
    for key in removed:
        most += 4 * len(<str>key) + 8
    return most


cdef int _put_headers(Writing* to, tuple set_headers, tuple removed) except -1:
    cdef uint8_t* end
    cdef uint8_t* header
    for key in reversed(removed):
        _text_field(to, 0x12, key)
    for key, value in reversed(set_headers):
        end = to.at
        _put(to, b"\x18\x02", 2)
        header = to.at
        _filled(to, 0x1a, value)
        _filled(to, 0x0a, key)
        _close(to, 0x0a, header)
        _close(to, 0x0a, end)
    return 0


cdef int _metadata(Writing* to, str destination) except -1:
    cdef uint8_t* end = to.at
    _text_field(to, 0x1a, destination)
    _close(to, 0x12, end)
    _put(to, b"\x0a\x1ex-gateway-destination-endpoint", 32)
    _close(to, 0x0a, end)
    _close(to, 0x2a, end)
    _close(to, 0x12, end)
    _put(to, b"\x0a\x08envoy.lb", 10)
    _close(to, 0x0a, end)
    return _close(to, 0x42, end)
