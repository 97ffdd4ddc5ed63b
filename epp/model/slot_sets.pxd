"""Sets of slots, each kept once and known by a number; 0 is the empty set.

Most blocks of a chain are held by the same endpoints, so there are few sets beside the blocks that
are held. A set is a row of bits, all equally long. Sets that nobody refers to are given up.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

cdef extern from * nogil:
    """
    #define SETS_IN_A_SHELF 1024
    #define SET_BYTES 28
    """
    enum: SETS_IN_A_SHELF
    enum: SET_BYTES  # what a set takes besides its bits


cdef struct SlotSets:
    uint32_t words  # in a row of bits
    uint32_t made  # numbers that were given out, the empty set's too
    uint32_t held  # sets that are there, without the empty one
    uint32_t idle  # the first number to be given out again; its digest is the next
    uint32_t room  # numbers for which there is memory, by whole shelves
    uint32_t name_room  # a power of two
    uint64_t** shelves
    uint32_t* users
    uint64_t* digests
    uint32_t* names  # numbers, where their digests have them


cdef inline uint64_t* bits_of(SlotSets* sets, uint32_t number) noexcept nogil:
    cdef uint64_t* shelf = sets.shelves[number // SETS_IN_A_SHELF]
    return shelf + <uint64_t>(number % SETS_IN_A_SHELF) * sets.words


cdef inline bint has_slot(SlotSets* sets, uint32_t number, uint32_t slot) noexcept nogil:
    return bits_of(sets, number)[slot >> 6] >> (slot & 63) & 1


cdef inline uint64_t _digest_of(uint32_t slot) noexcept nogil:
    """Return what a slot adds to the digest of a set (SplitMix64, Steele et al. 2014)."""
    cdef uint64_t mixed = (slot + <uint64_t>1) * <uint64_t>0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EB
    return mixed ^ (mixed >> 31)


cdef inline bint open_sets(SlotSets* sets, uint32_t words) noexcept nogil:
    """Begin with the empty set alone; False without memory."""
    memset(sets, 0, sizeof(SlotSets))
    sets.words = words
    if not _more_names(sets) or not _more_room(sets):
        return False
    sets.made = 1
    return True


cdef inline void close_sets(SlotSets* sets) noexcept nogil:
    cdef uint32_t i
    for i in range(sets.room // SETS_IN_A_SHELF):
        free(sets.shelves[i])
    free(sets.shelves)
    free(sets.users)
    free(sets.digests)
    free(sets.names)


cdef inline bint _more_room(SlotSets* sets) noexcept nogil:
    """Make room for another shelf."""
    cdef uint32_t count = sets.room // SETS_IN_A_SHELF
    cdef uint64_t room = sets.room + <uint64_t>SETS_IN_A_SHELF
    cdef void* moved
    if room > <uint64_t>0xffffffff:
        return False
    moved = realloc(sets.shelves, (count + 1) * sizeof(uint64_t*))
    if moved == NULL:
        return False
    sets.shelves = <uint64_t**>moved
    moved = realloc(sets.users, room * sizeof(uint32_t))
    if moved == NULL:
        return False
    sets.users = <uint32_t*>moved
    moved = realloc(sets.digests, room * sizeof(uint64_t))
    if moved == NULL:
        return False
    sets.digests = <uint64_t*>moved
    moved = calloc(SETS_IN_A_SHELF * sets.words, sizeof(uint64_t))
    if moved == NULL:
        return False
    sets.shelves[count] = <uint64_t*>moved
    if sets.room == 0:
        sets.users[0] = 0
        sets.digests[0] = 0
    sets.room = <uint32_t>room
    return True


cdef inline bint _more_names(SlotSets* sets) noexcept nogil:
    """Double the places by digest."""
    cdef uint32_t room = 2 * sets.name_room if sets.name_room else 64
    cdef uint32_t* names = <uint32_t*>calloc(room, sizeof(uint32_t))
    cdef uint32_t i, number, place
    if names == NULL:
        return False
    for i in range(sets.name_room):
        number = sets.names[i]
        if number:
            place = sets.digests[number] & (room - 1)
            while names[place]:
                place = (place + 1) & (room - 1)
            names[place] = number
    free(sets.names)
    sets.names = names
    sets.name_room = room
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
    """Return the set that is like another but for one slot; -1 without memory.

    Nobody refers to it yet where it is new.
    """
    cdef uint64_t digest = sets.digests[number] ^ _digest_of(slot)
    cdef uint32_t place = digest & (sets.name_room - 1), other
    if digest == 0 and _is_toggled(sets, number, 0, slot):
        return 0
    while sets.names[place]:
        other = sets.names[place]
        if sets.digests[other] == digest and _is_toggled(sets, number, other, slot):
            return other
        place = (place + 1) & (sets.name_room - 1)
    return _make(sets, number, slot, digest)


cdef inline int64_t _make(
    SlotSets* sets, uint32_t like, uint32_t slot, uint64_t digest
) noexcept nogil:
    cdef uint32_t number = sets.idle, place
    if 2 * <uint64_t>(sets.held + 1) > sets.name_room and not _more_names(sets):
        return -1
    if number:
        sets.idle = <uint32_t>sets.digests[number]
    else:
        if sets.made == sets.room and not _more_room(sets):
            return -1
        number = sets.made
        sets.made += 1
    memcpy(bits_of(sets, number), bits_of(sets, like), sets.words * sizeof(uint64_t))
    bits_of(sets, number)[slot >> 6] ^= <uint64_t>1 << (slot & 63)
    sets.digests[number] = digest
    sets.users[number] = 0
    sets.held += 1
    place = digest & (sets.name_room - 1)
    while sets.names[place]:
        place = (place + 1) & (sets.name_room - 1)
    sets.names[place] = number
    return number


cdef inline bint let_go(SlotSets* sets, uint32_t number) noexcept nogil:
    """Refer to a set no more; True where it is given up, and its number may be another's."""
    if number == 0:
        return False
    sets.users[number] -= 1
    if sets.users[number]:
        return False
    _give_up(sets, number)
    return True


