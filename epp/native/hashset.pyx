# cython: language_level=3, boundscheck=False, wraparound=False
"""Hashes to look sequences through for; the twin of `epp.model.prompts.hash_set`, which says what is promised."""

cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport uint64_t

from epp.native.table cimport (
    Entry, Table, drop, expect, fill, find, free_table, new_table, place_for,
)
from epp.native.words cimport Words, give_back, take_words


@cython.final
@cython.no_gc
cdef class HashSet:
    """A set of block hashes."""

    cdef Table* _held

    def __cinit__(self):
        self._held = new_table()
        if self._held == NULL:
            raise MemoryError

    def __dealloc__(self):
        free_table(self._held)

    def __len__(self):
        return self._held.held

    def add(self, block_hash):
        """Take one in; that it is there already changes nothing."""
        cdef uint64_t key = PyLong_AsUnsignedLongLong(block_hash)
        cdef Entry* place = place_for(self._held, key)
        if place == NULL:
            raise MemoryError
        if place.value == 0:
            fill(self._held, place, key, 1)

    def discard(self, block_hash):
        """Take one out; that it is not there changes nothing."""
        cdef Entry* place = find(self._held, PyLong_AsUnsignedLongLong(block_hash))
        if place != NULL:
            drop(self._held, place)

    def meets(self, hashes):
        """Whether any of them is in it."""
        cdef Words words
        cdef Py_ssize_t position
        take_words(&words, hashes)
        try:
            for position in range(words.size):
                expect(self._held, words.at[position])
            for position in range(words.size):
                if find(self._held, words.at[position]) != NULL:
                    return True
            return False
        finally:
            give_back(&words)
