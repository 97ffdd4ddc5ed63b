"""Rows of an engine's blocks in the order in which they came, found by name: 24 to 27 bytes each.

A shard is an array of rows and an index of them, open addressing with linear probing. Rows of
removed blocks stay until there is no room; then the live rows are moved together. The shard's words
have what does not fit into a row: token ids of blocks of more than one token, and hashes of several
blocks of ours. No step moves more than one shard.

Returned pointers are valid until the next row is added or removed.
"""

from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    GROUPS = 16
    ROW_SHARDS = 64
    MAX_ROWS = 65_534  # of a shard: four times as many as `MAX_BLOCKS` leaves in each

# Kinds of rows. What `link` is, and what the words have, if there are any:
cdef enum:
    GONE = 0
    WHOLE = 1  # our hash; of our size, not counted
    FULL = 2  # our hash; it ends where ours does
    ONE_AFTER = 3  # the parent's name; `at` is the only token
    ONE_FIRST = 4  # the seed before it; `at` is the only token since
    AFTER = 5  # the parent's name; its own tokens
    FIRST = 6  # the seed before it; the tokens since
    FILLED = 7  # our last hash; those before it, and the tokens after it


cdef extern from *:
    """
    #define MAX_COPIES 31
    typedef struct __attribute__((packed)) {
        uint64_t name, link;
        uint32_t at;
        uint8_t kind : 3, copies : 5;
    } engine_block_row;
    """
    enum: MAX_COPIES
    ctypedef struct Row "engine_block_row":
        uint64_t name
        uint64_t link
        uint32_t at  # the token, or where the words are
        uint8_t kind
        uint8_t copies  # in the first group, up to MAX_COPIES


cdef struct Shard:
    Row* rows
    uint16_t* places  # numbers of rows, plus one; 0 for a free place
    uint32_t* words
    uint32_t used
    uint32_t live
    uint32_t room
    uint32_t first  # no row before it is live
    uint64_t words_used
    uint64_t words_room
    uint64_t words_gone


cdef struct Content:  # what is kept of a block: `count` tokens, and `more` hashes before `link`
    uint64_t link
    uint8_t kind
    uint32_t count
    uint32_t more
    uint32_t one  # the token, if it is in the row
    const uint32_t* tokens
    const uint32_t* ours  # two words each, wherever they lie


cdef inline uint64_t mixed(uint64_t name, uint64_t secret) noexcept nogil:
    """Spread names, so that nobody without the secret can make them collide."""
    name *= secret | 1
    name ^= name >> 32
    name *= <uint64_t>0x9E3779B97F4A7C15
    return name


cdef inline Shard* shard_of(Shard* shards, uint64_t mixed) noexcept nogil:
    return shards + ((mixed >> 26) & (ROW_SHARDS - 1))


cdef inline uint32_t _count_places(uint32_t room) noexcept nogil:
    return room + room // 2


cdef inline uint32_t _place_of(
    const Shard* shard, uint64_t name, uint64_t mixed
) noexcept nogil:
    """Return the place of the last row of that name, or the first free place for it."""
    cdef uint32_t places = _count_places(shard.room), number
    cdef uint32_t place = <uint32_t>(((mixed >> 32) * places) >> 32)
    while True:
        number = shard.places[place]
        if number == 0 or shard.rows[number - 1].name == name:
            return place
        place += 1
        if place == places:
            place = 0


cdef inline Row* find_row(const Shard* shard, uint64_t name, uint64_t mixed) noexcept nogil:
    """Return the row of a block, NULL if it is not known."""
    cdef uint32_t number
    if shard.live == 0:
        return NULL
    number = shard.places[_place_of(shard, name, mixed)]
    if number == 0 or shard.rows[number - 1].kind == GONE:
        return NULL
    return shard.rows + number - 1


cdef inline uint64_t _words_needed(uint8_t kind, uint32_t count, uint32_t more) noexcept nogil:
    if kind < AFTER:
        return 0
    return 1 + count if kind != FILLED else 2 + count + 2 * <uint64_t>more


cdef inline void read_row(const Shard* shard, const Row* row, Content* content) noexcept nogil:
    """Read the kept content of a block; its pointers are valid as long as the row."""
    cdef const uint32_t* words = shard.words + row.at
    content.link, content.kind = row.link, row.kind
    content.count = content.more = 0
    content.one, content.tokens, content.ours = row.at, &content.one, NULL
    if row.kind == ONE_AFTER or row.kind == ONE_FIRST:
        content.count = 1
    elif row.kind >= AFTER:
        content.count = words[0]
        if row.kind == FILLED:
            content.more = words[1]
            content.ours = words + 2
            words += 1 + 2 * content.more
        content.tokens = words + 1


cdef inline uint64_t own_at(const Content* content, uint32_t number) noexcept nogil:
    """Return one of our hashes before the last."""
    cdef uint64_t own
    memcpy(&own, content.ours + 2 * number, sizeof(uint64_t))
    return own


cdef inline bint has_content(
    const Shard* shard, const Row* row, const Content* content
) noexcept nogil:
    """Whether this is the kept content of a block."""
    cdef Content kept
    read_row(shard, row, &kept)
    return (
        kept.kind == content.kind and kept.link == content.link
        and kept.count == content.count and kept.more == content.more
        and memcmp(kept.tokens, content.tokens, kept.count * sizeof(uint32_t)) == 0
        and (kept.more == 0 or memcmp(kept.ours, content.ours, kept.more * sizeof(uint64_t)) == 0)
    )


