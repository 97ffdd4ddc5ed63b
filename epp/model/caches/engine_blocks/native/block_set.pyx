# cython: language_level=3, boundscheck=False, wraparound=False
"""A set of blocks in a table (`table.pxd`), 17 bytes each.

The contract is `../block_set.py`.
"""

cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_FromUnsignedLongLong
from cpython.mem cimport PyMem_RawFree
from libc.stdint cimport uint32_t

from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view
from epp.model.table cimport (
    PARTS, Entry, Part, Table, delete, find, find_or_free_place, free_table, insert, new_table,
)

cdef Py_ssize_t _STEP = 1 << 9


@cython.final
cdef class BlockSet:
    """Some of our blocks; see `block_set.py`."""

    cdef Table* _table

    def __cinit__(self):
        self._table = new_table()
        if self._table == NULL:
            raise MemoryError

    def __dealloc__(self):
        free_table(self._table)

    def __len__(self):
        return self._table.held

    def __contains__(self, block_hash):
        return find(self._table, PyLong_AsUnsignedLongLong(block_hash)) != NULL

    def add(self, hashes):
        cdef UInt64View words
        cdef Entry* entry
        cdef Py_ssize_t i
        acquire_view(&words, hashes)
        try:
            for i in range(words.size):
                entry = find_or_free_place(self._table, words.at[i])
                if entry == NULL:
                    raise MemoryError
                if entry.value == 0:
                    insert(self._table, entry, words.at[i], 1)
        finally:
            release_view(&words)

    def discard(self, hashes):
        cdef UInt64View words
        cdef Entry* entry
        cdef Py_ssize_t i
        acquire_view(&words, hashes)
        for i in range(words.size):
            entry = find(self._table, words.at[i])
            if entry != NULL:
                delete(self._table, entry)
        release_view(&words)

    def parts(self):
        cdef list blocks = []
        cdef int number
        for number in range(PARTS):
            _list_blocks(&self._table.parts[number], blocks)
            if len(blocks) >= _STEP:
                yield blocks
                blocks = []
        yield blocks

    def drain(self):
        cdef list blocks = []
        cdef int number
        cdef Part* part
        for number in range(PARTS):
            part = &self._table.parts[number]
            _list_blocks(part, blocks)
            self._table.held -= part.held
            PyMem_RawFree(part.places)
            part.places, part.room, part.held = NULL, 0, 0
            if len(blocks) >= _STEP:
                yield blocks
                blocks = []
        yield blocks


cdef int _list_blocks(const Part* part, list blocks) except -1:
    """Add all blocks of a part of the table to a list."""
    cdef uint32_t place
    for place in range(part.room):
        if part.places[place].value:
            blocks.append(PyLong_FromUnsignedLongLong(part.places[place].key))
    return 0
