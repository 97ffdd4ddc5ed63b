# cython: language_level=3, boundscheck=True, wraparound=False
"""gRPC's length-prefixed messages, cut out of a stream of bytes that is split anywhere.

Tests compare it with `tests/native/framing_oracle.py`; the other transport leaves this to grpcio.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1
    char* _start_of "PyBytes_AS_STRING"(PyObject*)
    Py_ssize_t _size_of "PyBytes_GET_SIZE"(PyObject*)

RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
cdef int _TOO_LARGE = RESOURCE_EXHAUSTED
cdef int _COMPRESSED = UNIMPLEMENTED
cdef Py_ssize_t _HEAD = 5
cdef Py_ssize_t _TAKEN_AT_ONCE = 1 << 20  # memory grows with what arrives, not what is announced


cdef class Deframer:
    """Cuts one direction of one stream; `limit` is the most bytes that a message may have.

    `fault` is 0, or the gRPC status to answer with: RESOURCE_EXHAUSTED for a message over the
    limit, UNIMPLEMENTED for a compressed one. What follows a fault is dropped. `grown` is set to
    the kept size of an incomplete message when that grows; its reader sets it back to 0.
    """

    def __cinit__(self, Py_ssize_t limit):
        self.limit = limit
        self.fault = 0
        self._head_size = 0
        self._body = NULL
        self._size = 0
        self._filled = 0
        self.grown = 0

    def __dealloc__(self):
        Py_XDECREF(self._body)

    @property
    def within(self):
        """Whether a message has begun and not ended."""
        return self.mid_message()

    cdef bint mid_message(self):
        return self._head_size > 0

    def feed(self, bytes data not None):
        """Take bytes; return the messages that they complete."""
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef size_t left = len(data)
        cdef bytes message
        found = []
        while (message := self.next(&at, &left)) is not None:
            found.append(message)
        return found

    cdef bytes next(self, const uint8_t** data, size_t* length):
        """Take bytes up to the end of one message and return it, or take all and return None."""
        cdef Py_ssize_t part
        while length[0] > 0 and not self.fault:
            if self._head_size < _HEAD:
                part = min(_HEAD - self._head_size, <Py_ssize_t>length[0])
                memcpy(self._head + self._head_size, data[0], part)
                self._head_size += part
                data[0] += part
                length[0] -= part
                if self._head_size < _HEAD:
                    return None
                self._start()
                if self.fault:
                    return None
                if <Py_ssize_t>length[0] >= self._size:  # nearly all messages come whole
                    message = PyBytes_FromStringAndSize(<const char*>data[0], self._size)
                    data[0] += self._size
                    length[0] -= self._size
                    self._head_size = 0
                    return message
                self._body = _new_bytes(NULL, min(self._size, _TAKEN_AT_ONCE))
            if self._body == NULL:
                raise MemoryError("the message that began had no memory")
            part = min(self._size - self._filled, <Py_ssize_t>length[0])
            part = min(part, self._room())
            memcpy(_start_of(self._body) + self._filled, data[0], part)
            self._filled += part
            data[0] += part
            length[0] -= part
            if self._filled == self._size:
                message = <bytes>self._body  # a second reference; the first goes
                Py_XDECREF(self._body)
                self._body = NULL
                self._head_size = 0
                self.grown = 0
                return message
        length[0] = 0
        return None

    cdef int drop(self) except -1:
        """Drop an incomplete message; no bytes may follow."""
        Py_XDECREF(self._body)
        self._body = NULL
        return 0

    cdef int _start(self) except -1:
        """Read the head of a message."""
        cdef uint8_t* head = self._head
        self._filled = 0
        # gRPC over HTTP/2, Length-Prefixed-Message: a byte for Compressed-Flag, then the length,
        # four bytes, big-endian.
        self._size = (
            <Py_ssize_t>head[1] << 24 | <Py_ssize_t>head[2] << 16
            | <Py_ssize_t>head[3] << 8 | <Py_ssize_t>head[4]
        )
        # gRPC over HTTP/2: a server that cannot decompress answers UNIMPLEMENTED.
        if head[0]:
            self.fault = _COMPRESSED
        elif self._size > self.limit:
            self.fault = _TOO_LARGE
        return 0

    cdef int _room(self) except -1:
        """Give the free bytes of the body's buffer, which grows if it is full."""
        cdef Py_ssize_t held = _size_of(self._body)
        if self._filled == held:
            self.grown = min(self._size, 2 * held)
            _PyBytes_Resize(&self._body, self.grown)
        return <int>min(_size_of(self._body) - self._filled, <Py_ssize_t>0x7fffffff)
