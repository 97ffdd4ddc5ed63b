"""The blocks of one pool, by number and by name, in C arrays. Part of `pool.pyx`.

A block is a number; 0 is none, and stands for both ends of the queue. It has a size in tokens, a
name, and either its neighbours among the free blocks or how many requests hold it: 24 bytes, and
some 3 for its place in the map from names to blocks.

The map is a table of chained blocks that grows bucket by bucket (linear hashing), two for three
names, so that there is no moment at which all of it is moved.

Where memory lacks, functions say so, and nothing has changed; what could not be noted for want of
it is `lost`.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

cdef extern from *:
    """
    /* gcc takes a function that only fetches for one that does nothing; not so with the second */
    #define WP_PREFETCH(at) (__builtin_prefetch(at), wp_nothing())
    static inline void wp_nothing(void) { __asm__ volatile(""); }
    #define WP_NUMBER 0x03FFFFFFu   /* the part of `link` that is a number */
    #define WP_UNHASHED 0x04000000u /* generated; `name` is the serial of its lease */
    #define WP_SHARED 0x08000000u   /* was found while the request that brought it held it */
    #define WP_COPIED 0x10000000u   /* one of several of its name */
    #define WP_RECORD 0x20000000u   /* no block: it stands for those in the map */
    #define WP_JOINT 0x40000000u    /* another chain went on here */
    #define WP_FOLLOWS 0x80000000u  /* the next newer free block stands before it in its chain */
    #define WP_IN_USE 0xFFFFFFFFu   /* for `older`: `newer` counts the requests that hold it */
    #define WP_SPARE 0xFFFFFFFEu    /* for `older`: `newer` is the next number to give out */
    #define WP_ROOM_AT_ONCE 65536   /* blocks: what is not used yet of it is not in memory */
    #define WP_TOGETHER 16          /* names that are fetched together */
    #define WP_WIDEST 64            /* blocks that one may stand for */
    #define WP_LARGEST 0x7FFFFFFFu  /* tokens of a block */
    """
    void prefetch "WP_PREFETCH"(const void*) noexcept nogil
    const Py_ssize_t TOGETHER "WP_TOGETHER"
    const uint32_t NUMBER "WP_NUMBER"
    const uint32_t UNHASHED "WP_UNHASHED"
    const uint32_t SHARED "WP_SHARED"
    const uint32_t COPIED "WP_COPIED"
    const uint32_t RECORD "WP_RECORD"
    const uint32_t JOINT "WP_JOINT"
    const uint32_t FOLLOWS "WP_FOLLOWS"
    const uint32_t IN_USE "WP_IN_USE"
    const uint32_t SPARE "WP_SPARE"
    const uint64_t ROOM_AT_ONCE "WP_ROOM_AT_ONCE"
    const int WIDEST "WP_WIDEST"
    const uint32_t LARGEST "WP_LARGEST"

cdef struct Block:
    uint64_t name
    uint32_t size
    uint32_t older  # the next towards the head of the queue, where blocks are evicted
    uint32_t newer
    uint32_t link   # flags, and the next in its bucket of the map

cdef struct Log:
    uint64_t* names
    size_t length
    size_t room
    bint stale  # some of it was undone since

cdef struct Store:
    Block* blocks
    uint32_t room      # numbers that there is memory for
    uint32_t begun     # numbers that were ever given out, 0 included
    uint32_t spare     # the number given back last
    uint32_t taken     # numbers that are out, of blocks and of records
    uint32_t records
    uint64_t likely    # blocks that there will be where nobody has seen a reason for more
    uint32_t* buckets
    uint32_t most_buckets
    uint32_t open_buckets
    uint32_t level     # the power of two at or below the number of buckets
    uint32_t names     # entries of the map
    uint32_t doubtful  # the newest free block that may lack what stands before it
    uint32_t wide      # blocks that stand for several
    uint8_t* spans     # for how many each block stands where that is more than one; or NULL
    int64_t idle       # tokens of the free blocks
    Log stored
    Log evicted
    Log merged
    bint lost          # some of what is to be told found no memory


# Memory.

cdef inline void note(Store* it, Log* log, Log* opposite, uint64_t name) noexcept nogil:
    """Append a name to what is told."""
    cdef void* got
    opposite.stale |= opposite.length > 0
    if log.length == log.room:
        got = realloc(log.names, (2 * log.room + 32) * sizeof(uint64_t))
        if got == NULL:
            it.lost = True
            return
        log.names, log.room = <uint64_t*>got, 2 * log.room + 32
    log.names[log.length] = name
    log.length += 1


cdef inline bint reserve(Store* it, uint64_t more) noexcept nogil:
    """See to it that `more` numbers can be given out.

    False where there is no memory, or where a pool would have more than 2**26 blocks.
    """
    cdef uint64_t need = it.taken + more + 1, room
    cdef void* got
    if need <= it.room:
        return True
    room = min(max(need, min(max(2 * <uint64_t>it.room, ROOM_AT_ONCE), it.likely + 2)), NUMBER)
    if room < need or not (it.open_buckets or open_bucket(it)):
        return False
    got = realloc(it.blocks, room * sizeof(Block))
    if got == NULL:
        return False
    it.blocks = <Block*>got
    if it.room == 0:
        memset(it.blocks, 0, sizeof(Block))
        it.begun = 1
    if it.spans != NULL and not follow_in_spans(it, room):
        return False
    it.room = <uint32_t>room
    return True


cdef inline bint follow_in_spans(Store* it, size_t room) noexcept nogil:
    """Have as many spans as numbers."""
    cdef void* got = realloc(it.spans, room)
    if got == NULL:
        return False
    memset(<uint8_t*>got + it.begun, 0, room - it.begun)
    it.spans = <uint8_t*>got
    return True


cdef inline uint32_t number(Store* it) noexcept nogil:
    """Give out a number; there must be one (`reserve`)."""
    cdef uint32_t given = it.spare
    if given:
        it.spare = it.blocks[given].newer
    else:
        given = it.begun
        it.begun += 1
    it.taken += 1
    return given


cdef inline void recycle(Store* it, uint32_t block) noexcept nogil:
    cdef Block* at = it.blocks + block
    at.older, at.newer, at.link = SPARE, it.spare, 0
    it.spare = block
    it.taken -= 1


cdef inline void clear(Store* it) noexcept nogil:
    """Give all memory back."""
    free(it.blocks)
    free(it.buckets)
    free(it.spans)
    free(it.stored.names)
    free(it.evicted.names)
    free(it.merged.names)


# The map from names to blocks.

cdef inline uint32_t bucket_of(Store* it, uint64_t name) noexcept nogil:
    cdef uint32_t mixed = <uint32_t>((name * <uint64_t>0x9E3779B97F4A7C15) >> 32)
    cdef uint32_t at = mixed & (2 * it.level - 1)
    return at if at < it.open_buckets else at & (it.level - 1)


cdef inline void fetch(Store* it, const uint64_t* names, Py_ssize_t count) noexcept nogil:
    """Have what will be looked at for the next names, `TOGETHER` at most, come into the cache.

    All of it comes in the time of one; looked for one by one, each name waits for its own.
    """
    cdef uint32_t[16] heads
    cdef Py_ssize_t at
    if not it.open_buckets:
        return
    count = min(count, TOGETHER)
    for at in range(count):
        heads[at] = it.buckets[bucket_of(it, names[at])]
    for at in range(count):
        heads[at] = it.blocks[heads[at]].link & NUMBER
    for at in range(count):
        prefetch(it.blocks + heads[at])


cdef inline uint32_t entry_of(Store* it, uint64_t name) noexcept nogil:
    """Return what the map has under a name: a block, a record, or none."""
    cdef uint32_t at
    if it.names == 0:
        return 0
    at = it.buckets[bucket_of(it, name)]
    while at and it.blocks[at].name != name:
        at = it.blocks[at].link & NUMBER
    return at


cdef inline uint32_t find(Store* it, uint64_t name) noexcept nogil:
    """Return the block of a name, the oldest of several; or none."""
    cdef uint32_t entry = entry_of(it, name)
    return it.blocks[entry].newer if entry and it.blocks[entry].link & RECORD else entry


cdef inline void hang(Store* it, uint32_t entry) noexcept nogil:
    cdef uint32_t* bucket = it.buckets + bucket_of(it, it.blocks[entry].name)
    it.blocks[entry].link = (it.blocks[entry].link & ~NUMBER) | bucket[0]
    bucket[0] = entry


cdef inline bint open_bucket(Store* it) noexcept nogil:
    """Open one more bucket, and fill it from the one that it is split off; False: no memory."""
    cdef uint32_t most = it.most_buckets, at, following
    cdef void* got
    if it.open_buckets == it.most_buckets:
        most = max(it.room - it.room // 3, most + 8)
        got = realloc(it.buckets, most * sizeof(uint32_t))
        if got == NULL:
            return False
        it.buckets, it.most_buckets = <uint32_t*>got, most
    if it.open_buckets == 0:
        it.buckets[0], it.open_buckets, it.level = 0, 1, 1
        return True
    at = it.buckets[it.open_buckets - it.level]
    if it.open_buckets + TOGETHER < 2 * it.level:
        prefetch(it.blocks + it.buckets[it.open_buckets - it.level + TOGETHER])
    it.buckets[it.open_buckets - it.level] = it.buckets[it.open_buckets] = 0
    it.open_buckets += 1
    if it.open_buckets == 2 * it.level:
        it.level *= 2
    while at:
        following = it.blocks[at].link & NUMBER
        hang(it, at)
        at = following
    return True


cdef inline void enter(Store* it, uint32_t entry) noexcept nogil:
    """Put a block, or a record, into the map."""
    it.names += 1
    if it.names > it.open_buckets + it.open_buckets // 2:
        open_bucket(it)
    hang(it, entry)


cdef inline void leave(Store* it, uint32_t entry) noexcept nogil:
    """Take a block, or a record, out of the map."""
    cdef uint32_t* bucket = it.buckets + bucket_of(it, it.blocks[entry].name)
    cdef uint32_t at = bucket[0], following = it.blocks[entry].link & NUMBER
    it.names -= 1
    if at == entry:
        bucket[0] = following
        return
    while it.blocks[at].link & NUMBER != entry:
        at = it.blocks[at].link & NUMBER
    it.blocks[at].link = (it.blocks[at].link & ~NUMBER) | following
