# cython: language_level=3, boundscheck=False, wraparound=False
"""The server's side of one HTTP/2 connection that carries gRPC, over nghttp2. No I/O.

Bytes from the peer go into `Session.receive`, which returns what happened as events; bytes for
the peer come out of `Session.take`. It knows gRPC's framing and no method of it.

Flow control. The connection's window is given back at once, so that no stream holds up another;
a stream's own window is given back as its bytes arrive, unless it is on hold: then the peer can
send one window more and has to wait. Either side's windows bound what is in memory.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from epp.native.framing cimport Deframer
from epp.native.nghttp2 cimport *

cdef extern from "Python.h":
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1
    char* _start_of "PyBytes_AS_STRING"(PyObject*)
    Py_ssize_t _size_of "PyBytes_GET_SIZE"(PyObject*)

OPENED = 0
"""A request's headers are complete."""
MESSAGE = 1
"""A message has arrived: `value` is its bytes."""
ENDED = 2
"""The peer will say no more on this stream."""
FAULT = 3
"""What arrived is no message: `value` is the gRPC status that it deserves."""
CLOSED = 4
"""The stream was closed before it was ended here: `value` is HTTP/2's error code."""

cdef object _OPENED = OPENED, _MESSAGE = MESSAGE, _ENDED = ENDED, _FAULT = FAULT, _CLOSED = CLOSED
cdef object _AMID_A_MESSAGE = 13  # gRPC's INTERNAL

cdef size_t _ENTRY_OVERHEAD = 32  # of a header, RFC 9113 section 6.5.2
cdef size_t _SPARE = 512  # for frames that are not data, and the heads of those that are
cdef int32_t _CONNECTION_WINDOW = 0x7fffffff


class ConnectionFailure(Exception):
    """The peer broke the protocol beyond what a GOAWAY can say, or flooded the connection."""


cdef class Stream:
    """One request of the peer's and the response to it. What is said to a closed one is lost.

    `owner` is the user's. `path` and `content_type` are as the peer sent them, empty where it did
    not. `queued` is the number of bytes that wait for the peer's window.
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
    cdef bint _asked
    cdef bint _deferred
    cdef bint _held
    cdef bint _deaf
    cdef size_t _unconsumed
    cdef list _pieces
    cdef Py_ssize_t _first
    cdef size_t _offset
    cdef bytes _status
    cdef bytes _message

    def __init__(self):
        raise TypeError("streams are opened by the peer")

    def send(self, bytes message not None):
        """Queue a message for the peer."""
        cdef size_t size = PyBytes_GET_SIZE(message)
        cdef uint8_t head[5]
        if self.closed or self.ending:
            return
        if size > 0xffffffff:
            raise ValueError("a message of 4 GiB or more")
        head[0] = 0
        head[1], head[2] = <uint8_t>(size >> 24), <uint8_t>(size >> 16)
        head[3], head[4] = <uint8_t>(size >> 8), <uint8_t>size
        self._pieces.append(PyBytes_FromStringAndSize(<char*>head, 5))
        if size:
            self._pieces.append(message)
        self.queued += size + 5
        self.session.queued += size + 5
        self._proceed()

    def end(self, int status, str message not None=""):
        """Say gRPC's status once all messages are out; the peer is listened to no more."""
        if self.closed or self.ending:
            return
        self.ending = True
        self._status = b"%d" % status
        self._message = _percent_encoded(message)
        self._deaf = True
        self._release()
        if self.answered:
            self._proceed()
        else:
            self.answered = True
            self._head(status=b"200", trailing=True)

    def refuse(self, int status):
        """Answer with an HTTP status and nothing else: this is no gRPC request."""
        if self.closed or self.answered:
            return
        self.ending = self.answered = self._deaf = True
        self._release()
        self._head(status=b"%d" % status, trailing=False)

    def reset(self, uint32_t code):
        """Break off, with HTTP/2's error code."""
        if not self.closed:
            self.ending = self._deaf = True
            self._release()
            nghttp2_submit_rst_stream(self.session._handle, NGHTTP2_FLAG_NONE, self.id, code)

    def hold(self):
        """Let the peer send no more than one window."""
        self._held = True

    def release(self):
        """End a hold."""
        self._held = False
        self._release()

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
        """Answer with headers that are also the end."""
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
        cdef bytes piece
        cdef size_t part
        self.queued -= size
        self.session.queued -= size
        while size:
            piece = <bytes>self._pieces[self._first]
            part = min(<size_t>PyBytes_GET_SIZE(piece) - self._offset, size)
            memcpy(into, PyBytes_AS_STRING(piece) + self._offset, part)
            into += part
            size -= part
            self._offset += part
            if self._offset == <size_t>PyBytes_GET_SIZE(piece):
                self._pieces[self._first] = None
                self._first += 1
                self._offset = 0
        if self._first == len(self._pieces):
            self._pieces.clear()
            self._first = 0
        return 0


