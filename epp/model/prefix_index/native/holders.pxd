"""Which slots hold which block: from a hash to the set of its slots.

Functions that need memory return -1 without it; what they have done so far stays.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from epp.model.prefetch cimport PREFETCHED
from epp.model.prefix_index.native.slot_sets cimport (
    SlotSets, bits_of, close_sets, has_slot, open_sets, release_set, toggled,
)
from epp.model.table cimport (
    Entry, Table, delete, find, find_or_free_place, free_table, insert, new_table, prefetch_entries,
)


cdef struct Holders:
    SlotSets sets
    Table* blocks  # numbers of sets by block hash
    uint64_t held  # blocks at slots


cdef inline bint open_holders(Holders* holders) noexcept nogil:
    """Begin with nothing, and room for 64 slots; False without memory."""
    holders.held = 0
    holders.blocks = new_table()
    return holders.blocks != NULL and open_sets(&holders.sets, 1)


cdef inline void close_holders(Holders* holders) noexcept nogil:
    free_table(holders.blocks)
    close_sets(&holders.sets)


cdef inline uint64_t* holders_of(Holders* holders, uint64_t block_hash) noexcept nogil:
    """Return the slots that hold a block, as a row of bits."""
    cdef Entry* entry = find(holders.blocks, block_hash)
    return bits_of(&holders.sets, 0 if entry == NULL else entry.value)


cdef inline int add_holder(
    Holders* holders, uint32_t slot, const uint64_t* hashes, Py_ssize_t size
) noexcept nogil:
    """Add blocks to a slot."""
    # Most blocks that arrive together are held by the same slots, before and after.
    cdef int64_t known = -1, wider = 0, now
    cdef Entry* entry
    cdef Py_ssize_t i
    for i in range(size):
        if i % PREFETCHED == 0:
            prefetch_entries(holders.blocks, hashes + i, size - i)
        entry = find_or_free_place(holders.blocks, hashes[i])
        if entry == NULL:
            return -1
        now = entry.value
        if now != known:
            if has_slot(&holders.sets, now, slot):
                continue
            wider = toggled(&holders.sets, now, slot)
            if wider < 0:
                return -1
            known = now
        holders.sets.ref_counts[wider] += 1
        holders.held += 1
        if now == 0:
            insert(holders.blocks, entry, hashes[i], wider)
            continue
        entry.value = wider
        if release_set(&holders.sets, now):
            known = -1
    return 0


cdef inline int remove_holder(
    Holders* holders, uint32_t slot, const uint64_t* hashes, Py_ssize_t size
) noexcept nogil:
    """Remove blocks from a slot; unknown ones are ignored."""
    cdef int64_t known = -1, narrower = 0, now
    cdef Entry* entry
    cdef Py_ssize_t i
    for i in range(size):
        if i % PREFETCHED == 0:
            prefetch_entries(holders.blocks, hashes + i, size - i)
        entry = find(holders.blocks, hashes[i])
        if entry == NULL:
            continue
        now = entry.value
        if now != known:
            if not has_slot(&holders.sets, now, slot):
                continue
            narrower = toggled(&holders.sets, now, slot)
            if narrower < 0:
                return -1
            known = now
        holders.held -= 1
        if narrower:
            holders.sets.ref_counts[narrower] += 1
            entry.value = narrower
        else:
            delete(holders.blocks, entry)
        if release_set(&holders.sets, now):
            known = -1
    return 0
