# cython: language_level=3, cdivision=True
"""The block pool over C arrays: no object per block, one per request.

The contract is `../pool.py`, where the rules are explained. Here the rules are in `requests.pxd`
and `engine_reports.pxd`, the blocks in `blocks.pxd` and `store.pxd`, and the queue of free blocks
in `free_queue.pxd`. Returned hashes are in arrays of unsigned 64-bit integers.
"""

from itertools import islice

cimport cython
from cpython.array cimport array, clone, resize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from epp.model.caches.block_pool.native.blocks cimport find_longest_hit, hash_of, is_found
from epp.model.caches.block_pool.native.engine_reports cimport (
    assign_hashes, discard, coarsen, still_unhashed, store_blocks,
)
from epp.model.caches.block_pool.native.free_queue cimport head, tail
from epp.model.caches.block_pool.native.requests cimport (
    DONE, NO_MEMORY, NO_SPACE, TOO_LARGE, Answer, Lease, Pool, allocate, allocate_space,
    correct_sizes, free_tokens, grow, keep_unhashed, release, reserve_blocks,
    revoke,
)
from epp.model.caches.block_pool.native.store cimport (
    COPIED, IN_USE, LARGEST, SPARE, UNHASHED, Block, Log, Store, find_block, free_store,
)
from epp.model.prompts.uint64_view cimport UInt64View, acquire_view, release_view

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object, int*) except? -1
    Py_ssize_t PyNumber_AsSsize_t(object, void*) except? -1

include "leases.pxi"

cdef Py_ssize_t _MAX_GENERATING = 1 << 10
cdef Py_ssize_t _FORGOTTEN_AT_ONCE = 1 << 8


