# cython: language_level=3, boundscheck=False, wraparound=False
"""A set of block hashes; the contract is `block_hashes.py`.

A table of keys with linear probing, at most half full; 0 marks a free place, and the hash 0 has a
flag of its own.
"""

cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t

from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view

cdef Py_ssize_t _LEAST = 64


@cython.final
@cython.no_gc
cdef class BlockHashes:
    """Hashes of blocks, each once."""

    cdef uint64_t* _at
    cdef Py_ssize_t _places, _held
    cdef bint _has_zero

    def __cinit__(self):
        self._at = <uint64_t*>PyMem_Calloc(_LEAST, sizeof(uint64_t))
        if self._at == NULL:
            raise MemoryError
        self._places = _LEAST

    def __dealloc__(self):
        PyMem_Free(self._at)

    def __len__(self):
        return self._held + self._has_zero

    def add(self, block_hash):
        """Add one; one that is there changes nothing."""
        cdef uint64_t key = PyLong_AsUnsignedLongLong(block_hash)
        if key == 0:
            self._has_zero = True
        elif self._at[self._place_of(key)] == 0:
            if 2 * self._held >= self._places:
                self._widen()
            self._at[self._place_of(key)] = key
            self._held += 1

    def discard(self, block_hash):
        """Remove one; one that is not there changes nothing."""
        cdef uint64_t key = PyLong_AsUnsignedLongLong(block_hash)
        cdef Py_ssize_t last = self._places - 1, at, free
        if key == 0:
            self._has_zero = False
            return
        free = at = self._place_of(key)
        if self._at[at] == 0:
            return
        self._held -= 1
        while True:  # what stands behind it moves up, where it is found from its own place on
            at = (at + 1) & last
            if self._at[at] == 0:
                break
            if ((at - <Py_ssize_t>(self._at[at] & last)) & last) >= ((at - free) & last):
                self._at[free] = self._at[at]
                free = at
        self._at[free] = 0

    def has_any(self, hashes):
        """Return whether any block of a prompt is in the set."""
        cdef UInt64View words
        cdef Py_ssize_t position
        cdef bint found = False
        acquire_view(&words, hashes)
        for position in range(words.size):
            if words.at[position] == 0:
                found = self._has_zero
            else:
                found = self._at[self._place_of(words.at[position])] != 0
            if found:
                break
        release_view(&words)
        return found

    cdef inline Py_ssize_t _place_of(self, uint64_t key) noexcept:
        """Return where a key stands, or is to stand."""
        cdef Py_ssize_t last = self._places - 1, at = <Py_ssize_t>(key & last)
        while self._at[at] != 0 and self._at[at] != key:
            at = (at + 1) & last
        return at

    cdef int _widen(self) except -1:
        cdef uint64_t* before = self._at
        cdef Py_ssize_t places = self._places, at
        cdef uint64_t* wide = <uint64_t*>PyMem_Calloc(2 * places, sizeof(uint64_t))
        if wide == NULL:
            raise MemoryError
        self._at, self._places = wide, 2 * places
        for at in range(places):
            if before[at]:
                self._at[self._place_of(before[at])] = before[at]
        PyMem_Free(before)
        return 0
