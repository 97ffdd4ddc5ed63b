"""What requests do to one block pool. Part of `pool.pyx`.

The rules are those of `epp.model.caches.block_pool.pool`, which says what they are and why.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from epp.model.caches.block_pool.blocks cimport find_run, part_here, put, put_unhashed
from epp.model.caches.block_pool.table cimport (
    IN_USE, LARGEST, SHARED, SPARE, TOGETHER, Block, Store, fetch, reserve,
)
from epp.model.caches.block_pool.free_queue cimport drop, evict, put_back, touch

cdef struct Holding:
    # What one request holds: blocks with names, then `held - named` without. Once it is `over`,
    # those without, as far as they are still there and bear its `serial`.
    uint32_t* blocks
    Py_ssize_t room
    Py_ssize_t named
    Py_ssize_t held
    Py_ssize_t hit_keys
    Py_ssize_t cached
    int64_t tokens
    int64_t reserved_tokens
    uint64_t serial
    uint64_t anchor  # the name of its last block with one
    bint over

cdef struct Pool:
    Store store
    int64_t capacity
    int64_t blank  # tokens that are free and without content; below 0 where tokens are owed
    int64_t block

cdef enum Answer:
    NO_MEMORY = -1
    NO_SPACE = 0
    DONE = 1
    TOO_LARGE = 2


cdef inline int64_t size_of(uint64_t given) noexcept nogil:
    return min(given, LARGEST)


cdef inline int64_t free_tokens(Pool* pool) noexcept nogil:
    return pool.blank + pool.store.idle


cdef inline void take(Pool* pool, int64_t tokens) noexcept nogil:
    """Take tokens: blank ones, then from the head of the free queue, evicting what is there."""
    pool.blank -= tokens
    if pool.blank < 0:
        pool.blank += evict(&pool.store, -pool.blank)


cdef inline bint make_room(Holding* it, Py_ssize_t more) noexcept nogil:
    """Have memory for so many more blocks; False where there is none."""
    cdef Py_ssize_t room = it.held + more
    cdef void* got
    if room <= it.room:
        return True
    if it.room:
        room += room >> 2
    got = realloc(it.blocks, room * sizeof(uint32_t))
    if got == NULL:
        return False
    it.blocks, it.room = <uint32_t*>got, room
    return True


cdef inline void shrink(Holding* it) noexcept nogil:
    """Keep the blocks without names only, and no more memory than these need."""
    cdef void* got = NULL
    it.held -= it.named
    if it.held:
        memmove(it.blocks, it.blocks + it.named, it.held * sizeof(uint32_t))
        got = realloc(it.blocks, it.held * sizeof(uint32_t))
    else:
        free(it.blocks)
    if it.held == 0 or got != NULL:
        it.blocks, it.room = <uint32_t*>got, it.held
    it.named = 0


# What requests do.

cdef inline Answer let_in(
    Pool* pool, Holding* it, const uint64_t* names, const uint64_t* sizes, Py_ssize_t[2] counts
) noexcept nogil:
    """Allocate a prompt of `counts[0]` blocks, of which the first `counts[1]` may hit.

    `it` has room for the blocks, and says in `reserved_tokens` how much space is wanted besides. Where the
    answer is another than `DONE`, nothing has changed, and nothing is held.
    """
    cdef Store* store = &pool.store
    cdef int64_t held = 0, idle = 0, fresh = 0
    cdef Py_ssize_t count = counts[0], at, hits, found = 0
    cdef Block* block
    hits = find_run(store, names, counts[1], it.blocks, &found)
    for at in range(found):
        block = store.blocks + it.blocks[at]
        held += block.size
        if block.older != IN_USE:
            idle += block.size
    for at in range(hits, count):
        fresh += size_of(sizes[at])
    if fresh + it.reserved_tokens > free_tokens(pool) - idle:
        return NO_SPACE if held + fresh + it.reserved_tokens <= pool.capacity else TOO_LARGE
    touch(store, it.blocks, found)
    take(pool, fresh + it.reserved_tokens)
    it.cached, it.hit_keys, it.named, it.held, it.tokens = hits, found, found, found, held
    if found and hits < count:
        part_here(store, it.blocks[found - 1])
    for at in range(hits, count):
        if (at - hits) % TOGETHER == 0:
            fetch(store, names + at, count - at)
        it.blocks[it.held] = put(store, names[at], size_of(sizes[at]))
        if not it.blocks[it.held]:
            it.reserved_tokens += fresh
            give_up(pool, it)
            return NO_MEMORY
        it.named = it.held = it.held + 1
        it.tokens += size_of(sizes[at])
        fresh -= size_of(sizes[at])
    if count:
        it.anchor = names[count - 1]
    return DONE


cdef inline Answer extend(Pool* pool, Holding* it, int64_t computed) noexcept nogil:
    """Follow a request that has computed so many tokens, which are 2**60 at most."""
    cdef int64_t block = pool.block, full = computed - computed % block, size
    cdef int64_t need = full - it.tokens - it.reserved_tokens
    cdef Py_ssize_t more = full // block - it.tokens // block
    if full < computed:
        need += block
    if (need <= 0 and more <= 0) or it.over or not it.tokens + it.reserved_tokens:
        return DONE
    if need > max(0, free_tokens(pool)):
        return NO_SPACE
    if more > 0 and not (reserve(&pool.store, more) and make_room(it, more)):
        return NO_MEMORY
    if need > 0:
        take(pool, need)
        it.reserved_tokens += need
    while it.tokens < full:
        size = block - it.tokens % block
        it.blocks[it.held] = put_unhashed(&pool.store, it.serial, <uint32_t>size)
        it.held += 1
        it.tokens += size
        it.reserved_tokens -= size
    return DONE


cdef inline void correct(Store* store, Holding* it, const uint64_t* sizes) noexcept nogil:
    """Correct the sizes of the named blocks that it brought, as far as nobody shares them."""
    cdef uint32_t* own = it.blocks + it.hit_keys
    cdef int64_t grown = 0, change
    cdef bint one_by_one = False
    cdef Block* block
    cdef Py_ssize_t at, count = it.named - it.hit_keys
    for at in range(count):
        block = store.blocks + own[at]
        grown += size_of(sizes[at]) - block.size
        one_by_one |= block.link & SHARED != 0
    one_by_one |= grown > it.reserved_tokens
    grown = 0
    for at in range(count):
        block = store.blocks + own[at]
        change = size_of(sizes[at]) - block.size
        if one_by_one and (block.link & SHARED or grown + change > it.reserved_tokens):
            continue
        block.size = <uint32_t>(block.size + change)
        grown += change
    it.tokens += grown
    it.reserved_tokens -= grown


cdef inline void put_all_back(Pool* pool, Holding* it) noexcept nogil:
    put_back(&pool.store, it.blocks, it.held)
    pool.blank += it.reserved_tokens
    it.tokens = it.reserved_tokens = 0
    it.over = True
    take(pool, 0)


cdef inline void give_up(Pool* pool, Holding* it) noexcept nogil:
    """The request is over: what it computed stays."""
    put_all_back(pool, it)
    shrink(it)


cdef inline void revoke(Pool* pool, Holding* it) noexcept nogil:
    """The request was never computed: what it brought goes, but for what others found."""
    cdef Py_ssize_t at
    cdef Block* block
    put_all_back(pool, it)
    for at in range(it.held - 1, it.hit_keys - 1, -1):
        block = pool.store.blocks + it.blocks[at]
        if block.older != IN_USE and block.older != SPARE and not block.link & SHARED:
            pool.blank += drop(&pool.store, it.blocks[at])
    it.held = it.named
    shrink(it)
