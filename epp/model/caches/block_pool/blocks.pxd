"""What one block pool holds: blocks come, are found, and go. Part of `pool.pyx`.

Where several bear one name, the map has a record in their place, from which they hang in the order
in which they came: the oldest is the one that is found. Their own `name` holds their neighbours.
"""

from libc.stdint cimport uint32_t, uint64_t

from epp.model.caches.block_pool.table cimport (
    COPIED, IN_USE, JOINT, UNHASHED, NUMBER, RECORD, TOGETHER, WIDEST,
    Block, Store, enter, entry_of, fetch, find, leave, note, number, recycle, reserve,
)

# Several blocks of one name.

cdef inline uint32_t copy_before(Store* it, uint32_t at) noexcept nogil:
    return it.blocks[at].older if it.blocks[at].link & RECORD else <uint32_t>(it.blocks[at].name >> 32)


cdef inline uint32_t copy_after(Store* it, uint32_t at) noexcept nogil:
    return it.blocks[at].newer if it.blocks[at].link & RECORD else <uint32_t>it.blocks[at].name


cdef inline void tie(Store* it, uint32_t first, uint32_t second) noexcept nogil:
    """Let one copy, or the record, come next after another."""
    cdef Block* blocks = it.blocks
    if blocks[first].link & RECORD:
        blocks[first].newer = second
    else:
        blocks[first].name = (blocks[first].name & <uint64_t>0xFFFFFFFF00000000) | second
    if blocks[second].link & RECORD:
        blocks[second].older = first
    else:
        blocks[second].name = (<uint64_t>first << 32) | <uint32_t>blocks[second].name


cdef inline void add_copy(Store* it, uint32_t entry, uint32_t block) noexcept nogil:
    """Hang a block behind those of its name; there must be a number for a record."""
    cdef uint32_t record = entry
    if not it.blocks[entry].link & RECORD:
        record = number(it)
        it.records += 1
        it.blocks[record].name = it.blocks[entry].name
        it.blocks[record].link = RECORD | (it.blocks[entry].link & JOINT)
        leave(it, entry)
        enter(it, record)
        it.blocks[entry].link = (it.blocks[entry].link & ~(JOINT | NUMBER)) | COPIED
        tie(it, record, entry)
        tie(it, entry, record)
    it.blocks[block].link |= COPIED
    tie(it, it.blocks[record].older, block)
    tie(it, block, record)


cdef inline void drop_copy(Store* it, uint32_t block) noexcept nogil:
    """Take a block from those of its name; where one is left, that one gets its name back."""
    cdef uint32_t before = copy_before(it, block), after = copy_after(it, block)
    cdef uint32_t record, left
    tie(it, before, after)
    if copy_after(it, after) != before:
        return
    record, left = (before, after) if it.blocks[before].link & RECORD else (after, before)
    leave(it, record)
    it.blocks[left].name = it.blocks[record].name
    it.blocks[left].link = (it.blocks[left].link & ~COPIED) | (it.blocks[record].link & JOINT)
    enter(it, left)
    recycle(it, record)
    it.records -= 1


# Blocks.

cdef inline uint32_t put_unhashed(Store* it, uint64_t serial, uint32_t size) noexcept nogil:
    """Take in a block in use that has no name yet; there must be a number for it."""
    cdef uint32_t block = number(it)
    cdef Block* at = it.blocks + block
    at.name, at.size = serial, size
    at.older, at.newer, at.link = IN_USE, 1, UNHASHED
    return block


cdef inline uint32_t put(Store* it, uint64_t name, uint32_t size) noexcept nogil:
    """Take in a block in use, or one more of its name; return none where there is no memory."""
    cdef uint32_t block, entry
    if not reserve(it, 2):
        return 0
    block = put_unhashed(it, name, size)
    it.blocks[block].link = 0
    entry = entry_of(it, name)
    if entry:
        add_copy(it, entry, block)
    else:
        enter(it, block)
        note(it, &it.stored, &it.evicted, name)
    return block


cdef inline void forget(Store* it, uint32_t block) noexcept nogil:
    """Forget a block that stands in no queue."""
    cdef uint32_t flags = it.blocks[block].link
    if it.wide and it.spans[block]:
        it.spans[block] = 0
        it.wide -= 1
        note(it, &it.merged, &it.merged, name_of(it, block))
    if flags & COPIED:
        drop_copy(it, block)
    elif not flags & UNHASHED:
        leave(it, block)
        note(it, &it.evicted, &it.stored, it.blocks[block].name)
    recycle(it, block)


cdef inline uint64_t name_of(Store* it, uint32_t block) noexcept nogil:
    """Return the name by which a block can be found; there may be older ones of that name."""
    while it.blocks[block].link & COPIED:
        block = copy_before(it, block)
    return it.blocks[block].name


cdef inline void part_here(Store* it, uint32_t block) noexcept nogil:
    """Note that another chain went on at a block that was found."""
    cdef uint32_t at = copy_before(it, block) if it.blocks[block].link & COPIED else block
    it.blocks[at].link |= JOINT


cdef inline Py_ssize_t find_run(
    Store* it, const uint64_t* names, Py_ssize_t count, uint32_t* blocks, Py_ssize_t* found
) noexcept nogil:
    """Count the leading names of a chain that are held; `blocks`, unless NULL, takes their blocks.

    There are `found` of these: fewer, where one stands for several.
    """
    cdef Py_ssize_t at = 0
    cdef uint32_t block
    found[0] = 0
    while at < count:
        if at % TOGETHER == 1:  # one is enough to see that nothing is held
            fetch(it, names + at, count - at)
        block = find(it, names[at])
        if not block:
            if not it.wide:
                break
            at += covering(it, names + at, min(WIDEST, count - at))
            block = find(it, names[at])
            if not block:
                break
        if blocks != NULL:
            blocks[found[0]] = block
        found[0] += 1
        at += 1
    return at


cdef inline Py_ssize_t covering(
    Store* it, const uint64_t* names, Py_ssize_t count
) noexcept nogil:
    """Return how far ahead the block is that stands for the first of these names too; 0: none."""
    cdef Py_ssize_t ahead
    cdef uint32_t block
    for ahead in range(1, count):
        block = find(it, names[ahead])
        if block and it.spans[block] > ahead:
            return ahead
    return 0
