"""Bytes of a body, which are `bytes` or a view of them: their address and number."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from libc.stdint cimport uint8_t


cdef inline bint is_body_data(data) noexcept:
    """Return whether the others may be asked about it."""
    if PyBytes_CheckExact(data):
        return True
    return (
        PyMemoryView_Check(data) and PyMemoryView_GET_BUFFER(data).itemsize == 1
        and PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(data), b"C")
    )


cdef inline const uint8_t* start_of(data) noexcept:
    if PyBytes_CheckExact(data):
        return <const uint8_t*>PyBytes_AS_STRING(data)
    return <const uint8_t*>PyMemoryView_GET_BUFFER(data).buf


cdef inline Py_ssize_t size_of(data) noexcept:
    """Say how many bytes there are."""
    if PyBytes_CheckExact(data):
        return PyBytes_GET_SIZE(data)
    return PyMemoryView_GET_BUFFER(data).len