cdef inline void _give_up(SlotSets* sets, uint32_t number) noexcept nogil:
    cdef uint32_t last = sets.name_room - 1
    cdef uint32_t hole = sets.digests[number] & last, place, home
    while sets.names[hole] != number:
        hole = (hole + 1) & last
    place = hole
    while True:
        place = (place + 1) & last
        if sets.names[place] == 0:
            break
        home = sets.digests[sets.names[place]] & last
        if ((place - home) & last) >= ((place - hole) & last):
            sets.names[hole] = sets.names[place]
            hole = place
    sets.names[hole] = 0
    sets.digests[number] = sets.idle
    sets.idle = number
    sets.held -= 1


cdef inline bint widen_sets(SlotSets* sets, uint32_t words) noexcept nogil:
    """Make every row of bits `words` long; False without memory, and nothing is changed."""
    cdef uint32_t count = sets.room // SETS_IN_A_SHELF, i
    cdef int row
    cdef uint64_t** shelves = <uint64_t**>calloc(count, sizeof(uint64_t*))
    if shelves == NULL:
        return False
    for i in range(count):
        shelves[i] = <uint64_t*>calloc(SETS_IN_A_SHELF * words, sizeof(uint64_t))
        if shelves[i] == NULL:
            while i:
                i -= 1
                free(shelves[i])
            free(shelves)
            return False
    for i in range(count):
        for row in range(SETS_IN_A_SHELF):
            memcpy(
                shelves[i] + row * words,
                sets.shelves[i] + row * sets.words,
                sets.words * sizeof(uint64_t),
            )
        free(sets.shelves[i])
    free(sets.shelves)
    sets.shelves = shelves
    sets.words = words
    return True
