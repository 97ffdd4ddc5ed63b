# cython: language_level=3, boundscheck=False, wraparound=False
"""Finds the objects of one key in bytes that pass by; the contract is `object_scanner.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp

cdef extern from "<string.h>":
    void* memmem(const void*, size_t, const void*, size_t) nogil

KEY = b'"usage"'
cdef bytes _KEY = KEY
cdef const char* _key = PyBytes_AS_STRING(_KEY)
cdef bytes _NOTHING = b""
cdef tuple _NONE = ()
cdef enum:
    _SIZE = 7
    _TAIL = 64
    _MOST = 65536


cdef class ObjectScanner:
    """As in `object_scanner.py`."""

    cdef bytes _rest
    cdef bint _open

    def __cinit__(self):
        self._rest = _NOTHING

    def feed(self, bytes chunk not None):
        """Take the next bytes; return the objects that end in them."""
        cdef bytes data = self._rest + chunk if PyBytes_GET_SIZE(self._rest) else chunk
        cdef const char* at = PyBytes_AS_STRING(data)
        cdef const char* last = at + PyBytes_GET_SIZE(data)
        cdef const char* end
        cdef list found = None
        if not self._open:
            at = self._start(at, last)
        while at != NULL:
            end = _behind(at, last)
            if end == NULL:
                self._open = last - at <= _MOST
                self._rest = PyBytes_FromStringAndSize(at, last - at) if self._open else _NOTHING
                break
            self._open = False
            if found is None:
                found = []
            found.append(PyBytes_FromStringAndSize(at, end - at))
            at = self._start(end, last)
        return _NONE if found is None else found

    cdef const char* _start(self, const char* at, const char* last) except? NULL:
        """Return where the next object begins; NULL keeps what may still become one."""
        cdef const char* key
        cdef const char* value
        cdef bint named
        while True:
            key = <const char*>memmem(at, last - at, _key, _SIZE)
            if key == NULL:
                self._rest = _possible_start(at, last)
                return NULL
            value = _behind_space(key + _SIZE, last)
            named = value < last and value[0] == c":"
            if named:
                value = _behind_space(value + 1, last)
            if value == last and last - key <= _TAIL:
                self._rest = PyBytes_FromStringAndSize(key, last - key)
                return NULL
            if named and value < last and value[0] == c"{":
                return value
            at = key + _SIZE - 1  # its last quote may be another's first


cdef const char* _behind(const char* at, const char* last) noexcept:
    """Return what follows the object that begins there, or NULL while it is not whole."""
    cdef Py_ssize_t depth = 0
    while at < last:
        if at[0] == c"{":
            depth += 1
        elif at[0] == c"}":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL


cdef const char* _behind_space(const char* at, const char* last) noexcept:
    while at < last and at[0] in b" \t\n\r\v\f":  # what `re` calls space
        at += 1
    return at


cdef bytes _possible_start(const char* at, const char* last):
    """Return what stands at the end and may be the key's start."""
    cdef Py_ssize_t length
    for length in range(min(last - at, _SIZE - 1), 0, -1):
        if memcmp(last - length, _key, length) == 0:
            return PyBytes_FromStringAndSize(last - length, length)
    return _NOTHING