cdef inline Row* add_row(
    Shard* shard, uint64_t name, uint64_t secret, const Content* content
) noexcept nogil:
    """Add a block that is not known, without copies; NULL without memory."""
    cdef uint64_t needed = _words_needed(content.kind, content.count, content.more)
    cdef uint32_t* words
    cdef Row* row
    if shard.used == shard.room and not _rebuild(shard, secret, needed):
        return NULL
    if shard.words_used + needed > shard.words_room and not _make_room(shard, secret, needed):
        return NULL
    row = shard.rows + shard.used
    row.name, row.link, row.kind, row.copies = name, content.link, content.kind, 0
    row.at = 0
    if content.kind == ONE_AFTER or content.kind == ONE_FIRST:
        row.at = content.tokens[0]
    elif needed:
        row.at = <uint32_t>shard.words_used
        words = shard.words + shard.words_used
        words[0] = content.count
        if content.kind == FILLED:
            words[1] = content.more
            if content.more:
                memcpy(words + 2, content.ours, content.more * sizeof(uint64_t))
            words += 1 + 2 * content.more
        if content.count:
            memcpy(words + 1, content.tokens, content.count * sizeof(uint32_t))
        shard.words_used += needed
    shard.used += 1
    shard.live += 1
    shard.places[_place_of(shard, name, mixed(name, secret))] = <uint16_t>shard.used
    return row


cdef inline void remove_row(Shard* shard, Row* row, uint64_t secret) noexcept nogil:
    """Remove a block."""
    cdef Content content
    read_row(shard, row, &content)
    shard.words_gone += _words_needed(content.kind, content.count, content.more)
    row.kind = GONE
    shard.live -= 1
    if shard.live == 0:
        free_rows(shard)
    elif shard.used > 2 * shard.live + 64:
        _rebuild(shard, secret, 0)  # without memory it stays as large as it is


cdef inline Row* oldest_row(Shard* shard) noexcept nogil:
    """Return the row of the block that was added first; there is one."""
    while shard.rows[shard.first].kind == GONE:
        shard.first += 1
    return shard.rows + shard.first


cdef inline void free_rows(Shard* shard) noexcept nogil:
    PyMem_RawFree(shard.rows)
    PyMem_RawFree(shard.places)
    PyMem_RawFree(shard.words)
    shard.rows, shard.places, shard.words = NULL, NULL, NULL
    shard.used = shard.live = shard.room = shard.first = 0
    shard.words_used = shard.words_room = shard.words_gone = 0


cdef inline bint _make_room(Shard* shard, uint64_t secret, uint64_t needed) noexcept nogil:
    """Make room for this many more words."""
    cdef uint64_t room
    cdef uint32_t* words
    if shard.words_gone * 8 > shard.words_used:
        return _rebuild(shard, secret, needed)
    room = shard.words_used + needed
    room += room // 8
    if room > <uint64_t>0xffffffff:
        return False
    words = <uint32_t*>PyMem_RawRealloc(shard.words, room * sizeof(uint32_t))
    if words == NULL:
        return False
    shard.words, shard.words_room = words, room
    return True


cdef inline bint _rebuild(Shard* shard, uint64_t secret, uint64_t needed) noexcept nogil:
    """Compact the live rows and words, with a sixteenth more room, and room for `needed` words.

    False without memory, or if there would be more than `MAX_ROWS`.
    """
    cdef Shard new
    cdef Content content
    cdef Row* row
    cdef uint32_t i
    cdef uint64_t words = shard.words_used - shard.words_gone + needed, size
    words += words // 8
    new.room = min(shard.live + shard.live // 16 + 8, MAX_ROWS)
    if words > <uint64_t>0xffffffff or new.room <= shard.live:
        return False
    new.used = new.first = 0
    new.words_used = new.words_gone = 0
    new.words_room = words
    new.rows = <Row*>PyMem_RawMalloc(new.room * sizeof(Row))
    new.places = <uint16_t*>PyMem_RawCalloc(_count_places(new.room), sizeof(uint16_t))
    new.words = <uint32_t*>PyMem_RawMalloc(words * sizeof(uint32_t)) if words else NULL
    if new.rows == NULL or new.places == NULL or (words and new.words == NULL):
        PyMem_RawFree(new.rows)
        PyMem_RawFree(new.places)
        PyMem_RawFree(new.words)
        return False
    for i in range(shard.first, shard.used):
        row = shard.rows + i
        if row.kind == GONE:
            continue
        new.rows[new.used] = row[0]
        if row.kind >= AFTER:
            read_row(shard, row, &content)
            size = _words_needed(content.kind, content.count, content.more)
            new.rows[new.used].at = <uint32_t>new.words_used
            memcpy(new.words + new.words_used, shard.words + row.at, size * sizeof(uint32_t))
            new.words_used += size
        new.used += 1
        new.places[_place_of(&new, row.name, mixed(row.name, secret))] = <uint16_t>new.used
    new.live = new.used
    free_rows(shard)
    shard[0] = new
    return True
