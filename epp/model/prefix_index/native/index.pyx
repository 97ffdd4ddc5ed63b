# cython: language_level=3, boundscheck=False, wraparound=False
"""Which endpoints hold which block; for a chain, the longest held prefix per endpoint.

The contract is `../index.py`. Here a block is an entry of a table (`table.pxd`) that leads to the
set of its holders (`slot_sets.pxd`). All blocks that the same endpoints hold share one set
(`holders.pxd`). `search.pxd` finds how far endpoints hold a chain.
"""

from collections import deque
from itertools import islice
from typing import NewType

from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_FromSsize_t
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from epp.model.prefix_index.native.holders cimport (
    Holders, add_holder, close_holders, open_holders, remove_holder,
)
from epp.model.prefix_index.native.search cimport DEEPEST, Search, jump, lowest_bit, walk
from epp.model.prefix_index.native.slot_sets cimport SET_BYTES, widen_sets
from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view

cdef extern from * nogil:
    int leading_zeros "__builtin_clzll"(unsigned long long)

Slot = NewType("Slot", int)

BUDGET = 2 << 30
HELD_BYTES = 32
"""What one block at one endpoint takes in the compiled `BlockPool`."""
HASH_BYTES = 17
"""What one block takes here, however many hold it: 12 bytes, and a share of free places."""
MAX_SLOTS = 1 << 16

cdef uint64_t _MAX_SLOTS = MAX_SLOTS
cdef uint64_t _HELD_BYTES = HELD_BYTES, _HASH_BYTES = HASH_BYTES, _SET_BYTES = SET_BYTES
cdef Py_ssize_t _PURGED_AT_LEAST = 1024


