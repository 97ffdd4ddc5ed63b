"""The blocks of one pool: cached, found and deleted. Part of `pool.pyx`.

If several blocks have the same hash, the map has a record in their place, and the record links to
them in the order in which they were cached. The first one is found. The `block_hash` of each of
these blocks holds its neighbours instead.
"""

from libc.stdint cimport uint32_t, uint64_t

from epp.model.caches.block_pool.native.store cimport (
    COPIED, IN_USE, NUMBER, RECORD, UNHASHED, Block, Store, find_block, find_entry,
    free_number, insert_entry, new_number, prefetch_entries, record, remove_entry, reserve,
)
from epp.model.prefetch cimport PREFETCHED

# Several blocks of one hash.

cdef inline uint32_t copy_before(Store* store, uint32_t at) noexcept nogil:
    cdef Block* block = store.blocks + at
    return block.older if block.link & RECORD else <uint32_t>(block.block_hash >> 32)


cdef inline uint32_t copy_after(Store* store, uint32_t at) noexcept nogil:
    cdef Block* block = store.blocks + at
    return block.newer if block.link & RECORD else <uint32_t>block.block_hash


cdef inline void link_copies(Store* store, uint32_t first, uint32_t second) noexcept nogil:
    """Make one copy, or the record, the next after another."""
    cdef Block* one = store.blocks + first
    cdef Block* other = store.blocks + second
    if one.link & RECORD:
        one.newer = second
    else:
        one.block_hash = (one.block_hash & <uint64_t>0xFFFFFFFF00000000) | second
    if other.link & RECORD:
        other.older = first
    else:
        other.block_hash = (<uint64_t>first << 32) | <uint32_t>other.block_hash


cdef inline void add_copy(Store* store, uint32_t entry, uint32_t block) noexcept nogil:
    """Add a block after those with its hash; there must be a free number for a record."""
    cdef uint32_t record = entry
    if not store.blocks[entry].link & RECORD:
        record = new_number(store)
        store.records += 1
        store.blocks[record].block_hash = store.blocks[entry].block_hash
        store.blocks[record].link = RECORD
        remove_entry(store, entry)
        insert_entry(store, record)
        store.blocks[entry].link = (store.blocks[entry].link & ~NUMBER) | COPIED
        link_copies(store, record, entry)
        link_copies(store, entry, record)
    store.blocks[block].link |= COPIED
    link_copies(store, store.blocks[record].older, block)
    link_copies(store, block, record)


cdef inline void drop_copy(Store* store, uint32_t block) noexcept nogil:
    """Remove a block from those with its hash; if one is left, that one gets its hash back."""
    cdef uint32_t before = copy_before(store, block), after = copy_after(store, block)
    cdef uint32_t record, left
    link_copies(store, before, after)
    if copy_after(store, after) != before:
        return
    record, left = (before, after) if store.blocks[before].link & RECORD else (after, before)
    remove_entry(store, record)
    store.blocks[left].block_hash = store.blocks[record].block_hash
    store.blocks[left].link &= ~COPIED
    insert_entry(store, left)
    free_number(store, record)
    store.records -= 1


# Blocks.

cdef inline uint32_t add_unhashed(Store* store, uint64_t serial, uint32_t size) noexcept nogil:
    """Add a block in use that has no hash yet; there must be a free number for it."""
    cdef uint32_t block = new_number(store)
    cdef Block* at = store.blocks + block
    at.block_hash, at.size = serial, size
    at.older, at.newer, at.link = IN_USE, 1, UNHASHED
    return block


cdef inline uint32_t cache_full_block(
    Store* store, uint64_t block_hash, uint32_t size
) noexcept nogil:
    """Add a block in use that can be found by its hash; return none without memory."""
    cdef uint32_t block, entry
    if not reserve(store, 2):
        return 0
    block = add_unhashed(store, block_hash, size)
    store.blocks[block].link = 0
    entry = find_entry(store, block_hash)
    if entry:
        add_copy(store, entry, block)
    else:
        insert_entry(store, block)
        record(store, &store.stored, &store.evicted, block_hash)
    return block


cdef inline void delete_block(Store* store, uint32_t block) noexcept nogil:
    """Delete a block that is not in the queue."""
    cdef uint32_t flags = store.blocks[block].link
    if flags & COPIED:
        drop_copy(store, block)
    elif not flags & UNHASHED:
        remove_entry(store, block)
        record(store, &store.evicted, &store.stored, store.blocks[block].block_hash)
    free_number(store, block)


cdef inline uint64_t hash_of(Store* store, uint32_t block) noexcept nogil:
    """Return the hash of a block, even if several blocks have that hash."""
    while store.blocks[block].link & COPIED:
        block = copy_before(store, block)
    return store.blocks[block].block_hash


cdef inline bint is_found(Store* store, uint32_t block) noexcept nogil:
    """Whether a block has a hash, and is the one that is found by that hash."""
    cdef uint32_t link = store.blocks[block].link
    if link & (UNHASHED | RECORD):
        return False
    return not link & COPIED or find_block(store, hash_of(store, block)) == block


cdef inline Py_ssize_t find_longest_hit(
    Store* store, const uint64_t* hashes, Py_ssize_t count, uint32_t* blocks
) noexcept nogil:
    """Count the leading hashes that are held; `blocks`, unless NULL, gets their blocks."""
    cdef Py_ssize_t at
    cdef uint32_t block
    for at in range(count):
        if at % PREFETCHED == 1:  # one is enough to see that nothing is held
            prefetch_entries(store, hashes + at, count - at)
        block = find_block(store, hashes[at])
        if not block:
            return at
        if blocks != NULL:
            blocks[at] = block
    return count
