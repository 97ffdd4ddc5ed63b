"""Leases of block pools, and how arguments are read and logs returned; a part of `pool.pyx`."""

cdef int64_t _MAX_TOKENS = <int64_t>1 << 60
cdef array _HASHES = array("Q")
cdef size_t _KEPT_ROOM = 1 << 8
cdef uint64_t _last_serial = 0


cdef uint64_t next_serial() noexcept:
    """Return a number for a new pool or lease, never 0."""
    global _last_serial
    _last_serial += 1
    return _last_serial


cdef int64_t tokens_of(object given, int64_t most) except -1:
    """Return a number of tokens, clamped to 0..`most`; `TypeError` if it is not an int."""
    cdef int beyond = 0
    cdef int64_t tokens = PyLong_AsLongLongAndOverflow(given, &beyond)
    if beyond:
        return most if beyond > 0 else 0
    return max(0, min(tokens, most))


cdef int read_blocks(
    object hashes, object sizes, UInt64View* hash_view, UInt64View* size_view
) except -1:
    """Read hashes and sizes; the caller releases both views."""
    acquire_view(hash_view, hashes)
    try:
        acquire_view(size_view, sizes)
    except BaseException:
        release_view(hash_view)
        raise
    return 0


cdef void release_views(UInt64View* hash_view, UInt64View* size_view) noexcept:
    release_view(hash_view)
    release_view(size_view)


cdef object take_log(Store* store, Log* log, bint held):
    """Empty a log; return those of its hashes that are held, or are not held without `held`."""
    cdef array hashes
    cdef uint64_t* into
    cdef size_t at
    cdef Py_ssize_t count = 0
    if not log.length and not store.log_failed:
        return ()
    hashes = clone(_HASHES, log.length, False)
    into = <uint64_t*>hashes.data.as_voidptr
    for at in range(log.length):
        into[count] = log.hashes[at]
        count += not log.stale or (find_block(store, log.hashes[at]) != 0) == held
    log.length, log.stale = 0, False
    if log.room > _KEPT_ROOM:
        free(log.hashes)
        log.hashes, log.room = NULL, 0
    if count < len(hashes):
        resize(hashes, count)
    if store.log_failed:
        store.log_failed = False
        raise MemoryError
    return hashes


cdef bint list_found(Store* store, uint32_t block, array hashes, array sizes, Py_ssize_t at):
    """Write a block at place `at` of both lists, if its hash finds it; return whether it does."""
    if not is_found(store, block):
        return False
    hashes.data.as_ulonglongs[at] = hash_of(store, block)
    sizes.data.as_ulonglongs[at] = store.blocks[block].size
    return True


@cython.final
@cython.freelist(64)
cdef class PoolLease:
    """What one request holds; blocks are numbers of the pool with this serial. See `pool.py`."""

    cdef Lease state
    cdef uint64_t pool
    cdef bint expected

    def __dealloc__(self):
        free(self.state.blocks)

    @property
    def cached(self):
        return self.state.cached

    @property
    def tokens(self):
        return self.state.tokens

    @property
    def reserved_tokens(self):
        return self.state.reserved_tokens

    @property
    def released(self):
        return bool(self.state.released)

    @property
    def blocks(self):
        """The numbers of the blocks with hashes; empty after the release."""
        return [self.state.blocks[at] for at in range(self.state.hashed)]

    @property
    def unhashed_blocks(self):
        """The numbers of the blocks without hashes; after the release some may be gone."""
        return [self.state.blocks[at] for at in range(self.state.hashed, self.state.count)]
