"""Has the processor fetch memory before it is needed: several places take the time of one."""

cdef extern from * nogil:
    """
    /* gcc takes a function that only prefetches for one that does nothing; not so with the `asm` */
    static inline void epp_prefetch(const void* at) { __builtin_prefetch(at); __asm__ volatile(""); }
    #define EPP_PREFETCHED 16
    """
    void prefetch "epp_prefetch"(const void* at)
    const Py_ssize_t PREFETCHED "EPP_PREFETCHED"  # places that are fetched together
