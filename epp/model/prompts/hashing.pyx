# cython: language_level=3, boundscheck=False, wraparound=False
"""Cuts prompts into blocks and chains their hashes, in one call a prompt.

The contract is `hashing.py`. The hash is XXH3 of 64 bits, from xxHash's own header.
"""

from typing import NewType

from cpython.array cimport array, clone, resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport uint64_t

from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view, words_of

cdef extern from * nogil:
    """
    #define XXH_INLINE_ALL
    #include <xxhash.h>
    """
    uint64_t XXH3_64bits_withSeed(const void* data, size_t size, uint64_t seed)

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int* overflow) except? -1

cdef enum:
    GRID_ROOM = 512

BlockHash = NewType("BlockHash", int)
FIRST_BLOCK_BYTES = 128

cdef uint64_t _FIRST = FIRST_BLOCK_BYTES
cdef uint64_t _PER_DOUBLING = 16
cdef uint64_t _LONGEST = <uint64_t>1 << 31

cdef array _UINT64 = array("Q")
cdef str _NO_ENDS = "blocks must end one after the other, and within the data"
cdef uint64_t[GRID_ROOM] _grid
cdef Py_ssize_t _grid_size = 0


cdef int _draw_grid() except -1:
    global _grid_size
    cdef uint64_t end = 0, power = 1
    while end < _LONGEST and _grid_size < GRID_ROOM:
        while power * 2 <= end:
            power *= 2
        end += max(_FIRST, power // _PER_DOUBLING)
        _grid[_grid_size] = end
        _grid_size += 1
    return 0


_draw_grid()


def text_chain(parent, bytes text not None, marks):
    cdef uint64_t seed = PyLong_AsUnsignedLongLong(parent)
    cdef array ends = block_ends(PyBytes_GET_SIZE(text), marks)
    return _chained(seed, text, words_of(ends), len(ends), 1), ends


cpdef array block_ends(uint64_t size, marks):
    """Return where the blocks of a text of `size` bytes end: on the grid, and at its marks."""
    cdef tuple given = tuple(marks)
    cdef Py_ssize_t count = 0, cut = 0, cuts = _grid_up_to(size)
    cdef array ends = clone(_UINT64, cuts + len(given), False)
    cdef uint64_t* at = words_of(ends)
    cdef uint64_t mark, before = 0
    for each in given:
        mark = _within(each, size)
        if mark == 0 or mark == before:
            continue
        if mark < before:
            return block_ends(size, sorted(given))
        before = mark
        while cut < cuts and _grid[cut] <= mark:
            if _grid[cut] < mark:
                at[count] = _grid[cut]
                count += 1
            cut += 1
        at[count] = mark
        count += 1
    for cut in range(cut, cuts):
        at[count] = _grid[cut]
        count += 1
    if count < len(ends):
        resize(ends, count)
    return ends


cdef Py_ssize_t _grid_up_to(uint64_t size) noexcept:
    """Count the ends of the grid that are not beyond `size`."""
    cdef Py_ssize_t low = 0, high = _grid_size, middle
    while low < high:
        middle = (low + high) >> 1
        if _grid[middle] <= size:
            low = middle + 1
        else:
            high = middle
    return low


cdef uint64_t _within(mark, uint64_t size) except? 0:
    """Return a mark; 0 for one that is not in the text."""
    cdef int overflow = 0
    cdef long long end = PyLong_AsLongLongAndOverflow(mark, &overflow)
    return end if not overflow and 0 < end <= <long long>size else 0


def extend(parent, bytes data not None, ends, Py_ssize_t unit=1):
    cdef uint64_t seed = PyLong_AsUnsignedLongLong(parent)
    cdef UInt64View words
    if unit < 1:
        raise ValueError("a unit must have at least one byte")
    if type(ends) is range:
        ends = _spread(ends, PyBytes_GET_SIZE(data) // unit)
    acquire_view(&words, ends)
    try:
        _check(&words, PyBytes_GET_SIZE(data) // unit)
        return _chained(seed, data, words.at, words.size, unit)
    finally:
        release_view(&words)


cdef array _spread(ends, Py_ssize_t size):
    """Write a range out, if it ends within `size`."""
    cdef Py_ssize_t i, count
    cdef uint64_t first, step
    if not ends:
        return _UINT64
    if ends.step < 1 or ends.start < 1 or ends[len(ends) - 1] > size:
        raise ValueError(_NO_ENDS)
    first, step, count = ends.start, ends.step, len(ends)
    cdef array written = clone(_UINT64, count, False)
    for i in range(count):
        words_of(written)[i] = first + i * step
    return written


cdef int _check(UInt64View* ends, uint64_t size) except -1:
    cdef uint64_t before = 0
    cdef Py_ssize_t i
    for i in range(ends.size):
        if not before < ends.at[i] <= size:
            raise ValueError(_NO_ENDS)
        before = ends.at[i]
    return 0


cdef array _chained(
    uint64_t seed, bytes data, const uint64_t* ends, Py_ssize_t count, Py_ssize_t unit
):
    """Hash blocks whose ends have been checked."""
    cdef array hashes = clone(_UINT64, count, False)
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef uint64_t* named = words_of(hashes)
    cdef uint64_t start = 0
    cdef Py_ssize_t i
    for i in range(count):
        seed = XXH3_64bits_withSeed(at + start * unit, (ends[i] - start) * unit, seed)
        named[i] = seed
        start = ends[i]
    return hashes