cdef class PrefixIndex:
    """Sets of endpoints by block hash. `budget` is in bytes, and counts the endpoints' pools."""

    cdef Holders _holders
    cdef Search _search
    # Rows of bits, which with those of the search are one piece of memory.
    cdef uint64_t* _used
    cdef uint64_t* _live
    cdef uint64_t* _closed
    cdef uint64_t _budget
    cdef object _leaving

    def __cinit__(self, uint64_t budget=BUDGET):
        self._budget = budget
        self._leaving = deque()
        self._search.holders = &self._holders
        if not open_holders(&self._holders):
            raise MemoryError
        self._allocate_rows(1)

    def __dealloc__(self):
        close_holders(&self._holders)
        free(self._used)

    def __len__(self):
        return self._holders.blocks.held

    @property
    def held(self):
        return self._holders.held

    @property
    def used_bytes(self):
        return self._used_bytes()

    cdef inline uint64_t _used_bytes(self) noexcept:
        return (
            self._holders.held * _HELD_BYTES
            + self._holders.blocks.held * _HASH_BYTES
            + self._holders.sets.held * (_SET_BYTES + 8 * self._holders.sets.words)
        )

    @property
    def excess(self):
        cdef uint64_t used = self._used_bytes()
        return (used - self._budget + _HELD_BYTES - 1) // _HELD_BYTES if used > self._budget else 0

    # Slots.

    def add_slot(self):
        cdef uint32_t word = 0
        cdef uint64_t slot
        self.purge(_PURGED_AT_LEAST)
        while word < self._holders.sets.words and ~self._used[word] == 0:
            word += 1
        if word * <uint64_t>64 == _MAX_SLOTS:
            raise OverflowError(f"an index has at most {MAX_SLOTS} slots")
        if word == self._holders.sets.words:
            self._double_slots()
        slot = word * <uint64_t>64 + lowest_bit(~self._used[word])
        _put(self._used, slot)
        _put(self._live, slot)
        return slot

    def remove_slot(self, slot, held):
        cdef uint32_t number = self._in_use(slot)
        steps = iter(held)
        _clear(self._live, number)
        _clear(self._closed, number)
        self._leaving.append((number, steps))
        self.purge(_PURGED_AT_LEAST)

    def mark(self, slot, *, closed):
        cdef uint32_t number = self._in_use(slot)
        if closed:
            _put(self._closed, number)
        else:
            _clear(self._closed, number)

    def purge(self, Py_ssize_t blocks):
        cdef Py_ssize_t read
        while blocks > 0 and self._leaving:
            leaving = self._leaving[0]
            part = list(islice(leaving[1], blocks))
            read = len(part)
            self._remove(leaving[0], part)
            if read < blocks and self._leaving and self._leaving[0] is leaving:
                self._leaving.popleft()
                _clear(self._used, leaving[0])
            blocks -= read

    cdef uint32_t _in_use(self, slot) except? 0xffffffff:
        """Return the number of a slot that is given out."""
        cdef Py_ssize_t number = slot
        if not 0 <= number < self._holders.sets.words * 64 or not _has(self._live, number):
            raise ValueError(f"slot {slot} is not in use")
        return number

    cdef int _double_slots(self) except -1:
        """Make room for twice as many slots."""
        cdef uint32_t words = 2 * self._holders.sets.words
        self._allocate_rows(words)
        if not widen_sets(&self._holders.sets, words):
            raise MemoryError
        return 0

    cdef int _allocate_rows(self, uint32_t words) except -1:
        """Give all rows room for `words` words; those that stay are copied."""
        cdef uint64_t frames = DEEPEST * <uint64_t>(words + 2), slots = 64 * <uint64_t>words
        cdef uint64_t* row = <uint64_t*>calloc(4 * words + frames + slots, sizeof(uint64_t))
        cdef uint64_t* before = self._used
        if row == NULL:
            raise MemoryError
        self._used = _moved(row, self._used, self._holders.sets.words)
        self._live = _moved(row + words, self._live, self._holders.sets.words)
        self._closed = _moved(row + 2 * words, self._closed, self._holders.sets.words)
        self._search.slots = row + 3 * words
        self._search.frames = row + 4 * words
        self._search.depths = <int64_t*>(self._search.frames + frames)
        free(before)
        return 0

    # Blocks.

    def add(self, slot, hashes):
        cdef uint32_t number = self._in_use(slot)
        cdef UInt64View words
        acquire_view(&words, hashes)
        try:
            if self._leaving:
                self.purge(2 * words.size + _PURGED_AT_LEAST)
            if add_holder(&self._holders, number, words.at, words.size) < 0:
                raise MemoryError
        finally:
            release_view(&words)

    def remove(self, slot, hashes):
        self._remove(self._in_use(slot), hashes)

    cdef int _remove(self, uint32_t slot, hashes) except -1:
        cdef UInt64View words
        acquire_view(&words, hashes)
        try:
            if remove_holder(&self._holders, slot, words.at, words.size) < 0:
                raise MemoryError
        finally:
            release_view(&words)
        return 0

    # Look-up.

    def match(self, hashes):
        cdef Py_ssize_t i, count
        cdef UInt64View words
        acquire_view(&words, hashes)
        memset(self._search.depths, 0, 64 * self._holders.sets.words * sizeof(int64_t))
        if words.size:
            self._match(words.at, words.size)
        release_view(&words)
        count = _length(self._used, self._holders.sets.words)
        depths = PyList_New(count)
        for i in range(count):
            depth = PyLong_FromSsize_t(self._search.depths[i])
            Py_INCREF(depth)
            PyList_SET_ITEM(depths, i, depth)
        return depths

    cdef void _match(self, const uint64_t* hashes, Py_ssize_t size) noexcept:
        """Search for closed endpoints together, then for the others."""
        cdef uint64_t* slots = self._search.slots
        cdef uint64_t closed = 0, holed = 0
        cdef uint32_t i, words = self._holders.sets.words
        for i in range(words):
            slots[i] = self._live[i] & self._closed[i]
            closed |= slots[i]
        if closed:
            jump(&self._search, hashes, size)
        for i in range(words):
            slots[i] = self._live[i] & ~self._closed[i]
            holed |= slots[i]
        if holed:
            walk(&self._search, hashes, size)


cdef inline bint _has(const uint64_t* row, uint64_t slot) noexcept:
    return row[slot >> 6] >> (slot & 63) & 1


cdef inline void _put(uint64_t* row, uint64_t slot) noexcept:
    row[slot >> 6] |= <uint64_t>1 << (slot & 63)


cdef inline void _clear(uint64_t* row, uint64_t slot) noexcept:
    row[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))


cdef uint64_t* _moved(uint64_t* row, const uint64_t* before, uint32_t words) noexcept:
    """Copy a row to a larger place; if `before` is NULL there is no row yet."""
    if before != NULL:
        memcpy(row, before, words * sizeof(uint64_t))
    return row


cdef Py_ssize_t _length(const uint64_t* row, uint32_t words) noexcept:
    """Return the number of the last bit that is set, plus one."""
    while words:
        words -= 1
        if row[words]:
            return words * 64 + 64 - leading_zeros(row[words])
    return 0
