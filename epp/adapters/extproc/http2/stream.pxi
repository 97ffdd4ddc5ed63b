"""One request of a peer, and the response to it; a part of `session.pyx`.

The life of a stream:

- The peer's HEADERS open it (`Session._open`). When they are complete, the user gets OPENED.
- Each message in DATA becomes a MESSAGE, END_STREAM becomes ENDED (RFC 9113's "half-closed
  (remote)"), and what cannot be read becomes a FAULT.
- The first `send` answers with headers, and `end` with trailers. Then the stream is `ending`:
  nothing more is queued, and what the peer still sends is discarded.
- `refuse` and `reset` end it at once.
- nghttp2 closes it when both sides have ended, or one of them has reset it (`Session._close`). The
  user gets CLOSED only if it had not ended the stream itself.
"""


@cython.freelist(16)
cdef class Stream:
    """One request of the peer and the response to it. What is sent to a closed stream is lost.

    `owner` belongs to the user. `path` and `content_type` are as the peer sent them; empty if it
    did not send them. `queued` is the number of bytes that wait for the peer's window.
    """

    cdef readonly Session session
    cdef readonly int32_t id
    cdef readonly bytes method
    cdef readonly bytes path
    cdef readonly bytes content_type
    cdef readonly size_t queued
    cdef readonly bint closed
    cdef readonly bint ending
    cdef readonly bint answered
    cdef public object owner
    cdef Deframer _deframer
    cdef size_t _header_bytes
    cdef bint _headers_complete
    cdef bint _has_message
    cdef bint _deferred
    cdef bint _held
    cdef bint _discarding
    cdef size_t _unconsumed
    cdef list _pieces
    cdef Py_ssize_t _first
    cdef size_t _offset
    cdef bytes _status
    cdef bytes _message

    def __init__(self):
        raise TypeError("streams are opened by the peer")

    def send(self, bytes message not None, rest=b""):
        """Queue a message for the peer; its `rest`, bytes or a view of bytes, is not copied."""
        if not is_body_data(rest):
            raise TypeError("the rest of a message is neither bytes nor a view of bytes")
        cdef size_t size = PyBytes_GET_SIZE(message) + size_of(rest)
        cdef size_t beside = PyBytes_GET_SIZE(message)  # what is joined with the head in one piece
        cdef bytes piece
        cdef uint8_t* head
        if self.closed or self.ending:
            return
        if size >> 32:
            raise ValueError("a message of 4 GiB or more")
        if beside > _SHORT:
            beside = 0
        piece = PyBytes_FromStringAndSize(NULL, 5 + beside)
        head = <uint8_t*>PyBytes_AS_STRING(piece)
        head[0] = 0
        head[1], head[2] = <uint8_t>(size >> 24), <uint8_t>(size >> 16)
        head[3], head[4] = <uint8_t>(size >> 8), <uint8_t>size
        memcpy(head + 5, PyBytes_AS_STRING(message), beside)
        self._pieces.append(piece)
        if PyBytes_GET_SIZE(message) > <Py_ssize_t>beside:
            self._pieces.append(message)
        if size_of(rest):
            self._pieces.append(rest)
        self.queued += size + 5
        self.session.queued += size + 5
        self._proceed()

    def end(self, int status, str message not None=""):
        """Send gRPC's status after all messages; discard what the peer still sends."""
        cdef nghttp2_nv fields[2]
        if self.closed or self.ending:
            return
        if status and not self.answered:
            self.session.abuse_score += 1
        self.ending = True
        self._status = b"%d" % status
        self._message = _percent_encoded(message)
        self._discard()
        if not self.answered:
            self.answered = True
            self._head(status=b"200", trailing=True)
        elif not self.queued:  # trailers need no window; DATA would wait for one
            nghttp2_submit_trailer(
                self.session._handle, self.id, fields, self._trailers(fields)
            )

    def refuse(self, int status):
        """Answer with an HTTP status and nothing else: this is not a gRPC request."""
        if self.closed or self.answered:
            return
        self.session.abuse_score += 1
        self.ending = self.answered = True
        self._discard()
        self._head(status=b"%d" % status, trailing=False)

    def reset(self, uint32_t code):
        """Break off the stream, with an error code of HTTP/2."""
        if not self.closed:
            self.ending = True
            self._discard()
            nghttp2_submit_rst_stream(self.session._handle, NGHTTP2_FLAG_NONE, self.id, code)

    def hold(self):
        """Let the peer send at most one more window."""
        self._held = True

    def release(self):
        """End a hold."""
        self._held = False
        self._release()

    cdef inline int _discard(self) except -1:
        """Discard what the peer still sends, and any incomplete message."""
        self._discarding = True
        if self._deframer.mid_message():
            self._deframer.drop()
        return self._release()

    cdef int _release(self) except -1:
        if self._unconsumed and not self.closed:
            nghttp2_session_consume_stream(self.session._handle, self.id, self._unconsumed)
        self._unconsumed = 0
        return 0

    cdef int _proceed(self) except -1:
        cdef nghttp2_data_provider provider
        cdef nghttp2_nv fields[2]
        if self._deferred:
            self._deferred = False
            nghttp2_session_resume_data(self.session._handle, self.id)
        elif not self.answered:
            self.answered = True
            provider.source.ptr = <void*>self
            provider.read_callback = _on_read
            fields[0] = _field(b":status", b"200")
            fields[1] = _field(b"content-type", b"application/grpc")
            nghttp2_submit_response(self.session._handle, self.id, fields, 2, &provider)
        return 0

    cdef int _head(self, bytes status, bint trailing) except -1:
        """Answer with headers that also end the response."""
        cdef nghttp2_nv fields[4]
        cdef size_t count = 1
        fields[0] = _field(b":status", status)
        if trailing:
            fields[1] = _field(b"content-type", b"application/grpc")
            count = 2 + self._trailers(&fields[2])
        nghttp2_submit_response(self.session._handle, self.id, fields, count, NULL)
        return 0

    cdef size_t _trailers(self, nghttp2_nv* fields):
        fields[0] = _field(b"grpc-status", self._status)
        fields[1] = _field(b"grpc-message", self._message)
        return 2 if self._message else 1

    cdef int _pop(self, uint8_t* into, size_t size) except -1:
        """Move the next `size` queued bytes."""
        cdef size_t part
        self.queued -= size
        self.session.queued -= size
        while size:
            piece = self._pieces[self._first]
            part = min(<size_t>size_of(piece) - self._offset, size)
            memcpy(into, start_of(piece) + self._offset, part)
            into += part
            size -= part
            self._offset += part
            if self._offset == <size_t>size_of(piece):
                self._pieces[self._first] = None
                self._first += 1
                self._offset = 0
        if self._first == len(self._pieces):
            self._pieces.clear()
            self._first = 0
        return 0


cdef inline nghttp2_nv _field(bytes name, bytes value):
    """Make a header; its bytes must live until it is submitted, which copies them."""
    cdef nghttp2_nv field
    field.name = <uint8_t*>PyBytes_AS_STRING(name)
    field.namelen = PyBytes_GET_SIZE(name)
    field.value = <uint8_t*>PyBytes_AS_STRING(value)
    field.valuelen = PyBytes_GET_SIZE(value)
    field.flags = 0
    return field


cdef bytes _percent_encoded(str message):
    """Write a status message as gRPC does in HTTP/2."""
    if message.isascii() and message.isprintable() and "%" not in message:
        return message.encode()
    return b"".join(
        # gRPC over HTTP/2, Status-Message: percent-encoded UTF-8, %x20-24 and %x26-7E as they are.
        b"%c" % byte if 32 <= byte < 127 and byte != 37 else b"%%%02X" % byte
        for byte in message.encode("utf-8", "replace")
    )
