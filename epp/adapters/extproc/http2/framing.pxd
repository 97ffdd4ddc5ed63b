"""The C side of `framing.pyx`."""

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t


cdef class Deframer:
    cdef readonly int fault
    cdef readonly Py_ssize_t limit
    cdef uint8_t _head[5]
    cdef int _head_size
    cdef PyObject* _body
    cdef Py_ssize_t _size
    cdef Py_ssize_t _filled
    cdef Py_ssize_t grown

    cdef int drop(self) except -1
    cdef bytes next(self, const uint8_t** data, size_t* length)
    cdef int _start(self) except -1
    cdef int _room(self) except -1
    cdef bint mid_message(self)
