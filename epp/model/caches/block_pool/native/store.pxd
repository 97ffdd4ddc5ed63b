"""The blocks of one pool, by number and by hash, in C arrays. Part of `pool.pyx`.

A block is a number; 0 means none, and stands for both ends of the queue. It has a size in tokens, a
hash, and either its neighbours in the free queue or the number of requests that hold it: 24 bytes,
and about 3 for its place in the map from hashes to blocks.

The map is a table of chained blocks with two buckets for three hashes. It grows bucket by bucket
(linear hashing), so that it is never moved as a whole.

Functions that get no memory return that, and have changed nothing. `log_failed`: a change could not
be recorded.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from epp.model.prefetch cimport PREFETCHED, prefetch

cdef extern from *:
    """
    #define WP_NUMBER 0x03FFFFFFu   /* the part of `link` that is a number */
    #define WP_UNHASHED 0x04000000u /* generated; `block_hash` is the serial of its lease */
    #define WP_COMPUTED 0x08000000u /* a request that held it has ended, and computed it */
    #define WP_COPIED 0x10000000u   /* one of several with its hash */
    #define WP_RECORD 0x20000000u   /* no block: it stands for those in the map */
    #define WP_IN_USE 0xFFFFFFFFu   /* for `older`: `newer` counts the requests that hold it */
    #define WP_SPARE 0xFFFFFFFEu    /* for `older`: `newer` is the next number to give out */
    #define WP_ROOM_AT_ONCE 65536   /* blocks: what is not used yet of it is not in memory */
    #define WP_LARGEST 0x7FFFFFFFu  /* tokens of a block */
    """
    const uint32_t NUMBER "WP_NUMBER"
    const uint32_t UNHASHED "WP_UNHASHED"
    const uint32_t COMPUTED "WP_COMPUTED"
    const uint32_t COPIED "WP_COPIED"
    const uint32_t RECORD "WP_RECORD"
    const uint32_t IN_USE "WP_IN_USE"
    const uint32_t SPARE "WP_SPARE"
    const uint64_t ROOM_AT_ONCE "WP_ROOM_AT_ONCE"
    const uint32_t LARGEST "WP_LARGEST"

cdef struct Block:
    uint64_t block_hash
    uint32_t size
    uint32_t older  # the next towards the head of the queue, where blocks are evicted
    uint32_t newer
    uint32_t link   # flags, and the next in its bucket of the map

cdef struct Log:
    uint64_t* hashes
    size_t length
    size_t room
    bint stale  # some of it was undone since

cdef struct Store:
    Block* blocks
    uint32_t room      # numbers that there is memory for
    uint32_t begun     # numbers that were ever used, 0 included
    uint32_t spare     # the number freed last
    uint32_t taken     # numbers in use, of blocks and of records
    uint32_t records
    uint64_t expected  # blocks that a full pool has, by its capacity and block size
    uint32_t* buckets
    uint32_t most_buckets
    uint32_t open_buckets
    uint32_t level     # the power of two at or below the number of buckets
    uint32_t entries   # of the map
    uint32_t last_hole # the newest free block whose predecessors may be missing
    int64_t queued_tokens  # of the free queue
    Log stored
    Log evicted
    bint log_failed    # a change was not recorded, without memory


# Memory.

cdef inline void record(Store* store, Log* log, Log* opposite, uint64_t block_hash) noexcept nogil:
    """Append a hash to a log of changes."""
    cdef void* got
    opposite.stale |= opposite.length > 0
    if log.length == log.room:
        got = realloc(log.hashes, (2 * log.room + 32) * sizeof(uint64_t))
        if got == NULL:
            store.log_failed = True
            return
        log.hashes, log.room = <uint64_t*>got, 2 * log.room + 32
    log.hashes[log.length] = block_hash
    log.length += 1


cdef inline bint reserve(Store* store, uint64_t more) noexcept nogil:
    """Make sure that `more` numbers are free.

    False without memory, or if the pool would have more than 2**26 blocks.
    """
    cdef uint64_t need = store.taken + more + 1, room
    cdef void* got
    if need <= store.room:
        return True
    room = min(max(2 * <uint64_t>store.room, ROOM_AT_ONCE), store.expected + 2)
    room = min(max(need, room), NUMBER)
    if room < need or not (store.open_buckets or open_bucket(store)):
        return False
    got = realloc(store.blocks, room * sizeof(Block))
    if got == NULL:
        return False
    store.blocks = <Block*>got
    if store.room == 0:
        memset(store.blocks, 0, sizeof(Block))
        store.begun = 1
    store.room = <uint32_t>room
    return True


cdef inline uint32_t new_number(Store* store) noexcept nogil:
    """Return an unused number; `reserve` must have made one."""
    cdef uint32_t given = store.spare
    if given:
        store.spare = store.blocks[given].newer
    else:
        given = store.begun
        store.begun += 1
    store.taken += 1
    return given


cdef inline void free_number(Store* store, uint32_t block) noexcept nogil:
    cdef Block* at = store.blocks + block
    at.older, at.newer, at.link = SPARE, store.spare, 0
    store.spare = block
    store.taken -= 1


cdef inline void free_store(Store* store) noexcept nogil:
    """Free all memory."""
    free(store.blocks)
    free(store.buckets)
    free(store.stored.hashes)
    free(store.evicted.hashes)


# The map from hashes to blocks.

cdef inline uint32_t bucket_of(Store* store, uint64_t block_hash) noexcept nogil:
    cdef uint32_t mixed = <uint32_t>((block_hash * <uint64_t>0x9E3779B97F4A7C15) >> 32)
    cdef uint32_t at = mixed & (2 * store.level - 1)
    return at if at < store.open_buckets else at & (store.level - 1)


cdef inline void prefetch_entries(
    Store* store, const uint64_t* hashes, Py_ssize_t count
) noexcept nogil:
    """Prefetch the entries of the next hashes, `PREFETCHED` at most, into the processor's cache.

    Together they take the time of one; looked up one by one, each would have to be waited for.
    """
    cdef uint32_t[16] heads
    cdef Py_ssize_t at
    if not store.open_buckets:
        return
    count = min(count, PREFETCHED)
    for at in range(count):
        heads[at] = store.buckets[bucket_of(store, hashes[at])]
    for at in range(count):
        heads[at] = store.blocks[heads[at]].link & NUMBER
    for at in range(count):
        prefetch(store.blocks + heads[at])


cdef inline uint32_t find_entry(Store* store, uint64_t block_hash) noexcept nogil:
    """Return the map's entry for a hash: a block, a record, or none."""
    cdef uint32_t at
    if store.entries == 0:
        return 0
    at = store.buckets[bucket_of(store, block_hash)]
    while at and store.blocks[at].block_hash != block_hash:
        at = store.blocks[at].link & NUMBER
    return at


