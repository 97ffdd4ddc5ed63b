"""Sets of slots, each kept once and known by a number; 0 is the empty set.

Most blocks of a chain are held by the same endpoints, so there are far fewer sets than blocks. A
set is a row of bits, all equally long. A set without references is freed.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

cdef enum:
    SETS_PER_CHUNK = 1024
    SET_BYTES = 28  # what a set takes besides its bits


cdef struct SlotSets:
    uint32_t words  # in a row of bits
    uint32_t made  # numbers that were ever used, the empty set's too
    uint32_t held  # sets that are there, without the empty one
    uint32_t free_number  # the first to be used again; its digest is the next
    uint32_t room  # numbers for which there is memory, by whole chunks
    uint32_t map_room  # a power of two
    uint64_t** chunks
    uint32_t* ref_counts
    uint64_t* digests
    uint32_t* map  # from digests to numbers: open addressing


cdef inline uint64_t* bits_of(SlotSets* sets, uint32_t number) noexcept nogil:
    cdef uint64_t* chunk = sets.chunks[number // SETS_PER_CHUNK]
    return chunk + <uint64_t>(number % SETS_PER_CHUNK) * sets.words


cdef inline bint has_slot(SlotSets* sets, uint32_t number, uint32_t slot) noexcept nogil:
    return bits_of(sets, number)[slot >> 6] >> (slot & 63) & 1


cdef inline uint64_t _digest_of(uint32_t slot) noexcept nogil:
    """Return a slot's part of the digest of a set (SplitMix64, Steele et al. 2014)."""
    cdef uint64_t mixed = (slot + <uint64_t>1) * <uint64_t>0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


cdef inline bint open_sets(SlotSets* sets, uint32_t words) noexcept nogil:
    """Begin with the empty set alone; False without memory."""
    memset(sets, 0, sizeof(SlotSets))
    sets.words = words
    if not _grow_map(sets) or not _add_chunk(sets):
        return False
    sets.made = 1
    return True


