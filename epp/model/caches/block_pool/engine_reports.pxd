"""What is heard of the engine's blocks: names for generated ones, content, losses. Part of `pool.pyx`.

The rules are those of `epp.model.caches.block_pool.pool`, which says what they are and why.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from epp.model.caches.block_pool.blocks cimport copy_after, forget, put
from epp.model.caches.block_pool.table cimport (
    FOLLOWS, IN_USE, UNHASHED, RECORD, Block, Store, entry_of, find, reserve,
)
from epp.model.caches.block_pool.free_queue cimport (
    coarsen, drop, evict, newest, oldest, place, put_between, take_between,
)
from epp.model.caches.block_pool.rules cimport Holding, Pool, free_tokens, make_room, size_of, take


cdef inline Py_ssize_t unhashed_of(Store* store, Holding* it) noexcept nogil:
    """Count the blocks without names that a request has still; others are left out from now on."""
    cdef Py_ssize_t at, kept = it.named
    cdef Block* block
    for at in range(it.named, it.held):
        block = store.blocks + it.blocks[at]
        if block.link & UNHASHED and block.name == it.serial:
            it.blocks[kept] = it.blocks[at]
            kept += 1
    it.held = kept
    return kept - it.named


cdef inline Py_ssize_t rename(
    Pool* pool, Holding* it, const uint64_t* names, const uint64_t* sizes, Py_ssize_t most
) noexcept nogil:
    """Let blocks with names take the place of those without, as far as these reach.

    Returns how many there are, at most `most`; below 0 where there is no memory.
    """
    cdef Py_ssize_t rest = unhashed_of(&pool.store, it), count = 0, at
    cdef Py_ssize_t gone = 0
    cdef int64_t left, room = 0, size
    cdef uint32_t* unhashed
    cdef uint32_t block
    for at in range(rest):
        room += pool.store.blocks[it.blocks[it.named + at]].size
    left = room
    while count < most and left and size_of(sizes[count]) - left < pool.block:
        left -= min(size_of(sizes[count]), left)
        count += 1
    if not count:
        return 0
    if not (make_room(it, count) and reserve(&pool.store, 2 * count)):
        return -1
    unhashed = it.blocks + it.named + count  # out of the way of those with names
    memmove(unhashed, it.blocks + it.named, rest * sizeof(uint32_t))
    for at in range(count):
        size = min(size_of(sizes[at]), room)
        room -= size
        block = put(&pool.store, names[at], <uint32_t>size)
        if it.over:
            put_between(&pool.store, block, unhashed[gone])
        else:
            it.blocks[it.named] = block
            it.named += 1
        gone += use_up(&pool.store, unhashed + gone, size, it.over)
    it.held = it.named + rest - gone
    memmove(it.blocks + it.named, unhashed + gone, (rest - gone) * sizeof(uint32_t))
    it.anchor = names[count - 1]
    return count


cdef inline Py_ssize_t use_up(
    Store* store, const uint32_t* unhashed, int64_t tokens, bint over
) noexcept nogil:
    """Take the first tokens from blocks without names; return how many of these are gone."""
    cdef Py_ssize_t gone = 0
    cdef Block* block
    while tokens:
        block = store.blocks + unhashed[gone]
        if block.size > tokens:
            block.size = <uint32_t>(block.size - tokens)
            store.idle -= tokens if over else 0
            break
        tokens -= block.size
        if over:
            take_between(store, unhashed[gone])
        else:
            forget(store, unhashed[gone])
        gone += 1
    return gone


cdef inline bint believe(
    Pool* pool, const uint64_t* names, const uint64_t* sizes, Py_ssize_t count
) noexcept nogil:
    """Put what is not held at the tail of the queue, as far as there is space.

    False where there is no memory for all of it.
    """
    cdef Store* store = &pool.store
    cdef Py_ssize_t at, chosen = 0, come = 0
    cdef int64_t tokens = 0, space = free_tokens(pool)
    cdef uint32_t* blocks
    cdef Py_ssize_t* places = <Py_ssize_t*>malloc((count + 1) * (sizeof(Py_ssize_t) + 4))
    if places == NULL:
        return False
    blocks = <uint32_t*>(places + count + 1)
    for at in range(count):
        if find(store, names[at]):
            continue
        if tokens + size_of(sizes[at]) > space:
            break
        places[chosen] = at
        tokens += size_of(sizes[at])
        chosen += 1
    take(pool, tokens)
    while come < chosen:
        at = places[come]
        blocks[come] = put(store, names[at], <uint32_t>size_of(sizes[at]))
        if not blocks[come]:
            break
        tokens -= size_of(sizes[at])
        come += 1
    pool.blank += tokens  # of what found no memory
    for at in range(come - 1, -1, -1):
        place(store, blocks[at], newest(store))
        if at + 1 < come and places[at] + 1 == places[at + 1]:
            store.blocks[blocks[at + 1]].link |= FOLLOWS
    if come:
        store.doubtful = newest(store)
    free(places)
    return come == chosen


cdef inline void lose(Pool* pool, uint64_t name) noexcept nogil:
    """Drop all free blocks of a name."""
    cdef Store* store = &pool.store
    cdef uint32_t entry = entry_of(store, name), first = entry, at, following
    if not entry:
        return
    if store.blocks[entry].link & RECORD:
        first = store.blocks[entry].newer
        at = copy_after(store, first)
        while at != entry:  # which is gone with the last of them, and that is the end
            following = copy_after(store, at)
            lose_one(pool, at)
            at = following
    lose_one(pool, first)


cdef inline void lose_one(Pool* pool, uint32_t block) noexcept nogil:
    if pool.store.blocks[block].older == IN_USE:
        return
    if block != oldest(&pool.store):
        pool.store.doubtful = newest(&pool.store)
    pool.blank += drop(&pool.store, block)


cdef inline void thin(Pool* pool, int64_t fewer) noexcept nogil:
    """Hold that many blocks fewer: merge, and where that is not enough, evict."""
    cdef Store* store = &pool.store
    cdef int64_t target = max(0, <int64_t>(store.taken - store.records) - fewer)
    coarsen(store, store.taken - store.records - target)
    while store.taken - store.records > target and oldest(store):
        pool.blank += evict(store, max(1, store.blocks[oldest(store)].size))
