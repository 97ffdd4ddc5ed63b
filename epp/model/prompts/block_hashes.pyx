# cython: language_level=3, boundscheck=False, wraparound=False
"""Hashes of blocks, counted; the contract is `block_hashes.py`.

A table with linear probing, at most half full; a count of 0 marks a free place.
"""

cimport cython
from cpython.array cimport array, clone, resize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t

from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view, words_of

cdef Py_ssize_t _MIN = 64
cdef array _UINT64 = array("Q")

cdef struct Place:
    uint64_t key
    uint64_t count


@cython.final
@cython.no_gc
cdef class BlockHashes:
    """Hashes of blocks, each as often as it was added."""

    cdef Place* _at
    cdef Py_ssize_t _places, _held

    def __cinit__(self):
        self._move(_MIN)

    def __dealloc__(self):
        PyMem_Free(self._at)

    def __len__(self):
        return self._held

    def __iter__(self):
        cdef Py_ssize_t at
        for at in range(self._places):
            if self._at[at].count:
                yield self._at[at].key

    def add(self, hashes):
        cdef UInt64View words
        cdef Py_ssize_t position
        cdef Place* place
        acquire_view(&words, hashes)
        try:
            for position in range(words.size):
                place = self._place_of(words.at[position])
                if place.count == 0:
                    if 2 * self._held >= self._places:
                        self._move(2 * self._places)
                        place = self._place_of(words.at[position])
                    place.key = words.at[position]
                    self._held += 1
                place.count += 1
        finally:
            release_view(&words)

    def remove(self, hashes):
        cdef UInt64View words
        cdef array gone
        cdef Py_ssize_t position, found = 0
        cdef Place* place
        acquire_view(&words, hashes)
        try:
            gone = clone(_UINT64, words.size, False)
            for position in range(words.size):
                place = self._place_of(words.at[position])
                if place.count == 1:
                    words_of(gone)[found] = place.key
                    found += 1
                    self._free(place - self._at)
                elif place.count:
                    place.count -= 1
        finally:
            release_view(&words)
        if self._held == 0 and self._places > _MIN:
            self._move(_MIN)
        return _cut(gone, found)

    def missing(self, hashes):
        cdef UInt64View words
        cdef array absent
        cdef Py_ssize_t position, found = 0
        acquire_view(&words, hashes)
        try:
            absent = clone(_UINT64, words.size, False)
            for position in range(words.size):
                if self._place_of(words.at[position]).count == 0:
                    words_of(absent)[found] = words.at[position]
                    found += 1
        finally:
            release_view(&words)
        return _cut(absent, found)

    def last(self, hashes):
        cdef UInt64View words
        cdef Py_ssize_t blocks
        acquire_view(&words, hashes)
        blocks = words.size
        while blocks and self._place_of(words.at[blocks - 1]).count == 0:
            blocks -= 1
        release_view(&words)
        return blocks

    cdef inline Place* _place_of(self, uint64_t key) noexcept:
        """Return the place of a key, or its free place."""
        cdef Py_ssize_t last = self._places - 1, at = <Py_ssize_t>(key & last)
        while self._at[at].count and self._at[at].key != key:
            at = (at + 1) & last
        return &self._at[at]

    cdef void _free(self, Py_ssize_t free) noexcept:
        cdef Py_ssize_t last = self._places - 1, at = free
        self._held -= 1
        while True:  # what stands behind it moves up, where it is found from its own place on
            at = (at + 1) & last
            if self._at[at].count == 0:
                break
            if ((at - <Py_ssize_t>(self._at[at].key & last)) & last) >= ((at - free) & last):
                self._at[free] = self._at[at]
                free = at
        self._at[free].count = 0

    cdef int _move(self, Py_ssize_t places) except -1:
        """Move into a table of this many places."""
        cdef Place* before = self._at
        cdef Py_ssize_t at, end = self._places
        cdef Place* table = <Place*>PyMem_Calloc(places, sizeof(Place))
        if table == NULL:
            raise MemoryError
        self._at, self._places = table, places
        for at in range(end):
            if before[at].count:
                self._place_of(before[at].key)[0] = before[at]
        PyMem_Free(before)
        return 0


cdef array _cut(array words, Py_ssize_t size):
    if size < len(words):
        resize(words, size)
    return words