cdef class Session:
    """One connection. Sizes are in bytes.

    `max_streams` may be open at once; `stream_window` is what the peer may send on a stream
    before it has to wait; requests with more than `max_header_bytes` of headers are reset;
    messages over `max_message_bytes` are faults.

    `queued` counts what waits for the peer's windows over all streams. `nuisance` counts frames
    that ask for work and move nothing (pings, settings, priorities, empty data, streams reset
    before an answer): the user decides how many are too many, and sets it back. `pongs` counts the
    answers to pings.
    """

    cdef nghttp2_session* _handle
    cdef readonly dict streams
    cdef readonly size_t queued
    cdef public size_t nuisance
    cdef readonly bint full
    cdef readonly size_t pongs
    cdef size_t _max_header_bytes
    cdef size_t _max_message_bytes
    cdef list _events
    cdef bint _busy
    cdef bint _lost
    cdef object _failure
    cdef PyObject* _out
    cdef size_t _size
    cdef size_t _most

    def __cinit__(
        self,
        *,
        uint32_t max_streams,
        uint32_t stream_window,
        size_t max_header_bytes,
        size_t max_message_bytes,
    ):
        cdef nghttp2_settings_entry settings[4]
        self.streams = {}
        self._events = []
        self._max_header_bytes = max_header_bytes
        self._max_message_bytes = max_message_bytes
        self._handle = _new_session(self)
        settings[0].settings_id = NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS
        settings[0].value = max_streams
        settings[1].settings_id = NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE
        settings[1].value = stream_window
        settings[2].settings_id = NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE
        settings[2].value = <uint32_t>max_header_bytes
        settings[3].settings_id = NGHTTP2_SETTINGS_MAX_FRAME_SIZE
        settings[3].value = 1 << 16
        _checked(nghttp2_submit_settings(self._handle, NGHTTP2_FLAG_NONE, settings, 4))
        _checked(nghttp2_session_set_local_window_size(
            self._handle, NGHTTP2_FLAG_NONE, 0, _CONNECTION_WINDOW
        ))

    def __dealloc__(self):
        if self._handle != NULL:
            nghttp2_session_del(self._handle)
        Py_XDECREF(self._out)

    def receive(self, bytes data not None):
        """Take what the peer sent; return what has happened: a list of (stream, event, value).

        Raises `ConnectionFailure` where the connection cannot go on; what `take` still gives
        tells the peer why.
        """
        if self._lost:
            return []
        self._enter()
        try:
            got = nghttp2_session_mem_recv(
                self._handle, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
            )
        finally:
            self._busy = False
        self._raise_failure()
        if got < 0:
            nghttp2_session_terminate_session(self._handle, NGHTTP2_ENHANCE_YOUR_CALM)
            raise ConnectionFailure(nghttp2_strerror(<int>got).decode())
        return self.hear()

    def hear(self):
        """Return what has happened since it was last told, which `take` may have brought about."""
        events, self._events = self._events, []
        return events

    @property
    def unheard(self):
        """Whether there is something to hear."""
        return len(self._events) > 0

    def take(self, size_t most):
        """Give bytes for the peer, about `most` of them; `full` says whether there are more."""
        cdef const uint8_t* piece = NULL
        cdef ssize_t size = 0
        if self._lost:
            return b""
        self._enter()
        self._most = most
        self.full = False
        try:
            self._size = 0
            Py_XDECREF(self._out)  # of one that failed
            self._out = NULL
            self._out = _new_bytes(NULL, min(self.queued + (self.queued >> 8), most) + _SPARE)
            while not self.full:
                size = nghttp2_session_mem_send(self._handle, &piece)
                if size <= 0:
                    break
                self._put(piece, size)
                self.full = self._size >= most
        finally:
            self._busy = False
        self._raise_failure()
        if size < 0:
            raise ConnectionFailure(nghttp2_strerror(<int>size).decode())
        _PyBytes_Resize(&self._out, self._size)
        taken = <bytes>self._out  # a second reference; the first goes
        Py_XDECREF(self._out)
        self._out = NULL
        return taken

    @property
    def done(self):
        """Whether the connection has nothing more to hear or to say."""
        return self._lost or not (
            nghttp2_session_want_read(self._handle) or nghttp2_session_want_write(self._handle)
        )

    def ping(self):
        """Ask the peer whether it is there."""
        nghttp2_submit_ping(self._handle, NGHTTP2_FLAG_NONE, NULL)

    def announce_end(self):
        """Ask the peer to open no more streams; those that it does open are still served."""
        nghttp2_submit_shutdown_notice(self._handle)

    def go_away(self):
        """Take no more streams; those that are open go on."""
        nghttp2_submit_goaway(
            self._handle, NGHTTP2_FLAG_NONE,
            nghttp2_session_get_last_proc_stream_id(self._handle), NGHTTP2_NO_ERROR, NULL, 0,
        )

    def terminate(self, uint32_t code):
        """Close the connection as soon as HTTP/2's error code is out."""
        nghttp2_session_terminate_session(self._handle, code)

    def abandon(self):
        """Take note that the connection is lost; return the streams that it was lost for.

        Nothing is received or sent from then on.
        """
        cdef Stream stream
        self._lost = True
        lost = [stream for stream in self.streams.values() if not stream.ending]
        lost += [stream for stream, event, _ in self.hear() if event == CLOSED]
        for stream in self.streams.values():
            stream.closed = True
        self.streams.clear()
        return lost

    cdef int _enter(self) except -1:
        if self._busy:
            raise RuntimeError("a session was entered from within")
        self._busy = True
        return 0

    cdef int _raise_failure(self) except -1:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return 0

    cdef int _put(self, const uint8_t* data, size_t size) except -1:
        memcpy(self._room(size), data, size)
        self._size += size
        return 0

    cdef uint8_t* _room(self, size_t size) except NULL:
        """Make room for `size` bytes behind what is in the buffer."""
        cdef size_t wanted = self._size + size
        cdef size_t held = _size_of(self._out)
        if wanted > held:
            _PyBytes_Resize(&self._out, max(wanted, 2 * held))
        return <uint8_t*>_start_of(self._out) + self._size

    cdef int _open(self, int32_t stream_id) except -1:
        cdef Stream stream = Stream.__new__(Stream)
        stream.session = self
        stream.id = stream_id
        stream.method = stream.path = stream.content_type = b""
        stream._pieces = []
        stream._deframer = Deframer(self._max_message_bytes)
        self.streams[stream_id] = stream
        nghttp2_session_set_stream_user_data(self._handle, stream_id, <void*>stream)
        return 0

    cdef int _header(
        self, Stream stream, const uint8_t* name, size_t name_size, const uint8_t* value,
        size_t value_size,
    ) except -1:
        """Keep a header that is wanted; return whether there may be more."""
        stream._header_bytes += name_size + value_size + _ENTRY_OVERHEAD
        if stream._header_bytes > self._max_header_bytes:
            return 0
        if stream._asked:
            return 1  # trailers
        if name_size == 5 and memcmp(name, b":path", 5) == 0:
            stream.path = PyBytes_FromStringAndSize(<const char*>value, value_size)
        elif name_size == 7 and memcmp(name, b":method", 7) == 0:
            stream.method = PyBytes_FromStringAndSize(<const char*>value, value_size)
        elif name_size == 12 and memcmp(name, b"content-type", 12) == 0:
            stream.content_type = PyBytes_FromStringAndSize(<const char*>value, value_size)
        return 1

    cdef int _data(self, Stream stream, const uint8_t* data, size_t size) except -1:
        cdef bytes message
        nghttp2_session_consume_connection(self._handle, size)
        if stream._held and not stream._deaf:
            stream._unconsumed += size
        else:
            nghttp2_session_consume_stream(self._handle, stream.id, size)
        while not stream._deaf:
            message = stream._deframer.next(&data, &size)
            if message is not None:
                self._events.append((stream, _MESSAGE, message))
            elif stream._deframer.fault:
                stream._deaf = True
                self._events.append((stream, _FAULT, stream._deframer.fault))
            else:
                break
        return 0

    cdef int _frame(self, Stream stream, const nghttp2_frame* frame) except -1:
        cdef uint8_t kind = frame.hd.type
        if kind == NGHTTP2_RST_STREAM and not stream.answered:
            self.nuisance += 1
        if kind != NGHTTP2_HEADERS and kind != NGHTTP2_DATA:
            return 0
        if kind == NGHTTP2_HEADERS and frame.headers.cat == NGHTTP2_HCAT_REQUEST:
            stream._asked = True
            self._events.append((stream, _OPENED, None))
        if frame.hd.flags & NGHTTP2_FLAG_END_STREAM and not stream._deaf:
            if stream._deframer.amid():
                self._events.append((stream, _FAULT, _AMID_A_MESSAGE))
            else:
                self._events.append((stream, _ENDED, None))
        return 0

    cdef int _close(self, Stream stream, uint32_t code) except -1:
        stream.closed = True
        self.queued -= stream.queued
        stream.queued = 0
        stream._pieces.clear()
        stream._first = 0
        self.streams.pop(stream.id, None)
        if stream._asked and not stream.ending:
            self._events.append((stream, _CLOSED, code))
        return 0