cdef inline void close_sets(SlotSets* sets) noexcept nogil:
    cdef uint32_t i
    for i in range(sets.room // SETS_PER_CHUNK):
        free(sets.chunks[i])
    free(sets.chunks)
    free(sets.ref_counts)
    free(sets.digests)
    free(sets.map)


cdef inline bint _add_chunk(SlotSets* sets) noexcept nogil:
    """Make room for another chunk."""
    cdef uint32_t count = sets.room // SETS_PER_CHUNK
    cdef uint64_t room = sets.room + <uint64_t>SETS_PER_CHUNK
    cdef void* moved
    if room > <uint64_t>0xffffffff:
        return False
    moved = realloc(sets.chunks, (count + 1) * sizeof(uint64_t*))
    if moved == NULL:
        return False
    sets.chunks = <uint64_t**>moved
    moved = realloc(sets.ref_counts, room * sizeof(uint32_t))
    if moved == NULL:
        return False
    sets.ref_counts = <uint32_t*>moved
    moved = realloc(sets.digests, room * sizeof(uint64_t))
    if moved == NULL:
        return False
    sets.digests = <uint64_t*>moved
    moved = calloc(SETS_PER_CHUNK * sets.words, sizeof(uint64_t))
    if moved == NULL:
        return False
    sets.chunks[count] = <uint64_t*>moved
    if sets.room == 0:
        sets.ref_counts[0] = 0
        sets.digests[0] = 0
    sets.room = <uint32_t>room
    return True


cdef inline bint _grow_map(SlotSets* sets) noexcept nogil:
    """Double the map from digests."""
    cdef uint32_t room = 2 * sets.map_room if sets.map_room else 64
    cdef uint32_t* map = <uint32_t*>calloc(room, sizeof(uint32_t))
    cdef uint32_t i, number, place
    if map == NULL:
        return False
    for i in range(sets.map_room):
        number = sets.map[i]
        if number:
            place = sets.digests[number] & (room - 1)
            while map[place]:
                place = (place + 1) & (room - 1)
            map[place] = number
    free(sets.map)
    sets.map = map
    sets.map_room = room
    return True


cdef inline bint _is_toggled(
    SlotSets* sets, uint32_t number, uint32_t other, uint32_t slot
) noexcept nogil:
    """Whether two sets differ in one slot and in no other."""
    cdef uint64_t* mine = bits_of(sets, number)
    cdef uint64_t* theirs = bits_of(sets, other)
    cdef uint32_t i
    for i in range(sets.words):
        if mine[i] ^ theirs[i] != (<uint64_t>1 << (slot & 63) if i == slot >> 6 else 0):
            return False
    return True


cdef inline int64_t toggled(SlotSets* sets, uint32_t number, uint32_t slot) noexcept nogil:
    """Return the set that differs from another in one slot; -1 without memory.

    A new set has no references yet.
    """
    cdef uint64_t digest = sets.digests[number] ^ _digest_of(slot)
    cdef uint32_t place = digest & (sets.map_room - 1), other
    if digest == 0 and _is_toggled(sets, number, 0, slot):
        return 0
    while sets.map[place]:
        other = sets.map[place]
        if sets.digests[other] == digest and _is_toggled(sets, number, other, slot):
            return other
        place = (place + 1) & (sets.map_room - 1)
    return _make(sets, number, slot, digest)


cdef inline int64_t _make(
    SlotSets* sets, uint32_t like, uint32_t slot, uint64_t digest
) noexcept nogil:
    cdef uint32_t number = sets.free_number, place
    if 2 * <uint64_t>(sets.held + 1) > sets.map_room and not _grow_map(sets):
        return -1
    if number:
        sets.free_number = <uint32_t>sets.digests[number]
    else:
        if sets.made == sets.room and not _add_chunk(sets):
            return -1
        number = sets.made
        sets.made += 1
    memcpy(bits_of(sets, number), bits_of(sets, like), sets.words * sizeof(uint64_t))
    bits_of(sets, number)[slot >> 6] ^= <uint64_t>1 << (slot & 63)
    sets.digests[number] = digest
    sets.ref_counts[number] = 0
    sets.held += 1
    place = digest & (sets.map_room - 1)
    while sets.map[place]:
        place = (place + 1) & (sets.map_room - 1)
    sets.map[place] = number
    return number


cdef inline bint release_set(SlotSets* sets, uint32_t number) noexcept nogil:
    """Remove a reference; return whether the set is freed, and its number may be another's."""
    if number == 0:
        return False
    sets.ref_counts[number] -= 1
    if sets.ref_counts[number]:
        return False
    _free_set(sets, number)
    return True


cdef inline void _free_set(SlotSets* sets, uint32_t number) noexcept nogil:
    cdef uint32_t last = sets.map_room - 1
    cdef uint32_t hole = sets.digests[number] & last, place, home
    while sets.map[hole] != number:
        hole = (hole + 1) & last
    place = hole
    while True:
        place = (place + 1) & last
        if sets.map[place] == 0:
            break
        home = sets.digests[sets.map[place]] & last
        if ((place - home) & last) >= ((place - hole) & last):
            sets.map[hole] = sets.map[place]
            hole = place
    sets.map[hole] = 0
    sets.digests[number] = sets.free_number
    sets.free_number = number
    sets.held -= 1


cdef inline bint widen_sets(SlotSets* sets, uint32_t words) noexcept nogil:
    """Make every row of bits `words` long; False without memory, and nothing is changed."""
    cdef uint32_t count = sets.room // SETS_PER_CHUNK, i
    cdef int row
    cdef uint64_t** chunks = <uint64_t**>calloc(count, sizeof(uint64_t*))
    if chunks == NULL:
        return False
    for i in range(count):
        chunks[i] = <uint64_t*>calloc(SETS_PER_CHUNK * words, sizeof(uint64_t))
        if chunks[i] == NULL:
            while i:
                i -= 1
                free(chunks[i])
            free(chunks)
            return False
    for i in range(count):
        for row in range(SETS_PER_CHUNK):
            memcpy(
                chunks[i] + row * words,
                sets.chunks[i] + row * sets.words,
                sets.words * sizeof(uint64_t),
            )
        free(sets.chunks[i])
    free(sets.chunks)
    sets.chunks = chunks
    sets.words = words
    return True
