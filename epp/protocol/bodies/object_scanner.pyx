# cython: language_level=3, boundscheck=False, wraparound=False
"""Finds the objects of one key in bytes that pass by; the contract is `object_scanner.py`."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp

cdef extern from "<string.h>":
    void* memmem(const void*, size_t, const void*, size_t) nogil

KEY = b'"usage"'
cdef bytes _KEY = KEY
cdef const char* _key = PyBytes_AS_STRING(_KEY)
cdef bytes _NOTHING = b""
cdef bytes _BACKSLASH = b"\\"
cdef tuple _NONE = ()
cdef enum:
    _SIZE = 7
    _TAIL = 64
    _MAX = 4096
    _KEPT = 16


@cython.freelist(16)
cdef class ObjectScanner:
    """As in `object_scanner.py`."""

    cdef bytes _rest
    cdef bint _open
    cdef bint _walking
    cdef bint _quoted
    cdef bint _lines
    cdef Py_ssize_t _levels
    cdef Py_ssize_t _depth
    cdef list _found

    def __cinit__(self, Py_ssize_t levels=1, bint lines=False):
        self._levels = levels
        self._lines = lines
        self._rest = _NOTHING

    def feed(self, bytes chunk not None):
        cdef bytes data = self._rest + chunk if PyBytes_GET_SIZE(self._rest) else chunk
        cdef const char* at = PyBytes_AS_STRING(data)
        cdef const char* last = at + PyBytes_GET_SIZE(data)
        cdef const char* end
        cdef list settled = None
        if not self._open:
            if self._walking:
                settled = []
                at = self._next(at, last, settled)
            else:
                at = self._start(at, last)
        while at != NULL:
            end = _behind(at, last)
            if end == NULL:
                self._open = last - at <= _MAX
                self._rest = PyBytes_FromStringAndSize(at, last - at) if self._open else _NOTHING
                if not self._open:
                    self._forget()
                break
            self._open = False
            self._walking = True
            if settled is None:
                settled = []
            if self._found is None:
                self._found = []
            elif len(self._found) == _KEPT:
                del self._found[0]
            self._found.append((self._depth, PyBytes_FromStringAndSize(at, end - at)))
            at = self._next(end, last, settled)
        return settled or _NONE

    def end(self):
        cdef list settled = []
        if not self._walking:
            return _NONE
        if not self._open and not self._quoted:
            self._settle(settled)
        return settled

    cdef _settle(self, list settled):
        """Everything is closed: the depth of an object is what was closed since it was found."""
        cdef Py_ssize_t depth
        if self._found is not None:
            for depth, each in self._found:
                if 0 < depth - self._depth <= self._levels:
                    settled.append(each)
        self._forget()

    cdef void _forget(self):
        self._found = None
        self._depth = 0
        self._walking = self._quoted = False

    cdef const char* _next(self, const char* at, const char* last, list settled) except? NULL:
        """Return where the next object begins; NULL if there is none yet, and keep its beginning."""
        cdef const char* value
        cdef char symbol
        while at < last:
            symbol = at[0]
            if symbol == c"\\":
                if at + 1 == last:
                    self._rest = _BACKSLASH
                    return NULL
                at += 1
            elif self._quoted:
                if symbol == c'"':
                    self._quoted = False
            elif symbol == c'"':
                value = _value_of_key(at, last)
                if value == last and last - at <= _TAIL:
                    self._rest = PyBytes_FromStringAndSize(at, last - at)
                    return NULL
                if value != NULL and value < last:
                    return value
                self._quoted = True
            elif symbol == c"{" or symbol == c"[":
                self._depth += 1
            elif symbol == c"}" or symbol == c"]":
                self._depth -= 1
            elif symbol == c"\n" and self._lines:
                self._settle(settled)
                return self._start(at + 1, last)
            at += 1
        self._rest = _NOTHING
        return NULL

    cdef const char* _start(self, const char* at, const char* last) except? NULL:
        """As `_next`, if none was found before in the same value."""
        cdef const char* key
        cdef const char* value
        while True:
            key = <const char*>memmem(at, last - at, _key, _SIZE)
            if key == NULL:
                self._rest = _possible_start(at, last)
                return NULL
            value = _value_of_key(key, last)
            if value == last and last - key <= _TAIL:
                self._rest = PyBytes_FromStringAndSize(key, last - key)
                return NULL
            if value != NULL and value < last:
                return value
            at = key + _SIZE - 1  # its last quote may be another's first


cdef const char* _value_of_key(const char* at, const char* last) noexcept:
    """Return where the object of a key begins that may begin there.

    `last` if that is not seen yet, NULL if it is another key, or no object.
    """
    cdef Py_ssize_t length = min(last - at, <Py_ssize_t>_SIZE)
    if memcmp(at, _key, length) != 0:
        return NULL
    if length < _SIZE:
        return last
    at = _behind_space(at + _SIZE, last)
    if at < last:
        if at[0] != c":":
            return NULL
        at = _behind_space(at + 1, last)
        if at < last and at[0] != c"{":
            return NULL
    return at


cdef const char* _behind(const char* at, const char* last) noexcept:
    """Return the end of the object that begins there, or NULL while it is incomplete."""
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