cdef nghttp2_session* _new_session(Session session) except NULL:
    cdef nghttp2_session* handle = NULL
    cdef nghttp2_session_callbacks* callbacks = NULL
    cdef nghttp2_option* option = NULL
    _checked(nghttp2_session_callbacks_new(&callbacks))
    try:
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, _on_begin_frame)
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, _on_begin_headers)
        nghttp2_session_callbacks_set_on_header_callback(callbacks, _on_header)
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, _on_data)
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, _on_frame)
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, _on_frame_sent)
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, _on_close)
        nghttp2_session_callbacks_set_send_data_callback(callbacks, _on_send)
        _checked(nghttp2_option_new(&option))
        nghttp2_option_set_no_auto_window_update(option, 1)
        nghttp2_option_set_no_closed_streams(option, 1)
        warmpick_allow_resets(option)
        _checked(nghttp2_session_server_new2(&handle, callbacks, <void*>session, option))
    finally:
        nghttp2_option_del(option)
        nghttp2_session_callbacks_del(callbacks)
    return handle


cdef int _checked(int result) except -1:
    if result == NGHTTP2_ERR_NOMEM:
        raise MemoryError
    if result < 0:
        raise ConnectionFailure(nghttp2_strerror(result).decode())
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
        b"%c" % byte if 32 <= byte < 127 and byte != 37 else b"%%%02X" % byte
        for byte in message.encode("utf-8", "replace")
    )


