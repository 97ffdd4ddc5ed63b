# cython: language_level=3, boundscheck=False, wraparound=False
"""What the picker sent to endpoints and has not seen done; `epp.model.pods.ledger` is the contract."""

cimport cython
from cpython.object cimport PyObject

OVERDUE_SECONDS = 60.0
cdef double _OVERDUE = OVERDUE_SECONDS
cdef double _ANY = 1e-9


@cython.final
@cython.no_gc
cdef class _Entry:
    """A request in line, between its neighbours; the line's table alone keeps it."""

    cdef object request
    cdef double seconds
    cdef bint deadline_only
    cdef PyObject* before
    cdef PyObject* behind


@cython.final
cdef class Ledger:
    """The books of one endpoint."""

    cdef public double external_waiting, running
    cdef dict _line
    cdef set _open
    cdef PyObject* _head
    cdef PyObject* _last
    cdef double _owed, _head_since

    def __cinit__(self):
        self.external_waiting = self.running = self._owed = self._head_since = 0.0
        self._line, self._open = {}, set()
        self._head = self._last = NULL

    @property
    def requests(self):
        """Requests sent whose end was not seen."""
        return len(self._open)

    def prefilling(self, double now):
        """Count the requests whose prefill is not over."""
        self._advance(now)
        return len(self._line)

    cpdef double owed(self, double now) except -1.0:
        """Return the seconds of prefill still to be done: more than 0 while any is not over."""
        cdef double done
        if self._head == NULL:
            return 0.0
        self._advance(now)
        if self._head == NULL:
            return 0.0
        done = min((<_Entry> self._head).seconds, max(0.0, now - self._head_since))
        return max(_ANY, self._owed - done)

    def owed_before(self, request, double now):
        """Return the seconds of prefill that stand before a request; 0 once its own is over."""
        cdef double before = 0.0
        cdef _Entry own
        cdef PyObject* entry
        self._advance(now)
        own = self._line.get(request)
        if own is None:
            return 0.0
        entry = self._head
        while entry != <PyObject*> own:
            before += (<_Entry> entry).seconds
            entry = (<_Entry> entry).behind
        return max(0.0, before - max(0.0, now - self._head_since))

    def admit(self, request, double seconds, double now, *, bint observed):
        """Book a request; `observed` when its first token will be seen."""
        cdef _Entry entry
        self.first_token(request, now)
        entry = _Entry.__new__(_Entry)
        entry.request, entry.seconds, entry.deadline_only = request, seconds, not observed
        entry.before, entry.behind = self._last, NULL
        if self._head == NULL:
            self._head_since, self._owed = now, 0.0
            self._head = <PyObject*> entry
        else:
            (<_Entry> self._last).behind = <PyObject*> entry
        self._last = <PyObject*> entry
        self._line[request] = entry
        self._owed += seconds
        self._open.add(request)

    cpdef first_token(self, request, double now):
        """The request's prefill is over."""
        cdef _Entry entry
        self._advance(now)
        entry = self._line.get(request)
        if entry is not None:
            self._strike(entry, now)

    def unobserved(self, request):
        """Nothing more will be seen of the request: the clock pays what it owes."""
        cdef _Entry entry = self._line.get(request)
        if entry is not None:
            entry.deadline_only = True

    def end(self, request, double now):
        """The request is over."""
        self.first_token(request, now)
        self._open.discard(request)

    cdef int _strike(self, _Entry entry, double since) except -1:
        """Take an entry, which the caller keeps, out of the line."""
        self._owed = max(0.0, self._owed - entry.seconds)
        if entry.behind == NULL:
            self._last = entry.before
        else:
            (<_Entry> entry.behind).before = entry.before
        if entry.before == NULL:
            self._head, self._head_since = entry.behind, since
        else:
            (<_Entry> entry.before).behind = entry.behind
        del self._line[entry.request]
        return 0

    cdef int _advance(self, double now) except -1:
        cdef double over
        cdef _Entry head
        while self._head != NULL:
            head = <_Entry> self._head
            over = self._head_since + head.seconds
            if not head.deadline_only:
                over += _OVERDUE
            if now < over:
                return 0
            self._strike(head, over)
        return 0


def take_snapshot(list ledgers, list prices, double now):
    """Look through the books of endpoints, a price for each."""
    cdef Py_ssize_t count = len(ledgers), position, busy = 0, requests
    cdef Ledger ledger
    cdef double owes
    cdef list owed = [0.0] * count, asked = [0] * count, running = [0.0] * count
    if len(prices) != count:
        raise ValueError("one price for each ledger is needed")
    for position in range(count):
        ledger = <Ledger?> ledgers[position]
        owes = ledger.owed(now)
        busy += owes > 0.0
        if ledger.external_waiting:
            owes += ledger.external_waiting * <double> prices[position]
        requests = len(ledger._open)
        owed[position] = owes
        asked[position] = requests
        running[position] = max(<double> requests, ledger.running)
    return owed, asked, running, busy
