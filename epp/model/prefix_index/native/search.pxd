"""Finds, for the slots of an index, how much of a chain each holds without a hole.

Slots that hold no block without all that precede it are searched by bisection, others block by
block.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from epp.model.prefetch cimport PREFETCHED
from epp.model.prefix_index.native.holders cimport Holders, holders_of
from epp.model.table cimport prefetch_entries

cdef enum:
    DEEPEST = 64  # halvings of a chain

cdef extern from * nogil:
    int lowest_bit "__builtin_ctzll"(unsigned long long)


cdef struct Search:
    Holders* holders
    uint64_t* slots  # the row of those that are searched for; used up
    uint64_t* frames  # what `jump` comes back to: two depths and a row each
    int64_t* depths  # what is found, by slot


cdef inline void jump(Search* search, const uint64_t* hashes, int64_t size) noexcept nogil:
    """Find where each slot ends by bisection; slots that go the same way go together.

    Slots that part from the others have less than half of the range left, and are searched first.
    So there are never more frames than halvings of the chain.
    """
    cdef int64_t low = 1, high = size, middle
    cdef uint32_t i, words = search.holders.sets.words
    cdef uint64_t deeper, others
    cdef uint64_t* frame = search.frames
    cdef uint64_t* bits = holders_of(search.holders, hashes[0])
    deeper = 0
    for i in range(words):
        search.slots[i] &= bits[i]
        deeper |= search.slots[i]
    if not deeper:
        return
    while True:
        while low < high:
            middle = (low + high + 1) >> 1
            bits = holders_of(search.holders, hashes[middle - 1])
            deeper = others = 0
            for i in range(words):
                deeper |= search.slots[i] & bits[i]
                others |= search.slots[i] & ~bits[i]
            if not deeper:
                high = middle - 1
                continue
            if others:
                frame[0], frame[1] = low, middle - 1
                for i in range(words):
                    frame[2 + i] = search.slots[i] & ~bits[i]
                    search.slots[i] &= bits[i]
                frame += 2 + words
            low = middle
        set_depths(search, search.slots, low)
        if frame == search.frames:
            return
        frame -= 2 + words
        low, high = frame[0], frame[1]
        memcpy(search.slots, frame + 2, words * sizeof(uint64_t))


cdef inline void walk(Search* search, const uint64_t* hashes, Py_ssize_t size) noexcept nogil:
    """Follow the chain with the slots until none of them holds it any more."""
    cdef uint32_t word, words = search.holders.sets.words
    cdef uint64_t gone, left
    cdef uint64_t* before = NULL
    cdef uint64_t* bits
    cdef Py_ssize_t i
    for i in range(size):
        if i % PREFETCHED == 1:  # one is enough to see that nothing is held
            prefetch_entries(search.holders.blocks, hashes + i, size - i)
        bits = holders_of(search.holders, hashes[i])
        if bits == before:
            continue
        before = bits
        left = 0
        for word in range(words):
            gone = search.slots[word] & ~bits[word]
            search.slots[word] &= bits[word]
            left |= search.slots[word]
            while gone:
                search.depths[word * 64 + lowest_bit(gone)] = i
                gone &= gone - 1
        if not left:
            return
    set_depths(search, search.slots, size)


cdef inline void set_depths(Search* search, const uint64_t* slots, int64_t depth) noexcept nogil:
    cdef uint32_t word
    cdef uint64_t bits
    for word in range(search.holders.sets.words):
        bits = slots[word]
        while bits:
            search.depths[word * 64 + lowest_bit(bits)] = depth
            bits &= bits - 1
