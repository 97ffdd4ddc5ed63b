"""Reports of the engine: hashes of generated blocks, stored and evicted ones. Part of `pool.pyx`.

The rules and their reasons are in `epp.model.caches.block_pool.pool`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from epp.model.caches.block_pool.native.blocks cimport cache_full_block, copy_after, delete_block
from epp.model.caches.block_pool.native.store cimport (
    COMPUTED, IN_USE, RECORD, UNHASHED, Block, Store, find_block, find_entry, reserve,
)
from epp.model.caches.block_pool.native.free_queue cimport (
    evict_block, head, insert, insert_behind, tail,
)
from epp.model.caches.block_pool.native.requests cimport (
    Lease, Pool, allocate_space, bounded, free_tokens, reserve_blocks,
)


cdef inline Py_ssize_t still_unhashed(Store* store, Lease* lease) noexcept nogil:
    """Count the unhashed blocks that a lease still has; drop the others from the lease."""
    cdef Py_ssize_t at, kept = lease.hashed
    cdef Block* block
    for at in range(lease.hashed, lease.count):
        block = store.blocks + lease.blocks[at]
        if block.link & UNHASHED and block.block_hash == lease.serial:
            lease.blocks[kept] = lease.blocks[at]
            kept += 1
    lease.count = kept
    return kept - lease.hashed


cdef inline Py_ssize_t assign_hashes(
    Pool* pool, Lease* lease, const uint64_t* hashes, const uint64_t* sizes, Py_ssize_t most
) noexcept nogil:
    """Replace unhashed blocks by hashed ones, as far as both last.

    Returns the number of hashed blocks, at most `most`; below 0 without memory.
    """
    cdef Py_ssize_t rest = still_unhashed(&pool.store, lease), count = 0, at
    cdef Py_ssize_t gone = 0
    cdef int64_t left, room = 0, size
    cdef uint32_t* unhashed
    cdef uint32_t block
    for at in range(rest):
        room += pool.store.blocks[lease.blocks[lease.hashed + at]].size
    left = room
    while count < most and left and bounded(sizes[count]) - left < pool.block:
        left -= min(bounded(sizes[count]), left)
        count += 1
    if not count:
        return 0
    if not (reserve_blocks(lease, count) and reserve(&pool.store, 2 * count)):
        return -1
    unhashed = lease.blocks + lease.hashed + count  # out of the way of the hashed blocks
    memmove(unhashed, lease.blocks + lease.hashed, rest * sizeof(uint32_t))
    for at in range(count):
        size = min(bounded(sizes[at]), room)
        room -= size
        block = cache_full_block(&pool.store, hashes[at], <uint32_t>size)
        if lease.released:
            insert_behind(&pool.store, block, unhashed[gone])
        else:
            lease.blocks[lease.hashed] = block
            lease.hashed += 1
        gone += shorten(&pool.store, unhashed + gone, size, lease.released)
    lease.count = lease.hashed + rest - gone
    memmove(lease.blocks + lease.hashed, unhashed + gone, (rest - gone) * sizeof(uint32_t))
    lease.anchor = hashes[count - 1]
    return count


cdef inline Py_ssize_t shorten(
    Store* store, const uint32_t* unhashed, int64_t tokens, bint released
) noexcept nogil:
    """Take tokens from the start of unhashed blocks; return how many blocks are then gone."""
    cdef Py_ssize_t gone = 0
    cdef Block* block
    while tokens:
        block = store.blocks + unhashed[gone]
        if block.size > tokens:
            block.size = <uint32_t>(block.size - tokens)
            store.queued_tokens -= tokens if released else 0
            break
        tokens -= block.size
        if released:
            evict_block(store, unhashed[gone])
        else:
            delete_block(store, unhashed[gone])
        gone += 1
    return gone


cdef inline bint store_blocks(
    Pool* pool, const uint64_t* hashes, const uint64_t* sizes, Py_ssize_t count
) noexcept nogil:
    """Append the blocks that are not held yet to the queue, as far as there is space.

    False without memory for all of them.
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
        if find_block(store, hashes[at]):
            continue
        if tokens + bounded(sizes[at]) > space:
            break
        places[chosen] = at
        tokens += bounded(sizes[at])
        chosen += 1
    allocate_space(pool, tokens)
    while come < chosen:
        at = places[come]
        blocks[come] = cache_full_block(store, hashes[at], <uint32_t>bounded(sizes[at]))
        if not blocks[come]:
            break
        tokens -= bounded(sizes[at])
        come += 1
    pool.blank_tokens += tokens  # of blocks for which there was no memory
    for at in range(come - 1, -1, -1):
        insert(store, blocks[at], tail(store))
        store.blocks[blocks[at]].link |= COMPUTED
    if come:
        store.last_hole = tail(store)
    free(places)
    return come == chosen


cdef inline void discard(Pool* pool, uint64_t block_hash) noexcept nogil:
    """Drop all free blocks that have a hash."""
    cdef Store* store = &pool.store
    cdef uint32_t entry = find_entry(store, block_hash), first = entry, at, following
    if not entry:
        return
    if store.blocks[entry].link & RECORD:
        first = store.blocks[entry].newer
        at = copy_after(store, first)
        while at != entry:  # which is gone with the last of them, and that is the end
            following = copy_after(store, at)
            discard_block(pool, at)
            at = following
    discard_block(pool, first)


cdef inline void discard_block(Pool* pool, uint32_t block) noexcept nogil:
    if pool.store.blocks[block].older == IN_USE:
        return
    if block != head(&pool.store):
        pool.store.last_hole = tail(&pool.store)
    pool.blank_tokens += evict_block(&pool.store, block)


cdef inline void coarsen(Pool* pool, int64_t fewer) noexcept nogil:
    """Hold `fewer` blocks fewer: evict the next ones."""
    cdef Store* store = &pool.store
    cdef int64_t target = max(0, <int64_t>(store.taken - store.records) - fewer)
    while store.taken - store.records > target and head(store):
        pool.blank_tokens += evict_block(store, head(store))
