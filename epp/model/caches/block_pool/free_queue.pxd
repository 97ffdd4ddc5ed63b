"""The free blocks of one pool that have content, in the order in which they are evicted.

Part of `pool.pyx`. They are a ring in both directions that begins and ends at block 0.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from epp.model.caches.block_pool.blocks cimport forget
from epp.model.caches.block_pool.table cimport (
    COPIED, FOLLOWS, IN_USE, JOINT, LARGEST, UNHASHED, SHARED, TOGETHER, WIDEST,
    Block, Store, fetch, note,
)


cdef inline uint32_t oldest(Store* it) noexcept nogil:
    """Return the block that would be evicted first, or none."""
    return it.blocks[0].newer if it.room else 0


cdef inline uint32_t newest(Store* it) noexcept nogil:
    """Return the block that would be evicted last, or none."""
    return it.blocks[0].older if it.room else 0


cdef inline void place(Store* it, uint32_t block, uint32_t before) noexcept nogil:
    """Free a block: it is evicted next after `before`, which is 0 for the first."""
    cdef Block* blocks = it.blocks
    cdef uint32_t after = blocks[before].newer
    blocks[block].older, blocks[block].newer = before, after
    blocks[before].newer = blocks[after].older = block
    it.idle += blocks[block].size


cdef inline void unplace(Store* it, uint32_t block) noexcept nogil:
    """Take a block out; the caller says what becomes of it. What followed it follows nothing."""
    cdef Block* blocks = it.blocks
    cdef uint32_t before = blocks[block].older, after = blocks[block].newer
    blocks[before].newer, blocks[after].older = after, before
    blocks[before].link &= ~FOLLOWS
    blocks[block].link &= ~FOLLOWS
    if block == it.doubtful:
        it.doubtful = before
    it.idle -= blocks[block].size


cdef inline int64_t drop(Store* it, uint32_t block) noexcept nogil:
    """Forget a free block wherever it stands; return its size."""
    cdef int64_t size = it.blocks[block].size
    unplace(it, block)
    forget(it, block)
    return size


cdef inline int64_t evict(Store* it, int64_t tokens) noexcept nogil:
    """Evict the oldest until `tokens` are free; return how many are: more, or all there is."""
    cdef int64_t freed = 0
    cdef Py_ssize_t ready = 0
    while freed < tokens and oldest(it):
        if not ready:
            ready = fetch_oldest(it, tokens - freed)
        ready -= 1
        freed += drop(it, oldest(it))
    return freed


cdef inline Py_ssize_t fetch_oldest(Store* it, int64_t tokens) noexcept nogil:
    """Fetch what evicting about so many tokens will look at; return for how many blocks."""
    cdef uint64_t[16] names
    cdef uint32_t block = oldest(it)
    cdef Py_ssize_t count = 0
    while block and count < TOGETHER and tokens > 0:
        names[count] = it.blocks[block].name
        tokens -= it.blocks[block].size
        block = it.blocks[block].newer
        count += 1
    fetch(it, names, count)
    return count


cdef inline void touch(Store* it, const uint32_t* found, Py_ssize_t count) noexcept nogil:
    """Take one more reference to each of these blocks."""
    cdef Block* block
    cdef Py_ssize_t at
    for at in range(count):
        block = it.blocks + found[at]
        if block.older == IN_USE:
            block.newer += 1
            block.link |= SHARED
        else:
            unplace(it, found[at])
            block.older, block.newer = IN_USE, 1


cdef inline void put_back(Store* it, const uint32_t* held, Py_ssize_t count) noexcept nogil:
    """Give back one reference to each block of a chain; who has none left is evicted last."""
    cdef uint32_t following = 0
    cdef Py_ssize_t at
    for at in range(count - 1, -1, -1):
        it.blocks[held[at]].newer -= 1
        if it.blocks[held[at]].newer:
            following = 0
            continue
        place(it, held[at], newest(it))
        if following:
            it.blocks[following].link |= FOLLOWS
        following = held[at]


cdef inline void put_between(Store* it, uint32_t block, uint32_t follower) noexcept nogil:
    """Free a block in front of one in its chain, which stands in the queue already."""
    place(it, block, follower)
    if follower == it.doubtful:
        it.doubtful = block
    it.blocks[block].link |= it.blocks[follower].link & FOLLOWS
    it.blocks[follower].link |= FOLLOWS


cdef inline void take_between(Store* it, uint32_t block) noexcept nogil:
    """Forget a free block; what follows it in its chain follows what stood before it."""
    cdef uint32_t follower = it.blocks[block].older
    cdef uint32_t follows = it.blocks[block].link & it.blocks[follower].link & FOLLOWS
    unplace(it, block)
    it.blocks[follower].link |= follows
    forget(it, block)


# Precision for memory.

cdef inline bint may_merge(Store* it, uint32_t first, uint32_t second) noexcept nogil:
    """Say whether a block and the one that follows it can be one."""
    cdef Block* one = it.blocks + first
    cdef Block* other = it.blocks + second
    if <uint64_t>one.size + other.size > LARGEST:
        return False
    if (one.link | other.link) & UNHASHED:
        return one.link & other.link & UNHASHED
    if (one.link | other.link) & COPIED or one.link & JOINT:
        return False
    return span_of(it, first) + span_of(it, second) <= WIDEST


cdef inline uint32_t span_of(Store* it, uint32_t block) noexcept nogil:
    """Return for how many blocks one stands."""
    return max(1, it.spans[block]) if it.wide else 1


cdef inline bint merge(Store* it, uint32_t first, uint32_t second) noexcept nogil:
    """Let the second of two free blocks, which follows the first, stand for both."""
    cdef uint32_t span = span_of(it, first) + span_of(it, second), size = it.blocks[first].size
    cdef uint32_t unhashed = it.blocks[first].link & UNHASHED
    if it.spans == NULL:
        it.spans = <uint8_t*>calloc(it.room, 1)
        if it.spans == NULL:
            return False
    take_between(it, first)
    it.blocks[second].size += size
    it.idle += size
    if not unhashed:
        it.wide += not it.spans[second]
        it.spans[second] = <uint8_t>span
        note(it, &it.merged, &it.merged, it.blocks[second].name)
    return True


cdef inline uint64_t halve(Store* it, uint32_t last, uint32_t after) noexcept nogil:
    """Merge by twos a run of blocks that follow one another, from before `after` to `last`."""
    cdef uint32_t block = it.blocks[after].older, waiting = 0, following
    cdef uint64_t saved = 0
    cdef bint more = True
    while more:
        more, following = block != last, it.blocks[block].older
        if waiting and may_merge(it, waiting, block) and merge(it, waiting, block):
            saved += 1
            waiting = 0
        else:
            waiting = block
        block = following
    return saved


cdef inline void coarsen(Store* it, uint64_t fewer) noexcept nogil:
    """Merge adjacent blocks, those freed first before others, until `fewer` are held less."""
    cdef uint32_t last = oldest(it), after
    cdef uint64_t saved
    while last:
        after = last
        while it.blocks[after].link & FOLLOWS:
            after = it.blocks[after].newer
        after = it.blocks[after].newer
        saved = 1
        while saved and fewer:
            saved = min(fewer, halve(it, last, after))
            fewer -= saved
        last = after if fewer else 0
