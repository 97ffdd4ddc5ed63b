"""What requests do to one pool: allocate, grow, release, revoke. Part of `pool.pyx`.

The rules and their reasons are in `epp.model.caches.block_pool.pool`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from epp.model.caches.block_pool.native.blocks cimport (
    add_unhashed, cache_full_block, find_longest_hit,
)
from epp.model.caches.block_pool.native.free_queue cimport evict, evict_block, free_blocks, touch
from epp.model.caches.block_pool.native.store cimport (
    COMPUTED, IN_USE, LARGEST, SPARE, Block, Store, prefetch_entries, reserve,
)
from epp.model.prefetch cimport PREFETCHED

cdef struct Lease:
    # What one request holds: `count` blocks, of which the first `hashed` have hashes. Once this is
    # `released`, its blocks without hashes, as far as they still exist and have its `serial`.
    uint32_t* blocks
    Py_ssize_t room
    Py_ssize_t hashed
    Py_ssize_t count
    Py_ssize_t cached  # how many of `blocks`, from the first, were hits
    int64_t tokens
    int64_t reserved_tokens
    uint64_t serial
    uint64_t anchor  # the hash of its last hashed block
    bint released

cdef struct Pool:
    Store store
    int64_t capacity
    int64_t blank_tokens  # space without content; below 0 after shrinking under load
    int64_t block

cdef enum Answer:
    NO_MEMORY = -1
    NO_SPACE = 0
    DONE = 1
    TOO_LARGE = 2


cdef inline int64_t bounded(uint64_t given) noexcept nogil:
    return min(given, LARGEST)


cdef inline int64_t free_tokens(Pool* pool) noexcept nogil:
    return pool.blank_tokens + pool.store.queued_tokens


cdef inline void allocate_space(Pool* pool, int64_t tokens) noexcept nogil:
    """Take space: first space without content, then that of blocks at the head of the queue."""
    pool.blank_tokens -= tokens
    if pool.blank_tokens < 0:
        pool.blank_tokens += evict(&pool.store, -pool.blank_tokens)


cdef inline bint reserve_blocks(Lease* lease, Py_ssize_t more) noexcept nogil:
    """Make room for `more` blocks in a lease; False without memory."""
    cdef Py_ssize_t room = lease.count + more
    cdef void* got
    if room <= lease.room:
        return True
    if lease.room:
        room += room >> 2
    got = realloc(lease.blocks, room * sizeof(uint32_t))
    if got == NULL:
        return False
    lease.blocks, lease.room = <uint32_t*>got, room
    return True


cdef inline void keep_unhashed(Lease* lease) noexcept nogil:
    """Keep only the unhashed blocks of a lease, and no more memory than these need."""
    cdef void* got = NULL
    lease.count -= lease.hashed
    if lease.count:
        memmove(lease.blocks, lease.blocks + lease.hashed, lease.count * sizeof(uint32_t))
        got = realloc(lease.blocks, lease.count * sizeof(uint32_t))
    else:
        free(lease.blocks)
    if lease.count == 0 or got != NULL:
        lease.blocks, lease.room = <uint32_t*>got, lease.count
    lease.hashed = 0


# Requests.

cdef inline Answer allocate(
    Pool* pool,
    Lease* lease,
    const uint64_t* hashes,
    const uint64_t* sizes,
    Py_ssize_t count,
    Py_ssize_t lookup,
    int64_t later,
) noexcept nogil:
    """Allocate a prompt of `count` blocks, of which the first `lookup` may hit.

    `lease` has room for the blocks; its `reserved_tokens` are allocated besides, and `later` tokens
    must fit too. Unless the answer is `DONE`, nothing has changed.
    """
    cdef Store* store = &pool.store
    cdef int64_t held = 0, queued = 0, fresh = 0, need
    cdef Py_ssize_t at, hits
    cdef Block* block
    hits = find_longest_hit(store, hashes, lookup, lease.blocks)
    for at in range(hits):
        block = store.blocks + lease.blocks[at]
        held += block.size
        if block.older != IN_USE:
            queued += block.size
    for at in range(hits, count):
        fresh += bounded(sizes[at])
    need = fresh + lease.reserved_tokens + later
    if need > free_tokens(pool) - queued:
        return NO_SPACE if held + need <= pool.capacity else TOO_LARGE
    touch(store, lease.blocks, hits)
    allocate_space(pool, fresh + lease.reserved_tokens)
    lease.cached = lease.hashed = lease.count = hits
    lease.tokens = held
    for at in range(hits, count):
        if (at - hits) % PREFETCHED == 0:
            prefetch_entries(store, hashes + at, count - at)
        lease.blocks[lease.count] = cache_full_block(store, hashes[at], bounded(sizes[at]))
        if not lease.blocks[lease.count]:
            lease.reserved_tokens += fresh
            release(pool, lease)
            return NO_MEMORY
        lease.hashed = lease.count = lease.count + 1
        lease.tokens += bounded(sizes[at])
        fresh -= bounded(sizes[at])
    if count:
        lease.anchor = hashes[count - 1]
    return DONE


cdef inline Answer grow(Pool* pool, Lease* lease, int64_t computed) noexcept nogil:
    """Allocate for a request that has computed `computed` tokens, 2**60 at most."""
    cdef int64_t block = pool.block, full = computed - computed % block, size
    cdef int64_t need = full - lease.tokens - lease.reserved_tokens
    cdef Py_ssize_t more = full // block - lease.tokens // block
    if full < computed:
        need += block
    if (need <= 0 and more <= 0) or lease.released or not lease.tokens + lease.reserved_tokens:
        return DONE
    if need > max(0, free_tokens(pool)):
        return NO_SPACE
    if more > 0 and not (reserve(&pool.store, more) and reserve_blocks(lease, more)):
        return NO_MEMORY
    if need > 0:
        allocate_space(pool, need)
        lease.reserved_tokens += need
    while lease.tokens < full:
        size = block - lease.tokens % block
        lease.blocks[lease.count] = add_unhashed(&pool.store, lease.serial, <uint32_t>size)
        lease.count += 1
        lease.tokens += size
        lease.reserved_tokens -= size
    return DONE


cdef inline bint is_shared(Block* block) noexcept nogil:
    """Whether a block in use is shared: another request holds it, or has computed it."""
    return block.newer > 1 or block.link & COMPUTED != 0


cdef inline void correct_sizes(
    Store* store, Lease* lease, const uint64_t* sizes
) noexcept nogil:
    """Correct the sizes of the hashed blocks that the request added and that are not shared."""
    cdef uint32_t* own = lease.blocks + lease.cached
    cdef int64_t grown = 0, change
    cdef bint one_by_one = False
    cdef Block* block
    cdef Py_ssize_t at, count = lease.hashed - lease.cached
    for at in range(count):
        block = store.blocks + own[at]
        grown += bounded(sizes[at]) - block.size
        one_by_one |= is_shared(block)
    one_by_one |= grown > lease.reserved_tokens
    grown = 0
    for at in range(count):
        block = store.blocks + own[at]
        change = bounded(sizes[at]) - block.size
        if one_by_one and (is_shared(block) or grown + change > lease.reserved_tokens):
            continue
        block.size = <uint32_t>(block.size + change)
        grown += change
    lease.tokens += grown
    lease.reserved_tokens -= grown


cdef inline void free_all(Pool* pool, Lease* lease, uint32_t computed) noexcept nogil:
    free_blocks(&pool.store, lease.blocks, lease.count, computed)
    pool.blank_tokens += lease.reserved_tokens
    lease.tokens = lease.reserved_tokens = 0
    lease.released = True
    allocate_space(pool, 0)


cdef inline void release(Pool* pool, Lease* lease) noexcept nogil:
    """End a request that was computed: its blocks become free."""
    free_all(pool, lease, COMPUTED)
    keep_unhashed(lease)


cdef inline bint revoke(Pool* pool, Lease* lease) noexcept nogil:
    """End a request that was not computed: evict blocks that no request holds or has computed.

    Return whether anything was evicted.
    """
    cdef Py_ssize_t at
    cdef bint evicted = False
    cdef Block* block
    free_all(pool, lease, 0)
    for at in range(lease.count - 1, -1, -1):
        block = pool.store.blocks + lease.blocks[at]
        if block.older != IN_USE and block.older != SPARE and not block.link & COMPUTED:
            pool.blank_tokens += evict_block(&pool.store, lease.blocks[at])
            evicted = True
    lease.count = lease.hashed
    keep_unhashed(lease)
    return evicted