cdef inline uint32_t find_block(Store* store, uint64_t block_hash) noexcept nogil:
    """Return the block of a hash, or 0; if there are several, the one that was cached first."""
    cdef uint32_t entry = find_entry(store, block_hash)
    return store.blocks[entry].newer if entry and store.blocks[entry].link & RECORD else entry


cdef inline void chain_entry(Store* store, uint32_t entry) noexcept nogil:
    cdef uint32_t* bucket = store.buckets + bucket_of(store, store.blocks[entry].block_hash)
    store.blocks[entry].link = (store.blocks[entry].link & ~NUMBER) | bucket[0]
    bucket[0] = entry


cdef inline bint open_bucket(Store* store) noexcept nogil:
    """Split one more bucket off another one, and fill it from there; False without memory."""
    cdef uint32_t most = store.most_buckets, at, following
    cdef void* got
    if store.open_buckets == store.most_buckets:
        most = max(store.room - store.room // 3, most + 8)
        got = realloc(store.buckets, most * sizeof(uint32_t))
        if got == NULL:
            return False
        store.buckets, store.most_buckets = <uint32_t*>got, most
    if store.open_buckets == 0:
        store.buckets[0], store.open_buckets, store.level = 0, 1, 1
        return True
    at = store.buckets[store.open_buckets - store.level]
    if store.open_buckets + PREFETCHED < 2 * store.level:
        prefetch(store.blocks + store.buckets[store.open_buckets - store.level + PREFETCHED])
    store.buckets[store.open_buckets - store.level] = store.buckets[store.open_buckets] = 0
    store.open_buckets += 1
    if store.open_buckets == 2 * store.level:
        store.level *= 2
    while at:
        following = store.blocks[at].link & NUMBER
        chain_entry(store, at)
        at = following
    return True


cdef inline void insert_entry(Store* store, uint32_t entry) noexcept nogil:
    """Put a block, or a record, into the map."""
    store.entries += 1
    if store.entries > store.open_buckets + store.open_buckets // 2:
        open_bucket(store)
    chain_entry(store, entry)


cdef inline void remove_entry(Store* store, uint32_t entry) noexcept nogil:
    """Take a block, or a record, out of the map."""
    cdef uint32_t* bucket = store.buckets + bucket_of(store, store.blocks[entry].block_hash)
    cdef uint32_t at = bucket[0], following = store.blocks[entry].link & NUMBER
    store.entries -= 1
    if at == entry:
        bucket[0] = following
        return
    while store.blocks[at].link & NUMBER != entry:
        at = store.blocks[at].link & NUMBER
    store.blocks[at].link = (store.blocks[at].link & ~NUMBER) | following
