"""Leases of block pools, and how what a pool is given and tells is read and written; a part of
`pool.pyx`."""

cdef int64_t _MOST_TOKENS = <int64_t>1 << 60
cdef array _NAMES = array("Q")
cdef size_t _KEPT_ROOM = 1 << 8
cdef uint64_t _last_serial = 0


cdef uint64_t serial() noexcept:
    """Number pools and leases; none is 0."""
    global _last_serial
    _last_serial += 1
    return _last_serial


cdef int64_t tokens_of(object given, int64_t most) except -1:
    """Read a number of tokens, taken to be from 0 to `most`. `TypeError`: it is no int."""
    cdef int beyond = 0
    cdef int64_t tokens = PyLong_AsLongLongAndOverflow(given, &beyond)
    if beyond:
        return most if beyond > 0 else 0
    return max(0, min(tokens, most))


cdef int read_blocks(object hashes, object sizes, Words* names, Words* lengths) except -1:
    """Read names and sizes; both are to be let go of."""
    take_words(names, hashes)
    try:
        take_words(lengths, sizes)
    except BaseException:
        give_back(names)
        raise
    return 0


cdef void let_go(Words* names, Words* lengths) noexcept:
    give_back(names)
    give_back(lengths)


cdef array told(Store* store, Log* log, bint held):
    """Return the names in a log that are held, or are not held, and empty it."""
    cdef array names = clone(_NAMES, log.length, False)
    cdef uint64_t* into = <uint64_t*>names.data.as_voidptr
    cdef size_t at
    cdef Py_ssize_t count = 0
    for at in range(log.length):
        into[count] = log.names[at]
        count += not log.stale or (find(store, log.names[at]) != 0) == held
    log.length, log.stale = 0, False
    if log.room > _KEPT_ROOM:
        free(log.names)
        log.names, log.room = NULL, 0
    if count < len(names):
        resize(names, count)
    if store.lost:
        store.lost = False
        raise MemoryError
    return names


@cython.final
@cython.freelist(64)
cdef class PoolLease:
    """What a request holds, in blocks as their pool numbers them. See `pool.py`."""

    cdef Holding it
    cdef uint64_t pool
    cdef bint noted

    def __cinit__(self):
        memset(&self.it, 0, sizeof(Holding))
        self.pool, self.noted = 0, False

    def __dealloc__(self):
        free(self.it.blocks)

    @property
    def cached(self):
        return self.it.cached

    @property
    def hit_keys(self):
        return self.it.hit_keys

    @property
    def tokens(self):
        return self.it.tokens

    @property
    def reserved_tokens(self):
        return self.it.reserved_tokens

    @property
    def release_seq(self):
        """0 while it is held, 1 once it was given back."""
        return int(self.it.over)

    @property
    def keys(self):
        """The blocks with names; () once it was given back."""
        return tuple([self.it.blocks[at] for at in range(self.it.named)])

    @property
    def unhashed_keys(self):
        """The blocks without names; once it was given back, those that may be there still."""
        return [self.it.blocks[at] for at in range(self.it.named, self.it.held)]
