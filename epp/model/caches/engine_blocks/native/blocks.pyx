# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""An engine's blocks in rows of C (`rows.pxd`), copies of most of them in the row.

The contract is `../blocks.py`. Tables (`table.pxd`) have the copies in other groups than the first,
those beyond what a row can count, and what fills our blocks.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_FromUnsignedLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from epp.model.caches.engine_blocks.native.rows cimport (
    AFTER, FILLED, FIRST, FULL, GROUPS, MAX_COPIES, ONE_AFTER, ONE_FIRST, ROW_SHARDS, WHOLE,
    Content, Row, Shard, add_row, find_row, free_rows, has_content, mixed, oldest_row, own_at,
    read_row, remove_row, shard_of,
)
from epp.model.table cimport (
    Entry, Table, delete, find, find_or_free_place, free_table, insert, new_table,
)

cdef extern from * nogil:
    """
    #define XXH_INLINE_ALL
    #include <xxhash.h>
    """
    uint64_t XXH3_64bits_withSeed(const void* data, size_t size, uint64_t seed)

cdef extern from "Python.h":
    uint64_t PyLong_AsUnsignedLongLongMask(object) except? -1

MAX_GROUPS = GROUPS
cdef uint32_t _MAX_DROPPED = 16
cdef Py_ssize_t _STEP = 1 << 9