@cython.final
cdef class BlockPool:
    """`capacity` is in tokens, and so is `block`, the engine's block size. See `pool.py`."""

    cdef Pool state
    cdef uint64_t serial
    cdef bint engine_reports
    cdef dict generating  # leases with unhashed blocks, the first to be forgotten first
    cdef dict generating_after  # the same, by the hash of the block that these follow; see `store`

    def __cinit__(self, capacity, block):
        self.serial = next_serial()
        self.generating, self.generating_after = {}, {}
        self.state.block = 1
        self.resize(capacity)
        self.block = block

    def __dealloc__(self):
        free_store(&self.state.store)

    def __len__(self):
        return self.state.store.taken - self.state.store.records

    @property
    def block(self):
        return self.state.block

    @block.setter
    def block(self, block):
        self.state.block = max(1, tokens_of(block, LARGEST))
        self.state.store.expected = self.state.capacity // self.state.block

    @property
    def capacity(self):
        return self.state.capacity

    @property
    def free(self):
        return free_tokens(&self.state)

    @property
    def blank(self):
        return self.state.blank_tokens

    @property
    def closed(self):
        return not self.state.store.last_hole

    @property
    def offload_tier(self):
        return None

    def hashes(self):
        cdef array hashes = clone(_HASHES, self.state.store.entries, False)
        cdef Block* block
        cdef uint32_t at
        cdef Py_ssize_t count = 0
        for at in range(1, self.state.store.begun):
            block = self.state.store.blocks + at
            if block.older != SPARE and not block.link & (UNHASHED | COPIED):
                hashes.data.as_ulonglongs[count] = block.block_hash
                count += 1
        return hashes

    def match(self, hashes):
        cdef UInt64View view
        cdef Py_ssize_t found
        acquire_view(&view, hashes)
        found = find_longest_hit(&self.state.store, view.at, view.size, NULL)
        release_view(&view)
        return found

    # Requests.

    def allocate(self, hashes, sizes, reserved, lookup, later=None):
        cdef PoolLease lease = PoolLease.__new__(PoolLease)
        cdef Py_ssize_t most = PyNumber_AsSsize_t(lookup, NULL), count
        cdef int64_t need_later = 0 if later is None else tokens_of(later, _MAX_TOKENS)
        cdef UInt64View hash_view, size_view
        cdef Answer answer = NO_MEMORY
        lease.state.reserved_tokens = tokens_of(reserved, _MAX_TOKENS)
        read_blocks(hashes, sizes, &hash_view, &size_view)
        if size_view.size < hash_view.size:
            release_views(&hash_view, &size_view)
            raise ValueError("fewer sizes than blocks")
        count = hash_view.size
        most = max(0, most + count) if most < 0 else min(most, count)
        if reserve_blocks(&lease.state, count):
            answer = allocate(
                &self.state, &lease.state, hash_view.at, size_view.at, count, most, need_later
            )
        release_views(&hash_view, &size_view)
        if answer == NO_MEMORY:
            raise MemoryError
        if answer == NO_SPACE:
            return None
        lease.pool, lease.state.serial = self.serial, next_serial()
        if answer == TOO_LARGE:
            lease.state.reserved_tokens = 0
            keep_unhashed(&lease.state)
        return lease

    def grow(self, PoolLease lease not None, computed):
        cdef int64_t target = tokens_of(computed, _MAX_TOKENS)
        cdef bint begins = lease.state.hashed == lease.state.count and lease.state.hashed
        cdef Answer answer
        self.check_owner(lease)
        answer = grow(&self.state, &lease.state, target)
        if answer == NO_MEMORY:
            raise MemoryError
        if begins and lease.state.count > lease.state.hashed:
            self.expect_hashes(lease)
        return answer == DONE

    def correct_sizes(self, PoolLease lease not None, sizes):
        cdef Lease* held = &lease.state
        cdef UInt64View view
        self.check_owner(lease)
        acquire_view(&view, sizes)
        if not held.released and view.size == held.hashed:
            correct_sizes(&self.state.store, held, view.at + held.cached)
        release_view(&view)

    def assign_hashes(self, PoolLease lease not None, hashes, sizes):
        cdef UInt64View hash_view, size_view
        cdef Py_ssize_t count
        self.check_owner(lease)
        read_blocks(hashes, sizes, &hash_view, &size_view)
        count = min(hash_view.size, size_view.size)
        try:
            return self.hash_unhashed(lease, hash_view.at, size_view.at, count)
        finally:
            release_views(&hash_view, &size_view)

    cdef Py_ssize_t hash_unhashed(
        self, PoolLease lease, const uint64_t* hashes, const uint64_t* sizes, Py_ssize_t most
    ) except -1:
        cdef Py_ssize_t hashed = assign_hashes(&self.state, &lease.state, hashes, sizes, most)
        if hashed < 0:
            raise MemoryError
        if hashed:
            self.expect_no_hashes(lease)
            if lease.state.count > lease.state.hashed:
                self.expect_hashes(lease)
        return hashed

    def release(self, PoolLease lease not None):
        self.check_owner(lease)
        if not lease.state.released:
            release(&self.state, &lease.state)
            if not self.engine_reports:
                self.expect_no_hashes(lease)

    def revoke(self, PoolLease lease not None):
        self.check_owner(lease)
        if not lease.state.released:
            if revoke(&self.state, &lease.state) and self.engine_reports:
                # What follows them may be reported, and stays.
                self.state.store.last_hole = tail(&self.state.store)
            self.expect_no_hashes(lease)

    cdef int check_owner(self, PoolLease lease) except -1:
        if lease.pool != self.serial:
            raise TypeError("a lease of another cache")
        return 0

    # Leases with unhashed blocks, to which KV events may give hashes.

    cdef int expect_hashes(self, PoolLease lease) except -1:
        if len(self.generating) >= _MAX_GENERATING:
            for each in list(islice(self.generating, _FORGOTTEN_AT_ONCE)):
                self.expect_no_hashes(each)
        lease.expected = True
        self.generating[lease] = anchor = lease.state.anchor
        if self.engine_reports:
            self.generating_after.setdefault(anchor, []).append(lease)
        return 0

    cdef int expect_no_hashes(self, PoolLease lease) except -1:
        if not lease.expected:
            return 0
        lease.expected = False
        anchor = self.generating.pop(lease)
        if self.engine_reports:
            alike = self.generating_after[anchor]
            alike.remove(lease)
            if not alike:
                del self.generating_after[anchor]
        return 0

    cdef PoolLease generated_after(self, uint64_t anchor):
        """Return the lease whose unhashed blocks follow a block; of several, the first."""
        cdef PoolLease lease
        for lease in tuple(self.generating_after.get(anchor, ())):
            if still_unhashed(&self.state.store, &lease.state):
                return lease
            self.expect_no_hashes(lease)
        return None

    # Reports of the engine.

    def store(self, hashes, sizes):
        cdef UInt64View hash_view, size_view
        if not self.engine_reports:  # until then no lease is looked for by a hash
            self.engine_reports, self.generating_after = True, {}
            for lease, anchor in self.generating.items():
                self.generating_after.setdefault(anchor, []).append(lease)
        read_blocks(hashes, sizes, &hash_view, &size_view)
        try:
            self.store_reported(hash_view.at, size_view.at, hash_view.size, size_view.size)
        finally:
            release_views(&hash_view, &size_view)

    cdef int store_reported(
        self, const uint64_t* hashes, const uint64_t* sizes, Py_ssize_t count, Py_ssize_t sized
    ) except -1:
        cdef Py_ssize_t held = find_longest_hit(&self.state.store, hashes, count, NULL), hashed
        cdef PoolLease lease
        count = min(count, sized)
        while 0 < held < count:
            lease = self.generated_after(hashes[held - 1])
            if lease is None:
                break
            hashed = self.hash_unhashed(lease, hashes + held, sizes + held, count - held)
            if not hashed:
                break
            held += hashed
        hashes, sizes, count = hashes + held, sizes + held, count - held
        if count > 0 and not store_blocks(&self.state, hashes, sizes, count):
            raise MemoryError
        return 0

    def discard(self, hashes):
        cdef UInt64View view
        cdef Py_ssize_t at
        acquire_view(&view, hashes)
        for at in range(view.size):
            discard(&self.state, view.at[at])
        release_view(&view)

    # Copies of other replicas.

    def contents(self):
        cdef Store* store = &self.state.store
        cdef array hashes = clone(_HASHES, store.taken - store.records, False)
        cdef array sizes = clone(_HASHES, store.taken - store.records, False)
        cdef Py_ssize_t count = 0
        cdef uint32_t at
        for at in range(1, store.begun):
            if store.blocks[at].older == IN_USE:
                count += list_found(store, at, hashes, sizes, count)
        at = tail(store)
        while at:
            count += list_found(store, at, hashes, sizes, count)
            at = store.blocks[at].older
        resize(hashes, count)
        resize(sizes, count)
        return hashes, sizes

    def restore(self, hashes, sizes, *, closed):
        cdef bint empty = not self.state.store.taken, reports = self.engine_reports
        self.store(hashes, sizes)
        if not reports:
            self.engine_reports, self.generating_after = False, {}
        if empty and closed:
            self.state.store.last_hole = 0

    def resize(self, capacity):
        cdef int64_t tokens = tokens_of(capacity, _MAX_TOKENS)
        self.state.blank_tokens += tokens - self.state.capacity
        self.state.capacity = tokens
        self.state.store.expected = tokens // self.state.block
        allocate_space(&self.state, 0)

    def coarsen(self, blocks):
        coarsen(&self.state, tokens_of(blocks, _MAX_TOKENS))

    # Changes.

    @property
    def changed(self):
        cdef Store* store = &self.state.store
        return bool(store.stored.length or store.evicted.length or store.log_failed)

    def take_stored(self):
        return take_log(&self.state.store, &self.state.store.stored, True)

    def take_evicted(self):
        return take_log(&self.state.store, &self.state.store.evicted, False)

    # For tests.

    def free_blocks(self):
        cdef Store* store = &self.state.store
        cdef uint32_t at = head(store)
        hashes = []
        while at:
            hashes.append(None if store.blocks[at].link & UNHASHED else hash_of(store, at))
            at = store.blocks[at].newer
        return hashes
