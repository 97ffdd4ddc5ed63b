"""A map from 64-bit keys to 32-bit values in 12 bytes an entry, and a few to spare.

Open addressing with linear probing, in 1024 parts that grow and shrink by themselves, a quarter at
a time: no step moves more than a thousandth of the entries, and between two thirds and four fifths
of the places are taken. A value of 0 marks a free place.

What is returned as a pointer holds until the next entry comes or goes.
"""

from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport uint32_t, uint64_t

from epp.model.prefetch cimport PREFETCHED, prefetch

cdef enum:
    PARTS = 1024
    MIN_ROOM = 8


cdef packed struct Entry:
    uint64_t key
    uint32_t value


cdef struct Part:
    Entry* places
    uint32_t room
    uint32_t held


cdef struct Table:
    Part[PARTS] parts
    uint64_t held


cdef inline Table* new_table() noexcept nogil:
    """Return an empty table, NULL without memory."""
    return <Table*>PyMem_RawCalloc(1, sizeof(Table))


cdef inline void free_table(Table* table) noexcept nogil:
    cdef int i
    if table != NULL:
        for i in range(PARTS):
            PyMem_RawFree(table.parts[i].places)
        PyMem_RawFree(table)


cdef inline uint64_t _mixed(uint64_t key) noexcept nogil:
    """Spread keys that differ in a few bits, as those of tests do."""
    key ^= key >> 32
    key *= <uint64_t>0x9E3779B97F4A7C15
    return key ^ (key >> 32)


cdef inline Part* _part_of(Table* table, uint64_t key) noexcept nogil:
    return &table.parts[_mixed(key) >> 54]


cdef inline uint32_t _home(uint64_t key, uint32_t room) noexcept nogil:
    """Return the home of a key: in the order of its mixed value, whatever the room."""
    return <uint32_t>((<uint64_t><uint32_t>_mixed(key) * room) >> 32)


cdef inline Entry* _from(Part* part, uint64_t key, uint32_t place) noexcept nogil:
    """Return the entry with that key, or the first free place, from a place on."""
    cdef Entry* entry
    while True:
        entry = part.places + place
        if entry.value == 0 or entry.key == key:
            return entry
        place += 1
        if place == part.room:
            place = 0


cdef inline void prefetch_entries(
    Table* table, const uint64_t* keys, Py_ssize_t count
) noexcept nogil:
    """Prefetch the homes of the next keys, `PREFETCHED` at most."""
    cdef Part* part
    cdef Py_ssize_t at
    for at in range(min(count, PREFETCHED)):
        part = _part_of(table, keys[at])
        prefetch(part.places + _home(keys[at], part.room))


cdef inline Entry* find(Table* table, uint64_t key) noexcept nogil:
    """Return the entry with that key, NULL if there is none."""
    cdef Part* part = _part_of(table, key)
    cdef Entry* entry
    if part.room == 0:
        return NULL
    entry = _from(part, key, _home(key, part.room))
    return entry if entry.value else NULL


cdef inline Entry* find_or_free_place(Table* table, uint64_t key) noexcept nogil:
    """Return the entry with that key, or a free place for one; NULL without memory.

    `insert` writes the entry.
    """
    cdef Part* part = _part_of(table, key)
    if part.held * <uint64_t>5 >= part.room * <uint64_t>4 and not _grow(table, part):
        return NULL
    return _from(part, key, _home(key, part.room))


cdef inline void insert(Table* table, Entry* place, uint64_t key, uint32_t value) noexcept nogil:
    """Write an entry if `find_or_free_place` found a place for it."""
    place.key = key
    place.value = value
    _part_of(table, key).held += 1
    table.held += 1


cdef inline bint _grow(Table* table, Part* part) noexcept nogil:
    # Parts begin with different sizes, so that they do not all grow at the same time.
    cdef uint32_t first = MIN_ROOM + (<uint32_t>(part - table.parts) & 7)
    return _rebuild(part, part.room + part.room // 4 if part.room else first)


cdef inline bint _rebuild(Part* part, uint32_t room) noexcept nogil:
    """Move to another number of places, in order, for the order of homes stays."""
    cdef Entry* before = part.places
    cdef Entry* place
    cdef Entry* places = <Entry*>PyMem_RawCalloc(room, sizeof(Entry))
    cdef uint32_t i, rest = part.room
    if places == NULL:
        return False
    part.places = places
    part.room = room
    for i in range(rest):
        if before[i].value:
            place = places + _home(before[i].key, room)
            while place.value:
                place += 1
                if place == places + room:
                    place = places
            place[0] = before[i]
    PyMem_RawFree(before)
    return True


cdef inline void delete(Table* table, Entry* entry) noexcept nogil:
    """Take an entry out, and let those that stand behind it move up."""
    cdef Part* part = _part_of(table, entry.key)
    cdef Entry* places = part.places
    cdef uint32_t hole = <uint32_t>(entry - places), place = hole, home
    while True:
        place += 1
        if place == part.room:
            place = 0
        if places[place].value == 0:
            break
        home = _home(places[place].key, part.room)
        # It may move up unless its home is between the hole, excluded, and where it stands.
        if (home <= hole or home > place) if hole < place else (place < home <= hole):
            places[hole] = places[place]
            hole = place
    places[hole].value = 0
    part.held -= 1
    table.held -= 1
    if part.held < part.room // 3 and part.room > 2 * MIN_ROOM:
        _rebuild(part, part.room // 2)  # without memory it stays as large as it is
