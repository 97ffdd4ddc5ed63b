"""Sequences of unsigned 64-bit integers, such as hashes of blocks, as C reads them."""

from cpython.array cimport array
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.long cimport PyLong_AsUnsignedLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast
from libc.stdint cimport uint64_t


cdef extern from "Python.h":
    Py_ssize_t _fast_size "PySequence_Fast_GET_SIZE"(object)
    PyObject* _fast_item "PySequence_Fast_GET_ITEM"(object, Py_ssize_t)  # borrowed


cdef struct UInt64View:
    const uint64_t* at
    Py_ssize_t size
    uint64_t* copy  # NULL if `at` is the memory of `buffer`
    Py_buffer buffer


cdef inline int acquire_view(UInt64View* view, object source) except -1:
    """View an array of such integers without a copy, or copy any sequence of integers.

    Raises `TypeError` for what holds anything but integers, `OverflowError` for one that is
    negative or has more than 64 bits; then there is nothing to release.
    """
    view.copy = NULL
    if PyObject_CheckBuffer(source):
        PyObject_GetBuffer(source, &view.buffer, PyBUF_FORMAT | PyBUF_STRIDES)
        if _is_uint64(&view.buffer):
            view.at = <const uint64_t*>view.buffer.buf
            view.size = view.buffer.shape[0]
            return 0
        PyBuffer_Release(&view.buffer)
    return _copy(view, PySequence_Fast(source, "a sequence of integers is needed"))


cdef inline bint _is_uint64(const Py_buffer* buffer) noexcept:
    """Whether memory holds unsigned integers of 64 bits, one after the other."""
    return (
        buffer.ndim == 1
        and buffer.itemsize == sizeof(uint64_t)
        and buffer.strides[0] == sizeof(uint64_t)
        and buffer.format != NULL
        and (buffer.format[0] == c"Q" or buffer.format[0] == c"L")
        and buffer.format[1] == 0
    )


cdef inline int _copy(UInt64View* view, object items) except -1:
    cdef Py_ssize_t i, size = _fast_size(items)
    view.copy = <uint64_t*>PyMem_Malloc(max(size, 1) * sizeof(uint64_t))
    if view.copy == NULL:
        raise MemoryError
    try:
        for i in range(size):
            view.copy[i] = PyLong_AsUnsignedLongLong(<object>_fast_item(items, i))
    except BaseException:
        PyMem_Free(view.copy)
        raise
    view.at = view.copy
    view.size = size
    return 0


cdef inline uint64_t* words_of(array words) noexcept:
    """Return where an array of such integers has them."""
    return <uint64_t*>words.data.as_voidptr


cdef inline void release_view(UInt64View* view) noexcept:
    if view.copy != NULL:
        PyMem_Free(view.copy)
    else:
        PyBuffer_Release(&view.buffer)
