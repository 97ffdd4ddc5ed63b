"""The free queue: blocks that no request holds and that have content, in the order of eviction.

Part of `pool.pyx`. The queue is a doubly linked list that begins and ends at block 0.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from epp.model.caches.block_pool.native.blocks cimport delete_block
from epp.model.caches.block_pool.native.store cimport (
    COMPUTED, IN_USE, Block, Store, prefetch_entries,
)
from epp.model.prefetch cimport PREFETCHED


cdef inline uint32_t head(Store* store) noexcept nogil:
    """Return the block that is evicted next, or 0."""
    return store.blocks[0].newer if store.room else 0


cdef inline uint32_t tail(Store* store) noexcept nogil:
    """Return the block that is evicted last, or 0."""
    return store.blocks[0].older if store.room else 0


cdef inline void insert(Store* store, uint32_t block, uint32_t before) noexcept nogil:
    """Add a block, to be evicted right after `before`; 0: it is evicted first."""
    cdef Block* blocks = store.blocks
    cdef uint32_t after = blocks[before].newer
    blocks[block].older, blocks[block].newer = before, after
    blocks[before].newer = blocks[after].older = block
    store.queued_tokens += blocks[block].size


cdef inline void unlink(Store* store, uint32_t block) noexcept nogil:
    """Take a block out of the queue, wherever it is."""
    cdef Block* blocks = store.blocks
    cdef uint32_t before = blocks[block].older, after = blocks[block].newer
    blocks[before].newer, blocks[after].older = after, before
    if block == store.last_hole:
        store.last_hole = before
    store.queued_tokens -= blocks[block].size


cdef inline int64_t evict_block(Store* store, uint32_t block) noexcept nogil:
    """Drop a free block, wherever it is in the queue; return its size."""
    cdef int64_t size = store.blocks[block].size
    unlink(store, block)
    delete_block(store, block)
    return size


cdef inline int64_t evict(Store* store, int64_t tokens) noexcept nogil:
    """Evict from the head until at least `tokens` are free, or all; return how many are."""
    cdef int64_t freed = 0
    cdef Py_ssize_t ready = 0
    while freed < tokens and head(store):
        if not ready:
            ready = prefetch_head(store, tokens - freed)
        ready -= 1
        freed += evict_block(store, head(store))
    return freed


cdef inline Py_ssize_t prefetch_head(Store* store, int64_t tokens) noexcept nogil:
    """Prefetch the entries that evicting `tokens` will look up; return the number of blocks."""
    cdef uint64_t[16] hashes
    cdef uint32_t block = head(store)
    cdef Py_ssize_t count = 0
    while block and count < PREFETCHED and tokens > 0:
        hashes[count] = store.blocks[block].block_hash
        tokens -= store.blocks[block].size
        block = store.blocks[block].newer
        count += 1
    prefetch_entries(store, hashes, count)
    return count


cdef inline void touch(Store* store, const uint32_t* found, Py_ssize_t count) noexcept nogil:
    """Add a reference to each block; blocks that no request held leave the queue."""
    cdef Block* block
    cdef Py_ssize_t at
    for at in range(count):
        block = store.blocks + found[at]
        if block.older == IN_USE:
            block.newer += 1
        else:
            unlink(store, found[at])
            block.older, block.newer = IN_USE, 1


cdef inline void free_blocks(
    Store* store, const uint32_t* held, Py_ssize_t count, uint32_t computed
) noexcept nogil:
    """Remove a reference from each block, the last one first; queue those that are free now.

    `computed` is `COMPUTED` if the request has computed them, else 0.
    """
    cdef Py_ssize_t at
    for at in range(count - 1, -1, -1):
        store.blocks[held[at]].link |= computed
        store.blocks[held[at]].newer -= 1
        if not store.blocks[held[at]].newer:
            insert(store, held[at], tail(store))


cdef inline void insert_behind(Store* store, uint32_t block, uint32_t follower) noexcept nogil:
    """Queue a new block, to be evicted right after `follower`, its successor in the chain."""
    insert(store, block, follower)
    if follower == store.last_hole:
        store.last_hole = block
    store.blocks[block].link |= COMPUTED
