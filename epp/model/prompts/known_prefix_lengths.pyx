# cython: language_level=3, boundscheck=False, wraparound=False
"""How many tokens prefixes have, by hash; the contract is `known_prefix_lengths.py`."""

cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from epp.model.prefetch cimport PREFETCHED, prefetch
from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view

cdef Py_ssize_t _MIN = 64


cdef struct Length:
    # Tokens plus one; 0 if the place is empty. `most` is 0 if they were counted.
    uint64_t key
    int64_t tokens
    int64_t most


cdef struct Table:
    Length* at
    Py_ssize_t places
    Py_ssize_t held


cdef int _open(Table* table, Py_ssize_t places) except -1:
    table.at = <Length*> PyMem_Calloc(places, sizeof(Length))
    if table.at == NULL:
        raise MemoryError
    table.places, table.held = places, 0
    return 0


cdef inline Length* _place_of(Table* table, uint64_t key) noexcept nogil:
    """Return the place of a key, or its free place: at most half of the places are taken."""
    cdef Py_ssize_t last = table.places - 1, at = key & last
    while table.at[at].tokens and table.at[at].key != key:
        at = (at + 1) & last
    return &table.at[at]


cdef int _widen(Table* table) except -1:
    cdef Table wide
    cdef Py_ssize_t at
    _open(&wide, table.places * 2)
    for at in range(table.places):
        if table.at[at].tokens:
            _place_of(&wide, table.at[at].key)[0] = table.at[at]
    wide.held = table.held
    PyMem_Free(table.at)
    table[0] = wide
    return 0


@cython.final
@cython.no_gc
cdef class KnownPrefixLengths:
    """The lengths used or recorded last, at least `room` and at most twice as many."""

    cdef Table _young, _old
    cdef Py_ssize_t _room

    def __cinit__(self, Py_ssize_t room):
        if room < 1:
            raise ValueError("there must be room for a length")
        self._room = room
        _open(&self._young, _MIN)
        _open(&self._old, _MIN)

    def __dealloc__(self):
        PyMem_Free(self._young.at)
        PyMem_Free(self._old.at)

    def __len__(self):
        cdef Py_ssize_t at, count = self._young.held
        for at in range(self._old.places):
            if self._old.at[at].tokens and not _place_of(&self._young, self._old.at[at].key).tokens:
                count += 1
        return count

    def record(self, block_hash, tokens):
        self._record(PyLong_AsUnsignedLongLong(block_hash), _checked(tokens), 0)

    def record_at_most(self, block_hash, tokens):
        cdef uint64_t key = PyLong_AsUnsignedLongLong(block_hash)
        cdef int64_t seen = _checked(tokens)
        cdef Length known = self._known(key)[0]
        if not known.tokens:
            self._record(key, seen, seen)
        else:
            self._record(key, min(seen, known.most) if known.most else known.tokens - 1, known.most)

    def most(self, block_hash):
        cdef Length* known = self._known(PyLong_AsUnsignedLongLong(block_hash))
        return max(known.tokens - 1, known.most if known.tokens else -1)

    def among(self, hashes):
        cdef UInt64View words
        cdef Py_ssize_t position
        cdef int64_t tokens, longest = 0
        cdef Length* known
        cdef list found = []
        acquire_view(&words, hashes)
        try:
            for position in range(words.size):
                if position % PREFETCHED == 0:
                    self._prefetch(words.at + position, words.size - position)
                known = self._known(words.at[position])
                tokens = known.tokens - 1
                if tokens < 0:
                    continue
                if tokens < longest:
                    while found and found[len(found) - 1][1] > tokens:
                        found.pop()
                longest = tokens
                found.append((position, tokens))
                self._record(words.at[position], tokens, known.most)
            return found
        finally:
            release_view(&words)

    cdef Length* _known(self, uint64_t key) noexcept:
        """Return the length up to a block; its place is empty if none is known."""
        cdef Length* known = _place_of(&self._young, key)
        return known if known.tokens else _place_of(&self._old, key)

    cdef void _prefetch(self, const uint64_t* keys, Py_ssize_t count) noexcept:
        """Prefetch the places of the next keys, `PREFETCHED` at most."""
        cdef Py_ssize_t at
        for at in range(min(count, PREFETCHED)):
            prefetch(&self._young.at[keys[at] & (self._young.places - 1)])
            prefetch(&self._old.at[keys[at] & (self._old.places - 1)])

    cdef int _record(self, uint64_t key, int64_t tokens, int64_t most) except -1:
        cdef Length* place = _place_of(&self._young, key)
        if not place.tokens:
            if self._young.held >= self._room:
                self._young, self._old = self._old, self._young
                memset(self._young.at, 0, self._young.places * sizeof(Length))
                self._young.held = 0
            elif self._young.held * 2 >= self._young.places:
                _widen(&self._young)
            place = _place_of(&self._young, key)
            place.key = key
            self._young.held += 1
        place.tokens, place.most = tokens + 1, most
        return 0


cdef int64_t _checked(tokens) except -1:
    """Read a number of tokens, with room for the mark that it is one."""
    cdef int64_t count = tokens
    if count < 0 or count >> 62:
        raise OverflowError("a length must be in 0..2^62")
    return count
