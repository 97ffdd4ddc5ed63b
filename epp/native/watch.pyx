# cython: language_level=3, boundscheck=False, wraparound=False
"""Looks for one key in bytes that pass by. Its twin is `epp.protocol.watch`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp

cdef extern from "<string.h>":
    void* memmem(const void*, size_t, const void*, size_t) nogil

cdef bytes _KEY = b'"usage"'
cdef const char* _key = PyBytes_AS_STRING(_KEY)
cdef enum:
    _SIZE = 7


cdef class Watch:
    """As `epp.protocol.watch.Watch`."""

    cdef public bytes rest
    cdef public bint eager

    def __cinit__(self):
        self.rest = b""

    def feed(self, bytes chunk not None):
        """Take the next bytes."""
        cdef bytes data = self.rest + chunk if self.rest else chunk
        cdef const char* at = PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.eager or _has_object(at, at + size):
            self.seen(data)
        else:
            self.rest = _possible_start(at, size)

    def seen(self, bytes data):
        """Look at what is shown, and set `rest` and `eager` anew."""
        raise NotImplementedError  # who derives from it has one; a compiled class cannot be abstract


cdef bint _has_object(const char* at, const char* end):
    """Whether the key stands there and has an object, or nothing yet."""
    cdef const char* found
    while True:
        found = <const char*>memmem(at, end - at, _key, _SIZE)
        if found == NULL:
            return False
        at = _behind_space(found + _SIZE, end)
        if at < end and at[0] == c":":
            at = _behind_space(at + 1, end)
        if at == end or at[0] == c"{":
            return True


cdef const char* _behind_space(const char* at, const char* end):
    while at < end and at[0] in b" \t\n\r\v\f":  # what `re` calls space
        at += 1
    return at


cdef bytes _possible_start(const char* data, Py_ssize_t size):
    """Return what stands at the end and may be the key's start."""
    cdef Py_ssize_t length
    for length in range(min(size, _SIZE - 1), 0, -1):
        if memcmp(data + size - length, _key, length) == 0:
            return data[size - length : size]
    return b""