# nghttp2's callbacks. An exception is kept, ends nghttp2's work, and is raised where it was begun.

cdef inline Stream _stream_of(nghttp2_session* handle, int32_t stream_id):
    cdef void* found = nghttp2_session_get_stream_user_data(handle, stream_id)
    return None if found == NULL else <Stream>found


cdef int _on_begin_frame(
    nghttp2_session* handle, const nghttp2_frame_hd* head, void* user
) noexcept:
    cdef Session session = <Session>user
    cdef uint8_t kind = head.type
    if kind == NGHTTP2_DATA:
        if head.length == 0 and not head.flags & NGHTTP2_FLAG_END_STREAM:
            session.nuisance += 1
    elif kind != NGHTTP2_HEADERS and kind != NGHTTP2_RST_STREAM and kind != NGHTTP2_WINDOW_UPDATE:
        session.nuisance += 1
    return 0


cdef int _on_begin_headers(
    nghttp2_session* handle, const nghttp2_frame* frame, void* user
) noexcept:
    cdef Session session = <Session>user
    try:
        if frame.hd.type == NGHTTP2_HEADERS and frame.headers.cat == NGHTTP2_HCAT_REQUEST:
            session._open(frame.hd.stream_id)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_header(
    nghttp2_session* handle, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
    const uint8_t* value, size_t value_size, uint8_t flags, void* user,
) noexcept:
    cdef Session session = <Session>user
    try:
        stream = _stream_of(handle, frame.hd.stream_id)
        if stream is None or session._header(stream, name, name_size, value, value_size):
            return 0
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_data(
    nghttp2_session* handle, uint8_t flags, int32_t stream_id, const uint8_t* data, size_t size,
    void* user,
) noexcept:
    cdef Session session = <Session>user
    try:
        stream = _stream_of(handle, stream_id)
        if stream is not None:
            session._data(stream, data, size)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_frame(nghttp2_session* handle, const nghttp2_frame* frame, void* user) noexcept:
    cdef Session session = <Session>user
    try:
        if frame.hd.type == NGHTTP2_PING and frame.hd.flags & NGHTTP2_FLAG_ACK:
            session.pongs += 1
        stream = _stream_of(handle, frame.hd.stream_id)
        if stream is not None:
            session._frame(stream, frame)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_frame_sent(nghttp2_session* handle, const nghttp2_frame* frame, void* user) noexcept:
    """Reset a stream whose end is out, so that a peer that goes on has no claim on memory."""
    if (
        frame.hd.type == NGHTTP2_HEADERS
        and frame.hd.flags & NGHTTP2_FLAG_END_STREAM
        and nghttp2_session_get_stream_remote_close(handle, frame.hd.stream_id) == 0
    ):
        nghttp2_submit_rst_stream(
            handle, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR
        )
    return 0


