"""Sequences of 64-bit words, such as hashes of blocks, as C sees them."""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.long cimport PyLong_AsUnsignedLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast
from libc.stdint cimport uint64_t


cdef extern from "Python.h":
    Py_ssize_t _size_of_fast "PySequence_Fast_GET_SIZE"(object)
    PyObject* _item_of_fast "PySequence_Fast_GET_ITEM"(object, Py_ssize_t)  # borrowed


cdef struct Words:
    # Lent by `view` where `own` is NULL.
    const uint64_t* at
    Py_ssize_t size
    uint64_t* own
    Py_buffer view


cdef inline int take_words(Words* words, object source) except -1:
    """Read words from an array of them without a copy, or from any sequence of integers.

    Raises `TypeError` for what holds anything but integers, `OverflowError` for one that is
    negative or has more than 64 bits; then there is nothing to give back.
    """
    words.own = NULL
    if PyObject_CheckBuffer(source):
        PyObject_GetBuffer(source, &words.view, PyBUF_FORMAT | PyBUF_STRIDES)
        if _are_words(&words.view):
            words.at = <const uint64_t*>words.view.buf
            words.size = words.view.shape[0]
            return 0
        PyBuffer_Release(&words.view)
    return _copy_words(words, PySequence_Fast(source, "a sequence of integers is needed"))


cdef inline bint _are_words(const Py_buffer* view) noexcept:
    """Whether memory holds unsigned integers of 64 bits, one after the other."""
    return (
        view.ndim == 1
        and view.itemsize == sizeof(uint64_t)
        and view.strides[0] == sizeof(uint64_t)
        and view.format != NULL
        and (view.format[0] == c"Q" or view.format[0] == c"L")
        and view.format[1] == 0
    )


cdef inline int _copy_words(Words* words, object items) except -1:
    cdef Py_ssize_t i, size = _size_of_fast(items)
    words.own = <uint64_t*>PyMem_Malloc(max(size, 1) * sizeof(uint64_t))
    if words.own == NULL:
        raise MemoryError
    try:
        for i in range(size):
            words.own[i] = PyLong_AsUnsignedLongLong(<object>_item_of_fast(items, i))
    except BaseException:
        PyMem_Free(words.own)
        raise
    words.at = words.own
    words.size = size
    return 0


cdef inline void give_back(Words* words) noexcept:
    if words.own != NULL:
        PyMem_Free(words.own)
    else:
        PyBuffer_Release(&words.view)
