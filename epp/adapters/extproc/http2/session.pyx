# cython: language_level=3, boundscheck=False, wraparound=False
"""The server's side of one HTTP/2 connection that carries gRPC, over nghttp2. No I/O.

Bytes from the peer go into `Session.receive`, which returns what happened as events; bytes for
the peer come out of `Session.take`. A session knows gRPC's framing, but not its methods.

Flow control. The connection's window is given back at once, so that no stream holds up another. A
stream's own window is given back as its bytes arrive, unless the stream is on hold: then the peer
can send one more window and has to wait. The windows of both sides bound what is in memory.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Size
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from epp.adapters.extproc.http2.framing cimport Deframer
from epp.adapters.extproc.http2.nghttp2 cimport *
from epp.protocol.bodies.body_data cimport is_body_data, size_of, start_of

cdef extern from "Python.h":
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1
    char* _start_of "PyBytes_AS_STRING"(PyObject*)
    Py_ssize_t _size_of "PyBytes_GET_SIZE"(PyObject*)

include "events.pxi"
include "stream.pxi"
include "callbacks.pxi"


cdef class Session:
    """One connection. Sizes are in bytes.

    `max_streams` may be open at once. `stream_window` is what the peer may send on a stream before
    it has to wait. Requests with more than `max_header_bytes` of headers are reset. Messages over
    `max_message_bytes` are faults. If more than `max_queued` wait for the peer, `has_work` is true.

    `queued` counts what waits for the peer's windows over all streams. `abuse_score` counts frames
    that cause work and move nothing (pings, settings, priorities, empty data). It also counts such
    streams: reset by either side before an answer, refused, failed or ended without a message. A
    stream that is reset for the peer's own error counts ten, answered or not (CVE-2025-8671);
    SETTINGS count one more for every 16 open streams. The user decides how high the score may be,
    and sets it back. `pongs` counts the answers to pings; `settings_received` says whether the
    peer's first SETTINGS have come.
    """

    cdef nghttp2_session* _handle
    cdef readonly dict streams
    cdef readonly size_t queued
    cdef public size_t abuse_score
    cdef readonly bint full
    cdef readonly size_t pongs
    cdef readonly bint settings_received
    cdef readonly Py_ssize_t unread
    cdef size_t _frames
    cdef size_t _settings
    cdef size_t _max_header_bytes
    cdef size_t _max_message_bytes
    cdef size_t _max_queued
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
        size_t max_queued,
    ):
        cdef nghttp2_settings_entry settings[4]
        self.streams = {}
        self._events = []
        self._max_header_bytes = max_header_bytes
        self._max_message_bytes = max_message_bytes
        self._max_queued = max_queued
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
        # RFC 9113 §6.9.2: SETTINGS cannot change the connection's window, a WINDOW_UPDATE does.
        _checked(nghttp2_session_set_local_window_size(
            self._handle, NGHTTP2_FLAG_NONE, 0, _CONNECTION_WINDOW
        ))

    def __dealloc__(self):
        if self._handle != NULL:
            nghttp2_session_del(self._handle)
        Py_XDECREF(self._out)

    def receive(self, bytes data not None, Py_ssize_t start=0):
        """Take the bytes from the peer, from `start` on, as many as make one turn.

        Returns what has happened: a list of (stream, event, value). `unread` says how many of the
        last bytes are left, for the next call. Raises `ConnectionFailure` if the connection cannot
        go on; what `take` then returns tells the peer why.
        """
        cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - start
        cdef Py_ssize_t piece = _MIN_PIECE
        cdef ssize_t got = 0
        cdef size_t done = 0
        self.unread = 0
        if self._lost or left <= 0:
            return []
        self._frames = self._settings = 0
        self._enter()
        try:
            while left > 0 and done < _TURN:
                got = nghttp2_session_mem_recv(
                    self._handle,
                    <const uint8_t*>PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data) - left,
                    min(left, piece),
                )
                if got < 0:
                    break
                left -= got
                if self._work() - done < _TURN >> 4 and piece < _MAX_PIECE:
                    piece *= 2
                done = self._work()
            if left == 0 and done >= _TURN and got >= 0:
                # Paused at the last byte, nghttp2 has yet to handle the end of its frame.
                got = nghttp2_session_mem_recv(
                    self._handle,
                    <const uint8_t*>PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data),
                    0,
                )
        finally:
            self._busy = False
        self.unread = left
        self._raise_failure()
        if got < 0:
            nghttp2_session_terminate_session(self._handle, NGHTTP2_ENHANCE_YOUR_CALM)
            raise ConnectionFailure(nghttp2_strerror(<int>got).decode())
        return self._take_events()

    def take_events(self):
        """Return the events since the last call; `take` may cause some too."""
        return self._take_events()

    cdef inline list _take_events(self):
        events, self._events = self._events, []
        return events

    @property
    def has_events(self):
        """Whether there are events."""
        return len(self._events) > 0

    def take(self, size_t most):
        """Return about `most` bytes for the peer; `full` says whether there are more."""
        cdef const uint8_t* piece = NULL
        cdef ssize_t size = 0
        self.full = False
        if self._lost or not nghttp2_session_want_write(self._handle):
            return b""
        self._enter()
        self._most = most
        try:
            self._size = 0
            Py_XDECREF(self._out)  # of one that failed
            self._out = NULL
            self._room(min(self.queued + (self.queued >> 8), most) + _SPARE)
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
        if self._out == NULL:
            return PyBytes_FromStringAndSize(<const char*>_scratch, self._size)
        _PyBytes_Resize(&self._out, self._size)
        taken = <bytes>self._out  # a second reference; the first is dropped
        Py_XDECREF(self._out)
        self._out = NULL
        return taken

    @property
    def done(self):
        """Whether the connection has nothing left to read or to write."""
        return self._is_done()

    cdef bint _is_done(self):
        return self._lost or not (
            nghttp2_session_want_read(self._handle) or nghttp2_session_want_write(self._handle)
        )

    def has_work(self):
        """Return whether there is anything to do.

        That is: bytes to receive or to take, events, abuse, too many bytes that wait for the peer,
        or the end of the connection.
        """
        return (
            self.full or self.unread > 0 or len(self._events) > 0 or self.abuse_score > 0
            or self.queued > self._max_queued or self._is_done()
        )

    def ping(self):
        """Ask the peer whether it is there."""
        nghttp2_submit_ping(self._handle, NGHTTP2_FLAG_NONE, NULL)

    def announce_end(self):
        """Ask the peer to open no more streams; if it opens any, they are still served."""
        nghttp2_submit_shutdown_notice(self._handle)

    def go_away(self):
        """Accept no more streams; open streams go on."""
        # RFC 9113 §6.8: GOAWAY names the last stream that is served; those after it may be retried.
        nghttp2_submit_goaway(
            self._handle, NGHTTP2_FLAG_NONE,
            nghttp2_session_get_last_proc_stream_id(self._handle), NGHTTP2_NO_ERROR, NULL, 0,
        )

    def terminate(self, uint32_t code):
        """Close the connection once an error code of HTTP/2 is sent."""
        nghttp2_session_terminate_session(self._handle, code)

    def abandon(self):
        """Record that the connection is lost; return the streams that had not ended.

        Nothing is received or sent any more.
        """
        cdef Stream stream
        self._lost = True
        lost = [stream for stream in self.streams.values() if not stream.ending]
        lost += [stream for stream, event, _ in self.take_events() if event == CLOSED]
        for stream in self.streams.values():
            stream.closed = True
        self.streams.clear()
        return lost

    cdef inline size_t _work(self) noexcept:
        """Count what this turn has cost."""
        return self._frames + _PER_EVENT * PyList_GET_SIZE(self._events)

    cdef int _enter(self) except -1:
        if self._busy:
            raise RuntimeError("a session was entered from within")
        self._busy = True
        return 0

    cdef int _count_settings(self) noexcept:
        """Count a frame of SETTINGS; it may change the window of every open stream."""
        cdef size_t streams = PyDict_Size(self.streams)
        self._settings += 1
        self._frames += streams >> 2
        self.abuse_score += 1 + (streams >> 4)
        if self._settings <= _SETTINGS_AT_ONCE:
            return 0
        return NGHTTP2_ERR_CALLBACK_FAILURE

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
        """Make room for `size` more bytes in the buffer."""
        cdef size_t wanted = self._size + size
        if self._out == NULL:
            if wanted <= sizeof(_scratch):
                return _scratch + self._size
            self._out = _new_bytes(NULL, wanted)
            memcpy(_start_of(self._out), _scratch, self._size)
        elif wanted > <size_t>_size_of(self._out):
            _PyBytes_Resize(&self._out, max(wanted, 2 * <size_t>_size_of(self._out)))
        return <uint8_t*>_start_of(self._out) + self._size

    cdef int _open(self, int32_t stream_id) except -1:
        cdef Stream stream = Stream.__new__(Stream)
        stream.session = self
        stream.id = stream_id
        stream.method = stream.path = stream.content_type = b""
        stream._pieces = []
        stream._deframer = Deframer(self._max_message_bytes)
        self._frames += _PER_STREAM
        self.streams[stream_id] = stream
        nghttp2_session_set_stream_user_data(self._handle, stream_id, <void*>stream)
        return 0

    cdef int _header(
        self, Stream stream, const uint8_t* name, size_t name_size, const uint8_t* value,
        size_t value_size,
    ) except -1:
        """Keep a header if it is needed; return whether more are accepted."""
        stream._header_bytes += name_size + value_size + _ENTRY_OVERHEAD
        if stream._header_bytes > self._max_header_bytes:
            return 0
        if stream._headers_complete:
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
        if stream._held and not stream._discarding:
            stream._unconsumed += size
        else:
            nghttp2_session_consume_stream(self._handle, stream.id, size)
        while size > 0 and not stream._discarding:
            message = stream._deframer.next(&data, &size)
            if message is not None:
                stream._has_message = True
                self._events.append((stream, _MESSAGE, message))
            elif stream._deframer.fault:
                stream._discarding = True
                self._events.append((stream, _FAULT, stream._deframer.fault))
            elif stream._deframer.grown:
                self._events.append((stream, _GROWN, stream._deframer.grown))
                stream._deframer.grown = 0
        return 0

    cdef int _frame(self, Stream stream, const nghttp2_frame* frame) except -1:
        cdef uint8_t kind = frame.hd.type
        if kind == NGHTTP2_RST_STREAM and not stream.answered:
            self.abuse_score += 1
        if kind != NGHTTP2_HEADERS and kind != NGHTTP2_DATA:
            return 0
        if kind == NGHTTP2_HEADERS and frame.headers.cat == NGHTTP2_HCAT_REQUEST:
            stream._headers_complete = True
            self._events.append((stream, _OPENED, None))
        if frame.hd.flags & NGHTTP2_FLAG_END_STREAM and not stream._discarding:
            if stream._deframer.mid_message():
                self._events.append((stream, _FAULT, _MID_MESSAGE))
            else:
                if not stream._has_message:
                    self.abuse_score += 1
                self._events.append((stream, _ENDED, None))
        return 0

    cdef int _close(self, Stream stream, uint32_t code) except -1:
        stream.closed = True
        self.queued -= stream.queued
        stream.queued = 0
        stream._pieces.clear()
        stream._first = 0
        self.streams.pop(stream.id, None)
        if stream._headers_complete and not stream.ending:
            self._events.append((stream, _CLOSED, code))
        return 0