cdef int _on_close(
    nghttp2_session* handle, int32_t stream_id, uint32_t code, void* user
) noexcept:
    cdef Session session = <Session>user
    try:
        stream = _stream_of(handle, stream_id)
        if stream is not None:
            session._close(stream, code)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef ssize_t _on_read(
    nghttp2_session* handle, int32_t stream_id, uint8_t* buffer, size_t length,
    uint32_t* flags, nghttp2_data_source* source, void* user,
) noexcept:
    """Say how many bytes the next DATA frame has; `_on_send` writes them."""
    cdef Stream stream = <Stream>source.ptr
    cdef nghttp2_nv fields[2]
    cdef size_t size = min(length, stream.queued)
    if size == 0 and not stream.ending:
        stream._deferred = True
        return NGHTTP2_ERR_DEFERRED
    if size:
        flags[0] |= NGHTTP2_DATA_FLAG_NO_COPY
    if size == stream.queued and stream.ending:
        flags[0] |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM
        if nghttp2_submit_trailer(handle, stream_id, fields, stream._trailers(fields)) < 0:
            return NGHTTP2_ERR_CALLBACK_FAILURE
    return <ssize_t>size


cdef int _on_send(
    nghttp2_session* handle, nghttp2_frame* frame, const uint8_t* head, size_t length,
    nghttp2_data_source* source, void* user,
) noexcept:
    """Write a DATA frame; there is no padding, since nothing here asks for it."""
    cdef Session session = <Session>user
    cdef uint8_t* room
    if session._size >= session._most:
        session.full = True
        return NGHTTP2_ERR_WOULDBLOCK
    try:
        room = session._room(9 + length)
        memcpy(room, head, 9)
        (<Stream>source.ptr)._pop(room + 9, length)
        session._size += 9 + length
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE
