# cython: language_level=3, boundscheck=False, wraparound=False
"""Lengths of the blocks of a text; the contract is `text_lengths.py`."""

from collections.abc import Mapping
from typing import Literal

from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t

from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view, words_of

Kind = Literal["prose", "code", "script", "media"]
DEFAULT_RATES: Mapping[Kind, float] = {"prose": 4.0, "code": 3.2, "script": 2.4, "media": 4.0}

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static uint64_t in_proportion(uint64_t part, uint64_t total, uint64_t whole) {
        return (uint64_t)((unsigned __int128)part * total / whole);
    }

    typedef uint8_t warmpick_letters __attribute__((vector_size(16)));

    /* Return how many of at most 1024 bytes are neither ASCII letters nor spaces. */
    static size_t count_others(const uint8_t *data, size_t size) {
        warmpick_letters block, counts = {0};
        size_t at = 0, others = 0;
        for (; size - at >= sizeof block; at += sizeof block) {
            memcpy(&block, data + at, sizeof block);
            counts -= (warmpick_letters)(((block | 0x20) - 'a' > 'z' - 'a') & (block != ' '));
        }
        for (size_t lane = 0; lane < sizeof block; lane++)
            others += counts[lane];
        for (; at < size; at++)
            others += (uint8_t)((data[at] | 0x20) - 'a') > 'z' - 'a' && data[at] != ' ';
        return others;
    }
    """
    uint64_t in_proportion(uint64_t, uint64_t, uint64_t) nogil
    size_t count_others(const unsigned char*, size_t) nogil

cdef array _UINT64 = array("Q")
cdef Py_ssize_t _SAMPLE = 1024


def kind_of(bytes text not None, Py_ssize_t start=0, end=None):
    cdef const unsigned char* letters = <const unsigned char*> PyBytes_AS_STRING(text)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text), stop = size if end is None else end
    cdef Py_ssize_t at, beyond_ascii = 0, length
    stop = min(max(stop, 0), size)
    start = min(max(start, 0), stop)
    start += max(0, stop - start - _SAMPLE) // 2
    stop = min(stop, start + _SAMPLE)
    length = stop - start
    if 5 * <Py_ssize_t>count_others(letters + start, length) <= length:
        return "prose"
    for at in range(start, stop):
        beyond_ascii += letters[at] >= 0x80
    at = start
    while at + 1 < stop:
        if letters[at] == c"\\" and letters[at + 1] == c"u":
            beyond_ascii += 6
            at += 1
        at += 1
    return "script" if 5 * beyond_ascii > length else "code"


def spread(ends, list pins, double rate):
    cdef UInt64View words
    cdef array tokens
    cdef uint64_t* out
    cdef Py_ssize_t at = 0, position
    cdef uint64_t before = 0, known = 0, pin
    cdef double slope
    acquire_view(&words, ends)
    try:
        tokens = clone(_UINT64, words.size, False)
        out = words_of(tokens)
        for each in pins:
            position, pin = each
            if not at <= position < words.size or pin < known or words.at[position] <= before:
                raise ValueError("pins must rise, and lie at ends of blocks")
            slope = <double> (pin - known) / <double> (words.at[position] - before)
            while at < position:
                out[at] = known + <uint64_t> (<double> (words.at[at] - before) * slope)
                at += 1
            out[at] = known = pin
            before = words.at[at]
            at += 1
        while at < words.size:
            out[at] = known + <uint64_t> (<double> (words.at[at] - before) / rate)
            at += 1
        return tokens
    finally:
        release_view(&words)


def sizes_between(ends):
    cdef UInt64View words
    cdef array sizes
    cdef uint64_t* out
    cdef uint64_t before = 0
    cdef Py_ssize_t at
    acquire_view(&words, ends)
    try:
        sizes = clone(_UINT64, words.size, False)
        out = words_of(sizes)
        for at in range(words.size):
            if words.at[at] < before:
                raise ValueError("ends of blocks must rise")
            out[at] = words.at[at] - before
            before = words.at[at]
        return sizes
    finally:
        release_view(&words)


def scaled(ends, uint64_t total, uint64_t estimated):
    cdef UInt64View words
    cdef array out
    cdef uint64_t* at
    cdef Py_ssize_t position
    if estimated == 0:
        raise ZeroDivisionError("nothing was estimated")
    acquire_view(&words, ends)
    try:
        out = clone(_UINT64, words.size, False)
        at = words_of(out)
        for position in range(words.size):
            at[position] = in_proportion(words.at[position], total, estimated)
        return out
    finally:
        release_view(&words)
