# cython: language_level=3, cdivision=True
"""The block pool over C arrays: no object per block, one per request.

The contract is `pool.py`, where the rules are explained. Here they are in `rules.pxd`, over the
free blocks (`free_queue.pxd`) of what there is (`blocks.pxd`, `table.pxd`). Hashes that are handed
out are in arrays of unsigned 64 bits.
"""

from itertools import islice

cimport cython
from cpython.array cimport array, clone, resize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from epp.model.caches.block_pool.blocks cimport find_run
from epp.model.caches.block_pool.table cimport (
    COPIED, LARGEST, UNHASHED, SPARE, Block, Log, Store, clear, find,
)
from epp.model.caches.block_pool.free_queue cimport span_of
from epp.model.caches.block_pool.engine_reports cimport believe, lose, unhashed_of, rename, thin
from epp.model.caches.block_pool.rules cimport (
    DONE, NO_MEMORY, NO_SPACE, TOO_LARGE, Answer, Holding, Pool,
    correct, extend, free_tokens, give_up, let_in, make_room, revoke, shrink, take,
)
from epp.model.words cimport Words, give_back, take_words

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object, int*) except? -1
    Py_ssize_t PyNumber_AsSsize_t(object, void*) except? -1

include "leases.pxi"

cdef Py_ssize_t _MOST_NOTED = 1 << 10
cdef Py_ssize_t _FORGOTTEN_AT_ONCE = 1 << 8