@cython.final
cdef class EngineBlocks:
    """`block` is our size in tokens; see `blocks.py`."""

    cdef uint64_t _secret
    cdef uint32_t _block
    cdef uint32_t* _before  # the tokens before a block, within ours
    cdef Shard[ROW_SHARDS] _shards
    cdef (Table*)[GROUPS] _copies  # by mixed name; of the first group those beyond a row's
    cdef (Table*)[GROUPS] _fillers  # by block of ours

    def __cinit__(self, block, secret=0):
        if block < 1:
            raise ValueError("a block must have tokens")
        self._block = block
        self._secret = PyLong_AsUnsignedLongLong(secret)
        self._before = <uint32_t*>PyMem_Malloc(self._block * sizeof(uint32_t))
        if self._before == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        PyMem_Free(self._before)
        for i in range(ROW_SHARDS):
            free_rows(&self._shards[i])
        for i in range(GROUPS):
            free_table(self._copies[i])
            free_table(self._fillers[i])

    def __len__(self):
        cdef Py_ssize_t total = 0
        cdef int i
        for i in range(ROW_SHARDS):
            total += self._shards[i].live
        return total

    def hashes(self):
        cdef list found = []
        cdef int i
        cdef uint32_t number
        for i in range(ROW_SHARDS):
            for number in range(self._shards[i].used):
                _list_ours(&self._shards[i], self._shards[i].rows + number, found)
        return found

    cdef inline Shard* _shard(self, uint64_t name) noexcept:
        return shard_of(self._shards, mixed(name, self._secret))

    cdef inline Row* _find(self, uint64_t name) noexcept:
        cdef uint64_t key = mixed(name, self._secret)
        return find_row(shard_of(self._shards, key), name, key)

    def ours_at(self, name, group):
        cdef uint64_t key = PyLong_AsUnsignedLongLongMask(name)
        cdef Row* row = self._find(key)
        cdef Content content
        if row == NULL or not self._has_copy(row, _group_of(group)):
            return ()
        read_row(self._shard(key), row, &content)
        if content.count:
            return ()
        return (PyLong_FromUnsignedLongLong(content.link),)

    # What comes.

    def store(self, change, root, group):
        cdef uint64_t seed = PyLong_AsUnsignedLongLong(root)
        cdef uint32_t before = 0, width = change.size
        cdef bytes tokens = change.tokens
        names, parent = change.hashes, change.parent
        cdef Py_ssize_t count = len(names)
        cdef int number = _group_of(group)
        cdef uint32_t* data
        if PyBytes_GET_SIZE(tokens) != count * <Py_ssize_t>width * <Py_ssize_t>sizeof(uint32_t):
            raise ValueError("the number of tokens is not that of the blocks")
        if parent is not None and not self._trace(
            PyLong_AsUnsignedLongLongMask(parent), &seed, &before
        ):
            return None
        if width < 1:
            return None
        self._open(number)
        data = <uint32_t*>PyMem_Malloc((before + count * width) * sizeof(uint32_t) + 1)
        if data == NULL:
            raise MemoryError
        memcpy(data, self._before + self._block - before, before * sizeof(uint32_t))
        memcpy(data + before, PyBytes_AS_STRING(tokens), PyBytes_GET_SIZE(tokens))
        try:
            return self._store(names, parent, seed, data, before, width, change.content, number)
        finally:
            PyMem_Free(data)

    cdef bint _trace(self, uint64_t name, uint64_t* seed, uint32_t* before) noexcept:
        """Find the seed of the blocks after a block, and the number of tokens since then."""
        cdef Row* row = self._find(name)
        cdef Content content
        cdef uint32_t at = self._block
        while row != NULL:
            read_row(self._shard(row.name), row, &content)
            if content.count >= at:
                return False
            at -= content.count
            memcpy(self._before + at, content.tokens, content.count * sizeof(uint32_t))
            if content.kind != AFTER and content.kind != ONE_AFTER:
                seed[0] = content.link
                before[0] = self._block - at
                return True
            row = self._find(content.link)
        return False

    cdef tuple _store(
        self, names, parent, uint64_t seed, const uint32_t* data, uint32_t before, uint32_t width,
        content, int group,
    ):
        cdef uint64_t previous = 0 if parent is None else PyLong_AsUnsignedLongLongMask(parent)
        cdef uint64_t name
        cdef uint32_t block = self._block
        cdef const uint32_t* end = data + before
        cdef uint64_t* hashed
        cdef Py_ssize_t number = 0, filled = 0, first, i
        cdef bint follows, extras = len(content) > 0
        cdef bint counted = extras or before > 0 or width != block
        cdef Content kept
        cdef bytes extra
        cdef list ours = [], outdated = []
        cdef Py_ssize_t renamed = 0
        hashed = <uint64_t*>PyMem_Malloc(
            ((before + len(names) * <Py_ssize_t>width) // block + 1) * sizeof(uint64_t)
        )
        if hashed == NULL:
            raise MemoryError
        try:
            for each in names:
                name = PyLong_AsUnsignedLongLongMask(each)
                follows = end > data
                if extras:
                    extra = content[number]
                    if extra:
                        follows = False
                        seed = XXH3_64bits_withSeed(
                            PyBytes_AS_STRING(extra), PyBytes_GET_SIZE(extra), seed
                        )
                number += 1
                first = filled
                end += width
                while end - data >= block:
                    seed = XXH3_64bits_withSeed(data, block * sizeof(uint32_t), seed)
                    hashed[filled] = seed
                    filled += 1
                    data += block
                kept.link, kept.tokens, kept.count = seed, data, <uint32_t>(end - data)
                kept.ours, kept.more = <const uint32_t*>(hashed + first), 0
                if filled > first:
                    kept.more = <uint32_t>(filled - first - 1)
                    kept.kind = FILLED if kept.count or kept.more else FULL if counted else WHOLE
                elif follows:
                    kept.link, kept.tokens, kept.count = previous, end - width, width
                    kept.kind = ONE_AFTER if width == 1 else AFTER
                else:
                    kept.kind = ONE_FIRST if kept.count == 1 else FIRST
                renamed += self._put(name, &kept, group, outdated)
                previous = name
            for i in range(filled):
                ours.append(PyLong_FromUnsignedLongLong(hashed[i]))
            return ours, outdated, renamed
        finally:
            PyMem_Free(hashed)

    cdef int _put(self, uint64_t name, const Content* content, int group, list outdated) except -1:
        """Return whether another content had the name."""
        cdef uint64_t key = mixed(name, self._secret)
        cdef Shard* shard = shard_of(self._shards, key)
        cdef Row* row = find_row(shard, name, key)
        cdef uint8_t copies = 0
        cdef bint renamed = False
        cdef int each
        if row != NULL and not has_content(shard, row, content):
            renamed, copies = True, row.copies
            for each in range(GROUPS):
                if self._has_copy(row, each):
                    self._unfill(shard, row, each, outdated if each == group else None)
            remove_row(shard, row, self._secret)
            row = NULL
        if row == NULL:
            row = add_row(shard, name, self._secret, content)
            if row == NULL:
                raise MemoryError
            row.copies = copies
            if renamed:
                for each in range(GROUPS):
                    if self._has_copy(row, each):
                        self._fill(shard, row, each)
        self._add_copy(shard, row, group)
        return renamed

    def copy(self, names, group):
        cdef list ours = []
        cdef Py_ssize_t known = 0
        cdef int number = _group_of(group)
        cdef uint64_t name
        cdef Row* row
        self._open(number)
        for each in names:
            name = PyLong_AsUnsignedLongLongMask(each)
            row = self._find(name)
            if row != NULL:
                self._add_copy(self._shard(name), row, number)
                known += 1
                _list_ours(self._shard(name), row, ours)
        return known, ours

    # What goes.

    def remove(self, names, group):
        cdef list given_up = []
        cdef Py_ssize_t gone = 0, unknown = 0
        cdef int number = _group_of(group)
        cdef uint64_t name, key
        cdef Shard* shard
        cdef Row* row
        for each in names:
            name = PyLong_AsUnsignedLongLongMask(each)
            key = mixed(name, self._secret)
            shard = shard_of(self._shards, key)
            row = find_row(shard, name, key)
            if row == NULL or not self._has_copy(row, number):
                unknown += 1
                continue
            if not self._remove_copy(row, number):
                continue
            gone += 1
            self._unfill(shard, row, number, given_up)
            if not self._is_held(row):
                remove_row(shard, row, self._secret)
        return gone, unknown, given_up

    def drop_oldest(self, names, most):
        cdef list given_up = []
        cdef uint32_t in_shard = max(1, min(most, 1 << 31) // ROW_SHARDS), many, i
        cdef Py_ssize_t dropped = 0
        cdef Shard* shard
        for each in names:
            shard = self._shard(PyLong_AsUnsignedLongLongMask(each))
            if shard.live <= in_shard:
                continue
            many = min(shard.live - in_shard + in_shard // 16, _MAX_DROPPED, shard.live)
            for i in range(many):
                self._drop(shard, oldest_row(shard), given_up)
            dropped += many
        return dropped, given_up

    cdef int _drop(self, Shard* shard, Row* row, list given_up) except -1:
        cdef list ours = []
        cdef int group
        _list_ours(shard, row, ours)
        for group in range(GROUPS):
            if self._has_copy(row, group):
                self._unfill(shard, row, group, None)
                _forget(self._copies[group], self._key(row))
        remove_row(shard, row, self._secret)
        for own in ours:
            if not self._is_filled(PyLong_AsUnsignedLongLong(own)):
                given_up.append(own)
        return 0

    def drain(self):
        cdef uint32_t number
        cdef int i
        cdef list ours
        for i in range(ROW_SHARDS):
            ours = []
            for number in range(self._shards[i].used):
                _list_ours(&self._shards[i], self._shards[i].rows + number, ours)
                if len(ours) >= _STEP:
                    yield ours
                    ours = []
            yield ours
            free_rows(&self._shards[i])
        for i in range(GROUPS):
            free_table(self._copies[i])
            self._copies[i] = NULL
            yield ()
            free_table(self._fillers[i])
            self._fillers[i] = NULL
            yield ()

    # Copies, and what they fill.

    cdef int _open(self, int group) except -1:
        if self._copies[group] == NULL and group:
            self._copies[group] = _opened()
        if self._fillers[group] == NULL:
            self._fillers[group] = _opened()
        return 0

    cdef inline uint64_t _key(self, const Row* row) noexcept:
        return mixed(row.name, self._secret)

    cdef inline bint _has_copy(self, const Row* row, int group) noexcept:
        if group == 0:
            return row.copies > 0
        return self._copies[group] != NULL and find(self._copies[group], self._key(row)) != NULL

    cdef bint _is_held(self, const Row* row) noexcept:
        cdef int group
        for group in range(GROUPS):
            if self._has_copy(row, group):
                return True
        return False

    cdef int _add_copy(self, Shard* shard, Row* row, int group) except -1:
        cdef bint first = not self._has_copy(row, group)
        if group == 0 and row.copies < MAX_COPIES:
            row.copies += 1
        else:
            if self._copies[group] == NULL:
                self._copies[group] = _opened()
            _raise(self._copies[group], self._key(row))
        if first:
            self._fill(shard, row, group)
        return 0

    cdef bint _remove_copy(self, Row* row, int group) noexcept:
        """Remove a copy, which must exist; return whether it was the last one of its group."""
        cdef Entry* entry = NULL
        if self._copies[group] != NULL:
            entry = find(self._copies[group], self._key(row))
        if entry != NULL:
            return _lower(self._copies[group], entry) == 0 and group != 0
        row.copies -= 1
        return row.copies == 0

    cdef int _fill(self, const Shard* shard, const Row* row, int group) except -1:
        cdef Content content
        cdef uint32_t i
        if row.kind != FULL and row.kind != FILLED:
            return 0
        read_row(shard, row, &content)
        _raise(self._fillers[group], content.link)
        for i in range(content.more):
            _raise(self._fillers[group], own_at(&content, i))
        return 0

    cdef int _unfill(self, const Shard* shard, const Row* row, int group, list given_up) except -1:
        """Add our blocks that nothing fills any more to a list, if there is one."""
        cdef Content content
        cdef uint32_t i
        if row.kind != FULL and row.kind != FILLED and row.kind != WHOLE:
            return 0
        read_row(shard, row, &content)
        for i in range(content.more):
            self._empty(own_at(&content, i), group, True, given_up)
        self._empty(content.link, group, row.kind != WHOLE, given_up)
        return 0

    cdef inline int _empty(self, uint64_t own, int group, bint counted, list given_up) except -1:
        cdef Table* fillers = self._fillers[group]
        cdef Entry* entry = find(fillers, own)
        if entry != NULL and (not counted or _lower(fillers, entry) > 0):
            return 0
        if given_up is not None:
            given_up.append(PyLong_FromUnsignedLongLong(own))
        return 0

    cdef bint _is_filled(self, uint64_t own) noexcept:
        cdef int group
        for group in range(GROUPS):
            if self._fillers[group] != NULL and find(self._fillers[group], own) != NULL:
                return True
        return False


cdef int _group_of(group) except -1:
    if not 0 <= group < GROUPS:
        raise ValueError("no such group")
    return group


cdef Table* _opened() except NULL:
    cdef Table* table = new_table()
    if table == NULL:
        raise MemoryError
    return table


cdef int _raise(Table* table, uint64_t key) except -1:
    """Count one more."""
    cdef Entry* entry = find_or_free_place(table, key)
    if entry == NULL:
        raise MemoryError
    if entry.value:
        entry.value += 1
    else:
        insert(table, entry, key, 1)
    return 0


cdef uint32_t _lower(Table* table, Entry* entry) noexcept:
    """Count one less; return how many there are."""
    cdef uint32_t left = entry.value - 1
    if left:
        entry.value = left
    else:
        delete(table, entry)
    return left


cdef void _forget(Table* table, uint64_t key) noexcept:
    cdef Entry* entry = NULL if table == NULL else find(table, key)
    if entry != NULL:
        delete(table, entry)


cdef int _list_ours(const Shard* shard, const Row* row, list found) except -1:
    """Add our blocks that a block fills to a list."""
    cdef Content content
    cdef uint32_t i
    if row.kind != FULL and row.kind != FILLED and row.kind != WHOLE:
        return 0
    read_row(shard, row, &content)
    for i in range(content.more):
        found.append(PyLong_FromUnsignedLongLong(own_at(&content, i)))
    found.append(PyLong_FromUnsignedLongLong(content.link))
    return 0
