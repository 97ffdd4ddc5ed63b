"""The free queue: blocks that no request holds and that have content, in the order of eviction.

Part of `pool.pyx`. A doubly linked list that begins and ends at block 0.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from epp.model.caches.block_pool.native.blocks cimport delete_block
from epp.model.caches.block_pool.native.store cimport (
    COMPUTED, COPIED, FOLLOWS, IN_USE, JOINT, LARGEST, PREFETCHED, UNHASHED, WIDEST, Block, Store,
    prefetch_entries, record,
)


cdef inline uint32_t head(Store* store) noexcept nogil:
    """Return the block that is evicted next, or none."""
    return store.blocks[0].newer if store.room else 0


cdef inline uint32_t tail(Store* store) noexcept nogil:
    """Return the block that is evicted last, or none."""
    return store.blocks[0].older if store.room else 0


cdef inline void insert(Store* store, uint32_t block, uint32_t before) noexcept nogil:
    """Add a block that is evicted right after `before`, which is 0 for the first."""
    cdef Block* blocks = store.blocks
    cdef uint32_t after = blocks[before].newer
    blocks[block].older, blocks[block].newer = before, after
    blocks[before].newer = blocks[after].older = block
    store.queued_tokens += blocks[block].size


cdef inline void unlink(Store* store, uint32_t block) noexcept nogil:
    """Take a block out, wherever it is. What followed it follows nothing."""
    cdef Block* blocks = store.blocks
    cdef uint32_t before = blocks[block].older, after = blocks[block].newer
    blocks[before].newer, blocks[after].older = after, before
    blocks[before].link &= ~FOLLOWS
    blocks[block].link &= ~FOLLOWS
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
    """Evict from the head until `tokens` are free; return how many are: more, or all there is."""
    cdef int64_t freed = 0
    cdef Py_ssize_t ready = 0
    while freed < tokens and head(store):
        if not ready:
            ready = prefetch_head(store, tokens - freed)
        ready -= 1
        freed += evict_block(store, head(store))
    return freed


cdef inline Py_ssize_t prefetch_head(Store* store, int64_t tokens) noexcept nogil:
    """Prefetch the entries that evicting `tokens` looks up; return of how many blocks."""
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
    """Add a reference to each block; one that no request held leaves the queue."""
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
    """Remove a reference from each block, the last first; append those that are free now.

    `computed` is `COMPUTED` if the request has computed them, else 0.
    """
    cdef uint32_t following = 0
    cdef Py_ssize_t at
    for at in range(count - 1, -1, -1):
        store.blocks[held[at]].link |= computed
        store.blocks[held[at]].newer -= 1
        if store.blocks[held[at]].newer:
            following = 0
            continue
        insert(store, held[at], tail(store))
        if following:
            store.blocks[following].link |= FOLLOWS
        following = held[at]


cdef inline void insert_behind(Store* store, uint32_t block, uint32_t follower) noexcept nogil:
    """Free a new block, to be evicted right after `follower`, which follows it in its chain."""
    insert(store, block, follower)
    if follower == store.last_hole:
        store.last_hole = block
    store.blocks[block].link |= COMPUTED | (store.blocks[follower].link & FOLLOWS)
    store.blocks[follower].link |= FOLLOWS


cdef inline void delete_between(Store* store, uint32_t block) noexcept nogil:
    """Delete a free block, and link its neighbours in the chain."""
    cdef uint32_t follower = store.blocks[block].older
    cdef uint32_t follows = store.blocks[block].link & store.blocks[follower].link & FOLLOWS
    unlink(store, block)
    store.blocks[follower].link |= follows
    delete_block(store, block)


# Precision for memory.

cdef inline bint may_merge(Store* store, uint32_t first, uint32_t second) noexcept nogil:
    """Return whether a block and the one that follows it can be one."""
    cdef Block* one = store.blocks + first
    cdef Block* other = store.blocks + second
    if <uint64_t>one.size + other.size > LARGEST:
        return False
    if (one.link | other.link) & UNHASHED:
        return one.link & other.link & UNHASHED
    if (one.link | other.link) & COPIED or one.link & JOINT:
        return False
    return span_of(store, first) + span_of(store, second) <= WIDEST


cdef inline uint32_t span_of(Store* store, uint32_t block) noexcept nogil:
    """Return how many blocks one stands for."""
    return max(1, store.spans[block]) if store.wide else 1


cdef inline bint merge_blocks(Store* store, uint32_t first, uint32_t second) noexcept nogil:
    """Merge two free blocks: the second, which follows the first, stands for both."""
    cdef uint32_t span = span_of(store, first) + span_of(store, second)
    cdef uint32_t size = store.blocks[first].size
    cdef uint32_t unhashed = store.blocks[first].link & UNHASHED
    if store.spans == NULL:
        store.spans = <uint8_t*>calloc(store.room, 1)
        if store.spans == NULL:
            return False
    delete_between(store, first)
    store.blocks[second].size += size
    store.queued_tokens += size
    if not unhashed:
        store.wide += not store.spans[second]
        store.spans[second] = <uint8_t>span
        record(store, &store.merged, &store.merged, store.blocks[second].block_hash)
    return True


cdef inline uint64_t merge_pairs(Store* store, uint32_t last, uint32_t after) noexcept nogil:
    """Merge in pairs a run of blocks that follow one another, from before `after` to `last`."""
    cdef uint32_t block = store.blocks[after].older, waiting = 0, following
    cdef uint64_t saved = 0
    cdef bint more = True
    while more:
        more, following = block != last, store.blocks[block].older
        if waiting and may_merge(store, waiting, block) and merge_blocks(store, waiting, block):
            saved += 1
            waiting = 0
        else:
            waiting = block
        block = following
    return saved


cdef inline void merge_oldest(Store* store, uint64_t fewer) noexcept nogil:
    """Merge adjacent blocks, those freed first before others, until `fewer` fewer are held."""
    cdef uint32_t last = head(store), after
    cdef uint64_t saved
    while last:
        after = last
        while store.blocks[after].link & FOLLOWS:
            after = store.blocks[after].newer
        after = store.blocks[after].newer
        saved = 1
        while saved and fewer:
            saved = min(fewer, merge_pairs(store, last, after))
            fewer -= saved
        last = after if fewer else 0