@cython.final
cdef class BlockPool:
    """`capacity` is in tokens, and so is `block`, the engine's block size. See `pool.py`."""

    cdef Pool it
    cdef uint64_t serial
    cdef bint hears
    cdef dict noted  # leases with blocks without names, those noted first before others
    cdef dict after  # the same, by the name of the block that these follow

    def __cinit__(self, capacity, block=16):
        memset(&self.it, 0, sizeof(Pool))
        self.serial, self.hears = serial(), False
        self.noted, self.after = {}, {}
        self.it.block = 1
        self.resize(capacity)
        self.block = block

    def __dealloc__(self):
        clear(&self.it.store)

    def __len__(self):
        return self.it.store.taken - self.it.store.records

    def __iter__(self):
        return iter(self.hashes())

    @property
    def block(self):
        return self.it.block

    @block.setter
    def block(self, block):
        self.it.block = max(1, tokens_of(block, LARGEST))
        self.it.store.likely = self.it.capacity // self.it.block

    @property
    def capacity(self):
        return self.it.capacity

    @property
    def free(self):
        return free_tokens(&self.it)

    @property
    def closed(self):
        return not self.it.store.doubtful and not self.it.store.wide

    @property
    def offload_tier(self):
        return None

    def hashes(self):
        cdef array told = clone(_NAMES, self.it.store.names, False)
        cdef Block* block
        cdef uint32_t at
        cdef Py_ssize_t count = 0
        for at in range(1, self.it.store.begun):
            block = self.it.store.blocks + at
            if block.older != SPARE and not block.link & (UNHASHED | COPIED):
                told.data.as_ulonglongs[count] = block.name
                count += 1
        return told

    def match(self, hashes):
        cdef Words names
        cdef Py_ssize_t found
        take_words(&names, hashes)
        found = find_run(&self.it.store, names.at, names.size, NULL, &found)
        give_back(&names)
        return found

    # What requests do.

    def admit(self, hashes, sizes, reserved, lookup):
        cdef PoolLease lease = PoolLease.__new__(PoolLease)
        cdef Py_ssize_t[2] counts
        cdef Words names, lengths
        cdef Answer answer
        lease.it.reserved_tokens = tokens_of(reserved, _MOST_TOKENS)
        counts[1] = PyNumber_AsSsize_t(lookup, NULL)
        read_blocks(hashes, sizes, &names, &lengths)
        if lengths.size < names.size:
            let_go(&names, &lengths)
            raise ValueError("fewer sizes than blocks")
        counts[0] = names.size
        counts[1] = max(0, counts[1] + counts[0]) if counts[1] < 0 else min(counts[1], counts[0])
        answer = NO_MEMORY
        if make_room(&lease.it, counts[0]):
            answer = let_in(&self.it, &lease.it, names.at, lengths.at, counts)
        let_go(&names, &lengths)
        if answer == NO_MEMORY:
            raise MemoryError
        if answer == NO_SPACE:
            return None
        lease.pool, lease.it.serial = self.serial, serial()
        if answer == TOO_LARGE:
            lease.it.reserved_tokens = 0
            shrink(&lease.it)
        return lease

    def grow(self, PoolLease lease not None, computed):
        cdef int64_t target = tokens_of(computed, _MOST_TOKENS)
        cdef bint begins = lease.it.named == lease.it.held and lease.it.named
        cdef Answer answer
        self.know(lease)
        answer = extend(&self.it, &lease.it, target)
        if answer == NO_MEMORY:
            raise MemoryError
        if begins and lease.it.held > lease.it.named:
            self.note(lease)
        return answer == DONE

    def correct_sizes(self, PoolLease lease not None, sizes):
        cdef Holding* it = &lease.it
        cdef Words lengths
        self.know(lease)
        take_words(&lengths, sizes)
        if not it.over and lengths.size - it.cached == it.named - it.hit_keys:
            correct(&self.it.store, it, lengths.at + it.cached)
        give_back(&lengths)

    def assign_hashes(self, PoolLease lease not None, hashes, sizes):
        cdef Words names, lengths
        self.know(lease)
        read_blocks(hashes, sizes, &names, &lengths)
        try:
            return self.rename(lease, names.at, lengths.at, min(names.size, lengths.size))
        finally:
            let_go(&names, &lengths)

    cdef Py_ssize_t rename(
        self, PoolLease lease, const uint64_t* names, const uint64_t* sizes, Py_ssize_t most
    ) except -1:
        cdef Py_ssize_t named = rename(&self.it, &lease.it, names, sizes, most)
        if named < 0:
            raise MemoryError
        if named:
            self.forget(lease)
            if lease.it.held > lease.it.named:
                self.note(lease)
        return named

    def release(self, PoolLease lease not None):
        self.know(lease)
        if not lease.it.over:
            give_up(&self.it, &lease.it)
            if not self.hears:
                self.forget(lease)

    def revoke(self, PoolLease lease not None):
        self.know(lease)
        if not lease.it.over:
            revoke(&self.it, &lease.it)
            self.forget(lease)

    cdef int know(self, PoolLease lease) except -1:
        if lease.pool != self.serial:
            raise TypeError("a lease of another cache")
        return 0

    # Leases with blocks that nobody has named yet, for an engine that will.

    cdef int note(self, PoolLease lease) except -1:
        if len(self.noted) >= _MOST_NOTED:
            for each in list(islice(self.noted, _FORGOTTEN_AT_ONCE)):
                self.forget(each)
        lease.noted = True
        self.noted[lease] = lease.it.anchor
        self.after.setdefault(lease.it.anchor, []).append(lease)
        return 0

    cdef int forget(self, PoolLease lease) except -1:
        if not lease.noted:
            return 0
        lease.noted = False
        anchor = self.noted.pop(lease)
        alike = self.after[anchor]
        alike.remove(lease)
        if not alike:
            del self.after[anchor]
        return 0

    cdef PoolLease noted_after(self, uint64_t anchor):
        """Return a lease, the first of several, with blocks without names after a named one."""
        cdef PoolLease lease
        for lease in tuple(self.after.get(anchor, ())):
            if unhashed_of(&self.it.store, &lease.it):
                return lease
            self.forget(lease)
        return None

    # What is heard of the engine.

    def store(self, hashes, sizes):
        cdef Words names, lengths
        self.hears = True
        read_blocks(hashes, sizes, &names, &lengths)
        try:
            self.hear(names.at, lengths.at, names.size, lengths.size)
        finally:
            let_go(&names, &lengths)

    cdef int hear(
        self, const uint64_t* names, const uint64_t* sizes, Py_ssize_t count, Py_ssize_t sized
    ) except -1:
        cdef Py_ssize_t held, named
        cdef PoolLease lease
        held = find_run(&self.it.store, names, count, NULL, &named)
        count = min(count, sized)
        while 0 < held < count:
            lease = self.noted_after(names[held - 1])
            if lease is None:
                break
            named = self.rename(lease, names + held, sizes + held, count - held)
            if not named:
                break
            held += named
        if held < count and not believe(&self.it, names + held, sizes + held, count - held):
            raise MemoryError
        return 0

    def discard(self, hashes):
        cdef Words names
        cdef Py_ssize_t at
        take_words(&names, hashes)
        for at in range(names.size):
            lose(&self.it, names.at[at])
        give_back(&names)

    def resize(self, capacity):
        cdef int64_t tokens = tokens_of(capacity, _MOST_TOKENS)
        self.it.blank += tokens - self.it.capacity
        self.it.capacity = tokens
        self.it.store.likely = tokens // self.it.block
        take(&self.it, 0)

    def coarsen(self, blocks):
        thin(&self.it, tokens_of(blocks, _MOST_TOKENS))

    # What is new.

    def take_stored(self):
        return told(&self.it.store, &self.it.store.stored, True)

    def take_evicted(self):
        return told(&self.it.store, &self.it.store.evicted, False)

    def take_merged(self):
        cdef Store* store = &self.it.store
        merged = {store.merged.names[at]: None for at in range(store.merged.length)}
        store.merged.length = 0
        return [(each, span_of(store, find(store, each))) for each in merged if find(store, each)]
